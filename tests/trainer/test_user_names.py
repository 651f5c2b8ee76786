"""Subclasses may use any name that transformers' Trainer leaves free, for methods and attributes of their own.

The names below are those that oneloop's Trainer has, or once had, and transformers' has not. Some are offered to
scripts; the others were oneloop's own, and a subclass that happens to use one of them trains all the same.
"""

import pytest

from oneloop import Trainer
from tests.backends.support import available, rows, same_bytes

INTERNAL = (
    *("accumulate", "agree", "backend", "call", "handle_empty_epoch", "engine", "is_first_report", "interrupted"),
    *("is_dealt", "is_over", "team", "log_evaluate_save", "losses", "make_plan", "make_room", "memory", "open_epoch"),
    *("local_batches", "share_batches", "strategy", "processes", "update"),
)
# For scripts: of oneloop's own, of PaddleNLP's and of older releases of transformers.
OFFERED = (
    *(
        "batch_cost",
        "compress",
        "compute_objective",
        "current_gradient_accumulation_steps",
        "do_grad_scaling",
        "export",
    ),
    *("export_model", "hp_space", "init_git_repo", "ipex_optimize_model", "is_tp_enabled", "objective"),
    *(
        "log_metric",
        "plan",
        "prediction_loop",
        "print_config",
        "push_in_progress",
        "record_event",
        "rename_parameter",
        "scaler",
    ),
    *("log_metric", "set_optimizer_grouped_parameters", "tokenizer", "torch_jit_model_eval", "use_apex"),
)
ONCE = ("tokenizer",)  # another name of processing_class: what is set is the tokenizer
# An argument of the constructor: whoever sets it wants that loss; and a method that transformers 4 calls on a resume.
MEANT = ("criterion", "compare_trainer_and_checkpoint_args")

RUN = {
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.05,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_async": False,
}
WAYS = ("method", "set before", "set after")


class UsedUp:
    """Data for three updates, and none when they are asked for again."""

    def __init__(self):
        self.left = iter(rows(12))

    def __iter__(self):
        return self.left


def subclass(names, way):
    """A Trainer whose subclass has these names for itself."""

    def method(self, *args, **kwargs):
        raise AssertionError("a method of the subclass is called by oneloop")

    own = object()

    class Own(Trainer):
        def __init__(self, *args, **kwargs):
            if way == "set before":
                self.take()
            super().__init__(*args, **kwargs)
            if way == "set after":
                self.take()

        def take(self):
            for name in names:
                setattr(self, name, own)

        def is_its_own(self):
            if way == "method":
                return all(getattr(getattr(self, name), "__func__", None) is method for name in names)
            return all(getattr(self, name) is own for name in names)

    if way == "method":
        for name in names:
            setattr(Own, name, method)
    return Own


def run(cls, backend, arguments, folder, used_up=False):
    given = RUN | {"max_steps": 5} if used_up else RUN
    data = UsedUp() if used_up else rows(16)
    model = backend.classifier(dropout=0.2)
    trainer = cls(model, arguments(folder, **given), train_dataset=data, eval_dataset=rows(6, 1))
    assert trainer.train().global_step == 3
    return trainer


PLAIN = {}


@pytest.fixture
def plain(backend, arguments, tmp_path):
    """The weights of a plain Trainer, with data that is used up or not."""

    def weights(used_up):
        key = backend.name, used_up
        if key not in PLAIN:
            trainer = run(Trainer, backend, arguments, tmp_path / f"plain-{used_up}", used_up)
            PLAIN[key] = backend.weights(trainer.model)
        return PLAIN[key]

    return weights


@pytest.mark.slow  # all of them at once, below, find the same; this tells which one it was
@pytest.mark.parametrize("backend", available()[:1], ids=lambda kit: kit.name)
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in (*INTERNAL, *OFFERED) for way in WAYS if name not in ONCE or way == "method"],
)
def test_a_name_of_the_subclass(backend, arguments, tmp_path, plain, name, way):
    used_up = name == "handle_empty_epoch"
    trainer = run(subclass([name], way), backend, arguments, tmp_path / "own", used_up)
    assert same_bytes(backend.weights(trainer.model), plain(used_up))
    assert trainer.is_its_own()


@pytest.mark.parametrize("used_up", [False, True])
@pytest.mark.parametrize(
    ("names", "way"),
    [pytest.param(INTERNAL, way, id=f"internal-{way}") for way in WAYS]
    + [pytest.param([n for n in OFFERED if n not in ONCE], way, id=f"offered-{way}") for way in WAYS],
)
@pytest.mark.once_on("mindspore")
def test_all_names_at_once(backend, arguments, tmp_path, plain, names, way, used_up):
    trainer = run(subclass(names, way), backend, arguments, tmp_path / "own", used_up)
    assert same_bytes(backend.weights(trainer.model), plain(used_up))
    assert trainer.is_its_own()


def test_these_are_all_the_names(arguments, tmp_path):
    """Those that transformers' Trainer has not. One that has left oneloop stays on the list: it is to stay free."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("accelerate")
    kits = {kit.name: kit for kit in available()}
    if "torch" not in kits:
        pytest.skip("transformers needs torch")
    args = transformers.TrainingArguments(str(tmp_path / "theirs"), report_to="none", use_cpu=True)
    theirs = public(transformers.Trainer(kits["torch"].classifier(), args))
    ours = public(run(Trainer, kits["torch"], arguments, tmp_path / "ours"))
    assert ours - theirs <= {*INTERNAL, *OFFERED, *MEANT}
    assert not theirs & {*INTERNAL, *OFFERED, *MEANT}


def public(trainer):
    """Names of the class and of the instance."""
    return {name for name in (*dir(type(trainer)), *vars(trainer)) if not name.startswith("_")}
