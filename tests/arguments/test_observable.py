"""Every argument, answered as docs/arguments.md says: it works, and that can be seen; or it maps; or it refuses."""

import copy
import json
import logging
from pathlib import Path

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments, TrainingArguments, packages, page, support
from oneloop.arguments.fields import declared
from oneloop.arguments.fixed import FIXED_ARGUMENTS
from oneloop.arguments.support import NOT_YET, answer
from oneloop.arguments.unsupported import Section
from oneloop.errors import MissingPackageError, UnsupportedError
from oneloop.optim.catalog import OPTIMIZERS
from tests.arguments.cases import OBSERVATIONS
from tests.arguments.test_aliases import PAIRS
from tests.arguments.test_support import REFUSED
from tests.arguments.tiny_runs import TinyRun, weights_of

NAMES = [rules["public"] or name for name, (_, rules) in declared(Seq2SeqTrainingArguments).items()]
ALIASES = Seq2SeqTrainingArguments.__aliases__
ANSWERS = {name: answer(name, "torch") for name in NAMES}
LISTS = json.loads((Path(__file__).parent / "fields.json").read_text())

# The closed list of ARGUMENTS.md for torch on a CPU, beside packages that are not installed.
CLOSED = {
    ("use_ipex", "True"),
    ("half_precision_backend", "apex"),
    ("optim", "adamw_apex_fused"),
    ("tf32", "True"),
    ("device", "mps"),
    ("tpu_num_cores", "any"),
    ("debug", "tpu_metrics_debug"),
    *(("optim", name) for name, row in OPTIMIZERS.items() if row.unsupported),
    ("sharding", "offload"),
    ("trace_steps", "with torch_compile"),
    ("verify_steps", "with torch_compile"),
}
# Arguments of other trainers, beyond the seeds' and ARGUMENTS.md's own, that nothing here would answer to.
FOREIGN = {
    "accelerator_config",
    "mp_parameters",
    "save_safetensors",
    "use_legacy_prediction_loop",
}
# What later releases bring.
LATER = {
    "report_to",
    "trackio_static_space_id",
}


def answered(*wanted):
    return [name for name in NAMES if ANSWERS[name] in wanted]


@pytest.fixture
def tiny_run(tmp_path_factory, monkeypatch, capsys):
    def make(**given):
        return TinyRun(tmp_path_factory.mktemp("tiny_run"), monkeypatch, capsys, **given)

    logger = logging.getLogger("oneloop")
    level = logger.level
    yield make
    logger.setLevel(level)  # log_level has changed it


# -- works


@pytest.mark.parametrize("name", answered("works", "works in part"))
def test_what_works_can_be_seen(name, tiny_run):
    assert name in OBSERVATIONS, f"{name} has no observation: add one to tests/arguments/cases.py"
    observation = OBSERVATIONS[name]

    def look(value):
        return observation.see(tiny_run(**observation.given, **{name: copy.copy(value)}))

    seen = [look(value) for value, _ in observation.seen]
    if observation.exact:
        assert seen == [expected for _, expected in observation.seen]
        assert any(other != seen[0] for other in seen[1:])
    else:
        first, second = seen
        assert look(observation.seen[0][0]) == first
        assert second != first


def choices():
    """Every value of the arguments that have a closed list of them; workers are not started in every way."""
    for name, (_, rules) in declared(Seq2SeqTrainingArguments).items():
        for choice in rules["choices"] or () if name != "dataloader_multiprocessing_context" else ():
            yield name, choice


@pytest.mark.parametrize(("name", "choice"), choices())
def test_every_choice_trains_or_is_refused(name, choice, tiny_run):
    following = {"eval_strategy": "steps", "eval_steps": 1}
    needed = {
        "group_by_length": {"length_column_name": "number"},
        "batch_rebalance": {"length_column_name": "number"},
        "reduce_lr_on_plateau": following,
        "greedy": following,
        "best": following,
        "rollback": {"save_strategy": "steps"},
        "cosine_with_min_lr": {"lr_scheduler_kwargs": {"min_lr": 1e-6}},
        "cosine_warmup_with_min_lr": {"lr_scheduler_kwargs": {"min_lr": 1e-6}},
        "warmup_stable_decay": {"lr_scheduler_kwargs": {"num_decay_steps": 2}},
    }
    given = needed.get(choice, {}) | {name: [choice] if name == "include_for_metrics" else choice}
    if choice.startswith(("galore", "apollo")):
        given["optim_target_modules"] = "all-linear"
    small = tiny_run(**given)
    small.seq2seq = True
    try:
        trainer = small.trainer()
    except UnsupportedError as error:
        listed = [unsupported.value_text for unsupported in support.find_unsupported(name, "torch")]
        assert choice in listed
        assert f"{name}={choice!r}" in str(error)
        return
    trainer.train()
    assert small.watch.steps == [1, 2, 3, 4]


def test_every_observation_is_of_an_argument_that_works():
    assert set(OBSERVATIONS) == set(answered("works", "works in part"))


# -- idle: accepted, and for several processes alone


