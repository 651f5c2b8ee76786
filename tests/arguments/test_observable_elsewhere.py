"""What works on Paddle and MindSpore can be seen there too: the observations of test_observable.py, which has torch's.

The default run has all of Paddle, and of MindSpore, whose steps are slower, those about optimization.
"""

import copy
from pathlib import Path

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments
from oneloop.arguments.answers import answer
from oneloop.arguments.fields import declared
from tests.arguments import sights
from tests.arguments.observations import OBSERVATIONS, OPTIMIZATION, differs, refuses, shows, workers
from tests.arguments.scenes import Scene
from tests.backends_support import names

TESTS = Path(__file__).resolve().parents[1]
FRAMEWORKS = [name for name in names() if name != "torch"]
NAMES = [rules["public"] or name for name, (_, rules) in declared(Seq2SeqTrainingArguments).items()]


def setting(key):
    """What the worker processes of a loader are started with."""
    return lambda scene: scene.trainer().get_train_dataloader().settings[key]


# What looks different there than on torch.
BOTH = {
    "device": shows(sights.outcome, ("cpu", "trained"), ("mps", "RefusedError"), ("cuda:99", "ArgumentError")),
    "dataloader_prefetch_factor": shows(setting("ahead"), (1, 1), (3, 3), **workers),
    "dataloader_multiprocessing_context": shows(setting("context"), ("fork", "fork"), ("spawn", "spawn"), **workers),
    "half_precision_backend": refuses("auto", "apex", "MissingPackageError"),
    "bf16": refuses(False, True),
    "bf16_full_eval": refuses(False, True),
    "tf32": refuses(None, True),
}
OWN = {
    "paddle": BOTH
    | {
        "optim": shows(sights.optimizer, ("adamw", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSProp")),
        "fp16": refuses(False, True),
        "fp16_full_eval": refuses(False, True),
        "fp16_opt_level": refuses("O0", "O1", fp16=True),
        "torch_compile_backend": refuses(None, "inductor"),
    },
    "mindspore": BOTH
    | {
        "optim": shows(sights.optimizer, ("adamw", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSprop")),
        "fp16": differs(sights.precision, False, True),
        "fp16_full_eval": shows(sights.evaluated_in, (False, "Float32"), (True, "Float16")),
        "fp16_opt_level": differs(sights.precision, "O0", "O3", fp16=True),
    },
}
# What is to be seen by other means: the test that looks, or why a CPU has nothing to show.
ELSEWHERE = {
    "paddle": {
        "full_determinism": "trainer/test_precision.py",
        "jit_mode_eval": "backends/paddle/test_models.py",
        "dataloader_pin_memory": "nothing is pinned without an accelerator",
        "scale_loss": "fp16 is refused on a CPU",
    },
    "mindspore": {
        "full_determinism": "trainer/test_precision.py",
        "jit_mode_eval": "backends/mindspore/test_compiling.py",
        "dataloader_pin_memory": "MindSpore copies to its devices by itself, and has no pinned memory",
    },
}


def works(framework):
    return [name for name in NAMES if answer(name, framework) in ("works", "works in part")]


def cases():
    for framework in FRAMEWORKS:
        for name in works(framework):
            quick = framework == "paddle" or name in OPTIMIZATION
            if name not in ELSEWHERE[framework]:
                marks = () if quick else pytest.mark.slow
                yield pytest.param(framework, name, id=f"{framework}-{name}", marks=marks)


@pytest.mark.parametrize(("framework", "name"), list(cases()))
def test_what_works_can_be_seen(framework, name, tmp_path_factory, monkeypatch, capsys):
    observation = (OBSERVATIONS | OWN[framework])[name]

    def look(value):
        given = observation.given | {name: copy.copy(value)}
        return observation.see(Scene(tmp_path_factory.mktemp("scene"), monkeypatch, capsys, framework, **given))

    seen = [look(value) for value, _ in observation.seen]
    if observation.exact:
        assert seen == [expected for _, expected in observation.seen]
        assert any(other != seen[0] for other in seen[1:])
    else:
        first, second = seen
        assert look(observation.seen[0][0]) == first
        assert second != first


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_seen_elsewhere(framework):
    assert set(ELSEWHERE[framework]) <= set(works(framework))
    assert not set(ELSEWHERE[framework]) & set(OWN[framework])
    for name, where in ELSEWHERE[framework].items():
        assert " " in where or name in (TESTS / where).read_text()
