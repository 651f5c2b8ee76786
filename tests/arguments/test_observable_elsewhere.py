"""What works on Paddle and MindSpore can be seen there too: the observations of test_observable.py, which has torch's.

The default run has all of Paddle, and of MindSpore, whose steps are slower, those about optimization.
"""

import copy
import os

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments, TrainingArguments
from oneloop.arguments.fields import declared
from oneloop.arguments.support import answer
from oneloop.backends import registry
from oneloop.errors import OneloopError
from tests.arguments import probes
from tests.arguments.cases import OBSERVATIONS, OPTIMIZATION, refuses, shows, workers
from tests.arguments.tiny_runs import Plain, TinyRun
from tests.backends.support import names
from tests.internals import backend_of

FRAMEWORKS = [name for name in names() if name != "torch"]
if "mindspore" in FRAMEWORKS:
    import mindspore  # noqa: F401  before Paddle, whichever tests are chosen
NAMES = [rules["public"] or name for name, (_, rules) in declared(Seq2SeqTrainingArguments).items()]


def read_back(tiny_run):
    """The device of the arguments, or the kind of error; a weight of MindSpore's does not tell where it is."""
    try:
        return str(tiny_run.trainer().args.device)
    except OneloopError as error:
        return type(error).__name__


def on_a_graph(tiny_run):
    """Batch by batch, whether an evaluation ran on a compiled graph."""
    trainer, seen = tiny_run.trainer(model=Plain), []
    method = "forward" if tiny_run.framework == "paddle" else "__call__"
    plain = getattr(backend_of(trainer).models.Compiled, method)

    def noted(model, *args, **kwargs):
        outputs = plain(model, *args, **kwargs)
        seen.append(tiny_run.framework == "paddle" or model.graphs[False] is not None)
        return outputs

    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(backend_of(trainer).models.Compiled, method, noted)
        trainer.evaluate()
    return seen


def pinned(tiny_run):
    """Whether batches are pinned when there is an accelerator, which is made up; none is read."""
    trainer = tiny_run.trainer()
    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(backend_of(trainer).devices, "kind", lambda device: "cuda")
        return trainer.get_train_dataloader().pin


def first_scale(tiny_run):
    """What Paddle's scaler is made with. A CPU has no fp16, so the refusal is put aside, and no step is made."""
    import paddle

    asked = []
    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(paddle.amp, "GradScaler", lambda init_loss_scaling: asked.append(init_loss_scaling))
        patch.setattr(TrainingArguments, "check_backend", lambda *_: None)
        tiny_run.trainer()._oneloop.make_engine()
    return asked[-1]


def tf32_setting(tiny_run):
    """What the libraries of NVIDIA will read, or the kind of error."""
    tiny_run.monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    try:
        tiny_run.trainer()
    except OneloopError as error:
        return type(error).__name__
    return os.environ.get("NVIDIA_TF32_OVERRIDE")


# What looks different there than on torch, each with its reason.
BOTH = {
    "device": shows(read_back, ("cpu", "cpu"), ("mps", "UnsupportedError"), ("cuda:99", "ArgumentError")),
    "dataloader_multiprocessing_context": shows(
        probes.start_method, *((way, way) for way in ("fork", "spawn", "forkserver")), max_steps=1, **workers
    ),
    # compilers of their own, which cannot be replaced by one that takes notes
    "jit_mode_eval": shows(on_a_graph, (False, []), (True, [True, True])),
    # bfloat16: Paddle's autocast does nothing on a CPU, and neither has the kernels
    "bf16": refuses(False, True),
    "bf16_full_eval": refuses(False, True),
}
OWN = {
    "paddle": BOTH
    | {
        # Paddle has no Adafactor, and its own word for RMSprop
        "optim": shows(probes.optimizer, ("adamw", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSProp")),
        # float16: as bfloat16
        "fp16": refuses(False, True),
        "fp16_full_eval": refuses(False, True),
        "fp16_opt_level": refuses("O0", "O1", fp16=True),
        "half_precision_backend": refuses("auto", "apex", "MissingPackageError"),
        "scale_loss": shows(first_scale, (8.0, 8.0), (64.0, 64.0), fp16=True),
        # of to_static's two backends the wheel for CPUs has one, which is not named
        "torch_compile_backend": refuses(None, "inductor"),
        "tf32": shows(tf32_setting, (None, None), (False, "0"), (True, "UnsupportedError")),
        "dataloader_pin_memory": shows(pinned, (False, False), (True, True)),
    },
    "mindspore": BOTH
    | {
        # MindSpore's Adafactor leaves weight decay aside
        "optim": shows(probes.optimizer, ("adamw", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSprop")),
        # there is no autocast: O1 is O2, which is said
        "fp16": shows(probes.precision, (False, ("Float32", "Float32", False)), (True, ("Float16", "Float32", True))),
        "fp16_opt_level": shows(
            probes.precision,
            ("O0", ("Float32", "Float32", False)),
            ("O1", ("Float16", "Float32", True)),
            ("O2", ("Float16", "Float32", False)),
            ("O3", ("Float16", "Float16", False)),
            fp16=True,
        ),
        "fp16_full_eval": shows(probes.evaluated_in, (False, "Float32"), (True, "Float16")),
        "half_precision_backend": refuses("auto", "apex", "MissingPackageError", fp16=True),
        # a CPU has no switch for it
        "tf32": refuses(None, True),
    },
}
SLOW = ("dataloader_multiprocessing_context",)  # a new process imports the framework


def works(framework):
    return [name for name in NAMES if answer(name, framework) in ("works", "works in part")]


def cases():
    for framework in FRAMEWORKS:
        for name in works(framework):
            quick = name in OPTIMIZATION or (framework == "paddle" and name not in SLOW)
            marks = () if quick else pytest.mark.slow
            yield pytest.param(framework, name, id=f"{framework}-{name}", marks=marks)


@pytest.mark.parametrize(("framework", "name"), list(cases()))
def test_what_works_can_be_seen(framework, name, tmp_path_factory, monkeypatch, capsys):
    observation = (OBSERVATIONS | OWN[framework])[name]

    def look(value):
        given = observation.given | {name: copy.copy(value)}
        return observation.see(TinyRun(tmp_path_factory.mktemp("tiny_run"), monkeypatch, capsys, framework, **given))

    seen = [look(value) for value, _ in observation.seen]
    if observation.exact:
        assert seen == [expected for _, expected in observation.seen]
        assert any(other != seen[0] for other in seen[1:])
    else:
        first, second = seen
        assert look(observation.seen[0][0]) == first
        assert second != first


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_looks_different_works(framework):
    assert set(OWN[framework]) <= set(works(framework))


def test_what_a_framework_sees_to_by_itself(tmp_path_factory, monkeypatch, capsys):
    """MindSpore: its loader has nothing to pin, whatever the argument is."""
    found = {(name, spec.name) for spec in registry.specs() for name in spec.handled_by_backend}
    assert found == {
        ("dataloader_pin_memory", "mindspore"),
        *(("eval_use_gather_object", framework) for framework in registry.released()),
    }
    assert {answer(name, framework) for name, framework in found} == {"by the framework"}
    if "mindspore" in FRAMEWORKS:
        found = [
            probes.weights(TinyRun(tmp_path_factory.mktemp("tiny_run"), monkeypatch, capsys, "mindspore", **given))
            for given in ({"dataloader_pin_memory": True}, {"dataloader_pin_memory": False})
        ]
        assert found[0] == found[1]