@pytest.fixture
def launched(monkeypatch):
    """The variables of torchrun, for the second machine's first process unless told otherwise."""
    for name, value in {"RANK": 2, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    return monkeypatch


IDLE = {
    "average_tokens_across_devices": False,
    "ddp_backend": "gloo",
    "ddp_broadcast_buffers": True,
    "ddp_bucket_cap_mb": 10,
    "ddp_find_unused_parameters": True,
    "ddp_static_graph": True,
    "ddp_timeout": 60,
    "local_rank": 0,
    "log_level_replica": "error",
    "log_on_each_node": False,
    "save_on_each_node": True,
    "sharding": "stage3",
    "sharding_degree": 1,
    "fsdp_config": {"min_num_params": 100},
    "parallelism_config": {"tp_size": 1},
    "tensor_parallel_size": 1,
    "tensor_parallel_plan": {"layers.*.up": "colwise"},
    "sequence_parallel_size": 1,
    "expert_parallel_size": 1,
}


@pytest.mark.parametrize("name", answered("idle"))
def test_what_is_idle_is_called_so(name):
    row = next(line for line in page.render().splitlines() if line.startswith(f"| `{name}`"))
    assert "for several processes" in row.strip("| ").rpartition(" | ")[2]


def test_what_is_idle_leaves_one_process_as_it_is(tiny_run):
    assert set(IDLE) == set(answered("idle"))
    assert weights_of(tiny_run(**IDLE).train().model) == weights_of(tiny_run().train().model)


def test_what_is_idle_speaks_in_several_processes(launched):
    plain, changed = TrainingArguments("out"), TrainingArguments("out", **IDLE)
    assert (plain.should_log, changed.should_log) == (True, False)
    assert (plain.should_save, changed.should_save) == (False, True)
    assert (plain.ddp_timeout_delta.seconds, changed.ddp_timeout_delta.seconds) == (1800, 60)
    assert changed.get_process_log_level() == logging.ERROR
    launched.setenv("LOCAL_RANK", "1")
    launched.setenv("RANK", "3")
    assert TrainingArguments("out").local_rank == 1


# -- maps


def test_every_name_has_an_answer():
    """Of the seeds, of ARGUMENTS.md and of three releases of transformers."""
    for name in set().union(*LISTS.values()) - set(FIXED_ARGUMENTS):
        target = ALIASES[name].target if name in ALIASES else name
        assert target in declared(Seq2SeqTrainingArguments)


def test_every_other_spelling_is_tried():
    assert {pair[0] for pair in PAIRS} | {"device", "dataset_prefetch_factor"} == set(ALIASES)


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_what_maps_sets_the_other_and_reads_back(name, value, target, stored):
    """tests/arguments/test_aliases.py has the rest; here for the arguments of Seq2SeqTrainer."""
    args = Seq2SeqTrainingArguments("out", **{name: value})
    assert (getattr(args, name), getattr(args, target)) == (value, stored)


# -- refuses


@pytest.fixture
def bare(monkeypatch):
    """Whatever this machine has: the two local writers are installed, and nothing else that an argument asks for."""
    monkeypatch.setattr(packages, "installed", lambda name: name in ("tensorboard", "visualdl"))


@pytest.mark.parametrize(
    ("given", "words"), REFUSED, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_what_is_refused_is_so_when_the_arguments_meet_the_model(given, words, tiny_run, bare):
    if {"use_mps_device", "device"} & given.keys():
        given = {"device": None, **given}
    with pytest.raises(UnsupportedError) as caught:
        tiny_run(**given).trainer()
    where = [] if isinstance(caught.value, MissingPackageError) else ["torch", "cpu"]
    for word in [*words, *where, "Instead: "]:
        assert word in str(caught.value)


def test_every_argument_that_is_refused_is_tried():
    tried = {name for given, _ in REFUSED for name in given}
    assert set(answered("refuses", "later")) <= tried


def test_the_arguments_of_the_hub_are_refused_with_it(tiny_run, bare):
    hub = [name for name, whose in support.DEPENDENT_ARGUMENTS.items() if whose == "push_to_hub"]
    values = {"hub_model_id": "me/model", "hub_strategy": "end", "hub_token": "secret", "hub_private_repo": True}
    values |= {"hub_always_push": True, "hub_revision": "main"}
    assert set(hub) == set(values)
    with pytest.raises(UnsupportedError, match="push_to_hub=True") as caught:
        tiny_run(push_to_hub=True, **values).trainer()
    assert "secret" not in str(caught.value)


def test_the_lasting_refusals_are_a_closed_list():
    lasting = support.in_sections(*(section for section in Section if section < Section.FRAMEWORK))
    found = {
        (unsupported.argument, unsupported.value_text) for unsupported in lasting if unsupported.argument not in FOREIGN
    }
    of_packages = {(unsupported.argument, unsupported.value_text) for unsupported in lasting if unsupported.module}
    assert found - of_packages == {pair for pair in CLOSED if pair not in of_packages}
    assert found - CLOSED <= of_packages
    assert found >= CLOSED
    assert {
        unsupported.argument for unsupported in lasting if unsupported.argument not in {name for name, _ in found}
    } == FOREIGN
    assert not FOREIGN & (set(LISTS["seeds"]) | set(LISTS["specification"]))


def test_what_later_releases_bring_is_a_closed_list():
    assert {unsupported.argument for unsupported in NOT_YET} == LATER
    partly = {"report_to"}  # it refuses some of its values
    assert set(answered("later")) == LATER - partly
