"""A resume with another value of an argument: what the checkpoint keeps, what follows the new value, and what is said.

Every argument that works (tests/arguments/cases.py has two values of each) is changed at a resume. The rule: the run
ends as if nothing had been changed; or a message has named the argument before the first step; or the resume is
refused. What the message calls the checkpoint's is the checkpoint's, to the last bit.
"""

import copy
import inspect

import pytest

from oneloop.checkpoint.resume import _STORED
from oneloop.errors import ArgumentError, CheckpointError, OneloopError
from oneloop.optim import schedules
from tests.arguments.cases import OBSERVATIONS, OPTIMIZATION
from tests.arguments.tiny_runs import TinyRun
from tests.backends.support import names

SAVES = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
KEPT, OTHERS = "whose values are used", "will not be bit-exact"
# What the message calls an argument.
CALLED = {
    "per_device_train_batch_size": "samples_per_step",
    "gradient_accumulation_steps": "samples_per_step",
    "train_sampling_strategy": "sampling",
    "dataloader_num_workers": "workers",
}
# Cannot be changed in this small run: they need other data, models or packages, which probes.py has.
OTHER_SETUP = {
    *("packing", "max_length", "eval_packing", "mixture_weights", "mixture_temperature", "mixture_stop"),
    *("length_column_name", "sortish_sampler", "neftune_noise_alpha", "cooldown_type", "stream_sharding"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "torch_compile_backend"),
    *("project", "trackio_space_id", "trackio_bucket_id", "push_to_hub", "output_url", "torch_compile_mode"),
    *("dataloader_multiprocessing_context", *(name for name in OBSERVATIONS if name.startswith("hub_"))),
}
# They say where to run, from where and how loud; without the saves of this run there is nothing to resume.
NOT_OF_THE_RUN = {"device", "output_dir", "resume_from_checkpoint", "log_level", "max_steps", "num_train_epochs"}
NOT_OF_THE_RUN |= {"save_strategy", "save_steps", "save_total_limit", "save_only_model"}
# What they ask for is another course from the checkpoint on; batches in no order have none.
ASKED_FOR = {"cooldown_steps", "ignore_data_skip", "dataloader_in_order"}
ALL = sorted(OBSERVATIONS.keys() - OTHER_SETUP - NOT_OF_THE_RUN - ASKED_FOR)
ALWAYS = {*OPTIMIZATION, "seed", "data_seed", "bf16", "gradient_checkpointing_kwargs", *CALLED}
ELSEWHERE = ("weight_decay", "learning_rate", "optim_args")  # what the other frameworks always run


def cases():
    found = []
    for framework in names():
        always = ALWAYS if framework == "torch" else ELSEWHERE
        for name in ALL if framework == "torch" else sorted(ALWAYS & set(ALL)):
            found.append(pytest.param(framework, name, marks=[] if name in always else pytest.mark.slow))
    return found


@pytest.fixture
def course(tmp_path_factory, monkeypatch):
    def run(framework, first, second):
        """(the weights of a run of the first arguments, those of one that was resumed with the second, messages)."""
        folder = tmp_path_factory.mktemp("course")
        monkeypatch.chdir(folder)
        found = []
        for given, checkpoint in ((first, None), (second, str(folder / "out" / "checkpoint-2"))):
            tiny = TinyRun(folder, monkeypatch, None, framework=framework, **copy.deepcopy(given) | SAVES)
            tiny.seq2seq = True
            tiny.listen()
            tiny.trainer().train(resume_from_checkpoint=checkpoint)
            found.append(tiny)
        return found[0].watch.weights[4], found[1].watch.weights[4], found[1].messages

    return run


@pytest.mark.parametrize(("framework", "name"), cases())
def test_an_argument_that_is_another_one_is_kept_named_or_refused(framework, name, course):
    observation = OBSERVATIONS[name]
    given = {key: value for key, value in observation.given.items() if key not in NOT_OF_THE_RUN}
    values = [value for value, _ in observation.seen[:2]]
    for first, second in (values, values[::-1]):
        try:
            whole, resumed, messages = course(framework, given | {name: first}, given | {name: second})
        except OneloopError as error:
            assert isinstance(error, CheckpointError) or name in str(error) or "optim=" in str(error), error
            continue
        called = f"{CALLED.get(name, name)} was "
        kept = any(called in message for message in messages if KEPT in message)
        named = any(called in message for message in messages if OTHERS in message)
        assert kept is (name in _STORED) and not (kept and named)
        assert resumed == whole or named, f"{name}={second!r} in place of {first!r} changes the run, which nothing says"


def test_every_argument_is_changed_or_listed_here():
    listed = [*OTHER_SETUP, *NOT_OF_THE_RUN, *ASKED_FOR, *ALL]
    assert sorted(listed) == sorted(OBSERVATIONS)
    assert {*_STORED, *CALLED} <= set(ALL)


ENDS = [name for name, make in schedules._BY_STEP.items() if "lr_init" in inspect.signature(make).parameters]


@pytest.mark.parametrize("schedule", ENDS)
@pytest.mark.parametrize("framework", names())
def test_the_last_learning_rate_is_reached_from_that_of_the_checkpoint(framework, schedule, course):
    """Schedules that end at a given learning rate: their factors depend on the one that they begin with."""
    assert len(ENDS) == 3
    options = {"lr_end": 0.004} if schedule == "polynomial" else {"min_lr": 0.004}
    given = {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": options, "learning_rate": 0.01}
    whole, resumed, messages = course(framework, given, given | {"learning_rate": 0.5})
    assert resumed == whole
    assert [text for text in messages if KEPT in text and "learning_rate was 0.01, is 0.5" in text]
    assert not [text for text in messages if OTHERS in text], "what is kept is exact"


@pytest.mark.parametrize("framework", names())
def test_groups_that_cannot_take_the_stored_options_are_refused(framework, course):
    """Without weight decay, the optimizers of some frameworks have one group: the checkpoint has two."""
    first, second = ({"weight_decay": rate, "learning_rate": 0.1} for rate in (0.5, 0.0))
    try:
        whole, resumed, _ = course(framework, first, second)
    except CheckpointError as error:
        assert framework == "mindspore"
        assert "divides the parameters into other groups" in str(error) and "weight_decay 0.5 and 0.0" in str(error)
    else:
        assert framework != "mindspore" and resumed == whole


def test_a_schedule_keeps_a_rate_of_its_own_group():
    """The base learning rate is that of the groups that have no other."""
    from oneloop.optim.scheduler import Scheduler

    class Optimizers:
        @staticmethod
        def learning_rates(optimizer):
            return list(optimizer)

        @staticmethod
        def set_learning_rates(optimizer, rates):
            optimizer[:] = rates

    backend = type("Backend", (), {"optimizers": Optimizers})
    made = Scheduler(backend, [0.4, 0.1], schedules.make_schedule("polynomial", 0, 10, lr_init=0.4, lr_end=0.1))
    made.load_state_dict({"last_epoch": 10, "base_lrs": [0.2, 0.3]})
    assert made.get_last_lr() == pytest.approx([0.1, 0.15])
    made.load_state_dict({"last_epoch": 0, "base_lrs": [0.2, 0.3]})
    assert made.get_last_lr() == pytest.approx([0.2, 0.3])
    with pytest.raises(ArgumentError, match="lr_end"):
        made.load_state_dict({"last_epoch": 0, "base_lrs": [0.05, 0.3]})
