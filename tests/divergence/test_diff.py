"""`oneloop diff`: what is named in pairs of runs, its hints, text, JSON and page."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oneloop
from oneloop import Trainer, TrainingArguments
from oneloop.cli.main import main
from oneloop.divergence import compare_runs, following
from oneloop.divergence.report import to_html, to_text
from oneloop.divergence.runs import read_mapping, read_run
from oneloop.errors import ArgumentError, CheckpointError, NonFiniteError
from oneloop.formats import digests, trace_file
from tests.backends.support import kit_module, names, rows
from tests.distributed import launch
from tests.divergence import faults, pairs, search
from tests.divergence.faults import Fault

SEED = 11
SLOW_ON = {"mindspore": pytest.mark.slow}
FEW = [
    Fault("missing bias", "blocks.1.attention.value"),
    Fault("other epsilon", "blocks.0.norm2"),
    Fault("unscaled scores", "blocks.1.attention"),
    Fault("scaled residual", "blocks.0"),
    Fault("dropout", "blocks.1.drop"),
    Fault("doubled gradient", "blocks.1.mlp.outer"),
    Fault("no gradient", "blocks.0.attention.key"),
    Fault("doubled gradient of a weight", "blocks.0.mlp.inner"),
    Fault("transposed weight", "blocks.1.attention.out"),
    Fault("stale buffer", "stats"),
    Fault("other order", ""),
    Fault("shuffled labels", ""),
    Fault("other clipping", ""),
    Fault("optimizer epsilon", ""),
    Fault("beta2", ""),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by framework, layout and fault, each trained once."""
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def run(framework="torch", layout="alone", fault=pairs.CLEAN, with_stats=None):
        key = framework, layout, fault, with_stats
        if key not in known:
            known[key] = pairs.train(folder / str(len(known)), framework, layout, SEED, fault, with_stats)
        return known[key]

    return run


@pytest.mark.parametrize("fault", FEW, ids=lambda fault: fault.name)
def test_a_fault_is_named(runs, fault):
    found = compare_runs(runs(), runs(fault=fault))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
    hint = faults.HINTS.get(fault.name, "")
    assert not hint or any(hint in each for each in found.first.hints), found.first.hints
    assert found.first.step == 0


def test_a_gradient_that_only_the_second_run_has_is_named(runs):
    fault = Fault("no gradient", "blocks.0.attention.key")
    found = compare_runs(runs(fault=fault), runs())
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
    assert "no gradient in A" in to_text(found) and any(
        "flows back from there in A" in each for each in found.first.hints
    )


@pytest.mark.parametrize("framework", [pytest.param(name, marks=SLOW_ON.get(name, ())) for name in names()])
def test_a_parameter_that_only_one_of_them_trains_is_named(runs, framework):
    """A weight that is frozen, or detached in the forward pass, and not the clipping that depends on all gradients."""
    plain = {"with_stats": False} if framework == "paddle" else {}
    for name in ("frozen weight", "detached weight"):
        fault = Fault(name, "blocks.1.mlp.inner")
        other = runs(framework, fault=fault)
        found = compare_runs(runs(**plain), other)
        assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
        assert found.first.what == "gradient of blocks.1.mlp.inner.weight, accumulated" and found.first.others == 0
        back = compare_runs(other, runs(**plain)).first
        assert (back.module, back.kind, back.what) == (found.first.module, found.first.kind, found.first.what)
        if name == "frozen weight":
            assert found.first.hints == ("blocks.1.mlp.inner.weight has no gradient in B: it is frozen or detached "
                                         "there, or the layer is made without it",)  # fmt: skip
            assert "has no gradient in A" in back.hints[0]


@pytest.mark.parametrize("framework", [pytest.param(name, marks=SLOW_ON.get(name, ())) for name in names()])
def test_a_step_that_ends_the_run_because_it_is_not_finite_is_recorded(runs, tmp_path, framework):
    fault = Fault("not finite", "blocks.1.mlp.act")
    with pytest.raises(NonFiniteError):
        pairs.train(tmp_path, framework, "alone", SEED, fault)
    found = compare_runs(runs(**({"with_stats": False} if framework == "paddle" else {})), tmp_path)
    assert (found.first.module, found.first.kind) == fault.expected and found.steps == [0], to_text(found)
    assert "0 and 2560 values that are not finite" in to_text(found) and not found.first.hints
    events = [json.loads(line)["event"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert events.count("traced") == 1


def test_a_lost_micro_batch_is_one_of_accumulation(runs):
    found = compare_runs(runs(layout="accumulated"), runs(layout="accumulated", fault=Fault("lost micro-batch", "")))
    assert (found.first.module, found.first.kind) == (faults.ALL, "accumulation"), to_text(found)
    assert any("part 1 of 2 is missing from the sum" in hint for hint in found.first.hints)


@pytest.mark.parametrize(("name", "module"), [("scaled loss", ""), ("sum as loss", "(loss)")])
def test_a_loss_of_micro_batches_is_wrong_in_the_model_or_after_it(runs, name, module):
    """The model's own is another one in every micro-batch: their mean is compared with the loss of the update."""
    found = compare_runs(runs(layout="accumulated"), runs(layout="accumulated", fault=Fault(name, "")))
    assert (found.first.module, found.first.kind) == (module, "activation"), to_text(found)
    found = compare_runs(runs(with_stats=False), runs(layout="accumulated", fault=Fault(name, "")))
    assert (found.first.module, found.first.kind) == (module, "activation"), to_text(found)
    factor = {"scaled loss": 2, "sum as loss": 4}[name]
    assert any(f"the loss of B is {factor} times that of A" in hint for hint in found.first.hints), found.first.hints


@pytest.mark.parametrize(
    "framework",
    [pytest.param(name, marks=SLOW_ON.get(name, ())) for name in names() if name != "torch"],
)
def test_ports_agree_and_a_wrong_one_is_found(runs, framework):
    plain = {"with_stats": False} if framework == "paddle" else {}
    found = compare_runs(runs(**plain), runs(framework))
    assert found.agrees, to_text(found)
    assert found.steps == [0, 1] and found.agreed["outputs of layers"] > 50 and not found.only[0]
    fault = Fault("missing bias", "blocks.0.mlp.outer")
    found = compare_runs(runs(**plain), runs(framework, fault=fault))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
    assert any("blocks.0.mlp.outer.bias is missing in B" in hint for hint in found.first.hints)


@pytest.mark.parametrize("layout", ["accumulated", "bf16", "fp16"])
def test_other_layouts_and_precisions_agree(runs, layout):
    own = runs(with_stats=False) if layout == "accumulated" else runs()
    for a, b in ((own, runs(layout=layout)), (runs(layout=layout), own)):
        found = compare_runs(a, b)
        assert found.agrees, to_text(found)


def test_rounding_that_was_not_measured_is_estimated(runs):
    """Of runs whose override may not be called again."""
    for a, b in (("torch", "rewritten"), ("rewritten", "torch")):
        found = compare_runs(runs(a, "overridden"), runs(b, "overridden"))
        assert found.agrees and "they are estimated" in found.notes[0], to_text(found)
    assert compare_runs(runs(), runs("rewritten", "overridden")).notes == found.notes
    fault = Fault("missing bias", "blocks.1.attention.value")
    found = compare_runs(runs("torch", "overridden"), runs("rewritten", "overridden", fault))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)


@pytest.mark.parametrize("optimizer", ["muon", "schedule_free"])
def test_rounding_of_other_optimizers(runs, optimizer):
    """Products of matrices in half precision, and an optimizer that writes to the gradients it is given."""
    if optimizer == "schedule_free":
        pytest.importorskip("schedulefree")
    found = compare_runs(runs(layout=optimizer), runs("rewritten", optimizer))
    assert found.agrees and found.agreed["updates"] == 2 * 40, to_text(found)


def test_a_layer_that_draws_random_numbers_of_its_own_is_a_difference(runs):
    """Though the noise that is measured there explains any."""
    fault = Fault("dice", "blocks.1.mlp.outer")
    found = compare_runs(runs(fault=fault), runs("rewritten", fault=fault))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)


def test_a_gradient_that_is_not_recorded_is_none_that_is_missing(runs, tmp_path):
    """Such as a sparse one: the weight changes in both runs."""
    a = runs()
    b = changed(a, tmp_path / "b", lambda each: None if each.key[:2] == ("gradient", "embed.weight") else each)
    assert compare_runs(a, b).agrees and compare_runs(b, a).agrees


@pytest.mark.parametrize("layout", ["bf16", "fp16"])
def test_half_precision_of_a_new_model_agrees(runs, layout):
    """Its logits are close to 0, and the gradient of the loss hardly depends on them: its own rounding is all there
    is."""
    found = compare_runs(*(runs("torch", each, pairs.SMALL, with_stats=False) for each in ("alone", layout)))
    assert found.agrees and found.steps == [0, 1], to_text(found)


def test_moments_of_a_few_values_are_as_uncertain_as_their_gradient(tmp_path):
    """Those of the bias of the head, which has five."""
    each = [pairs.train(tmp_path / layout, "torch", layout, 4014, pairs.SMALL) for layout in ("alone", "bf16")]
    found = compare_runs(*each)
    assert found.agrees and found.agreed["optimizer states"] == 2 * 80, to_text(found)


def test_the_first_layer_of_a_difference_may_be_near_rounding(tmp_path):
    """In bfloat16, a missing bias is 4.8 times as far as rounding there, and over the threshold one block later."""
    fault = Fault("missing bias", "blocks.0.mlp.inner")
    given = (("alone", pairs.CLEAN), ("bf16", fault))
    found = compare_runs(*(pairs.train(tmp_path / layout, "torch", layout, 4000, each) for layout, each in given))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
    assert 4 < found.first.pair.ratio < 6 and found.first.others > 0, "what follows is far apart"


def test_faults_under_a_loss_scale_are_named(runs):
    """Gradients are recorded without it."""
    half = {record.key: record for record in _traces(runs(layout="fp16"))[0].records}
    assert _traces(runs(layout="fp16"))[0].settings["loss_scale"] > 1
    for record in _traces(runs())[0].records:
        if record.kind.endswith("gradient") and record.norm > 1e-3:
            assert half[record.key].norm == pytest.approx(record.norm, rel=0.05), record.key
    for name in ("doubled gradient", "doubled gradient of a weight"):
        fault = Fault(name, "blocks.1.mlp.outer")
        found = compare_runs(runs(), runs(layout="fp16", fault=fault))
        assert (found.first.module, found.first.kind) == fault.expected, to_text(found)


def test_another_version_of_the_model_agrees(runs):
    """The same computations, written in another way."""
    found = compare_runs(runs(), runs("rewritten"))
    assert found.agrees and found.agreed["outputs of layers"] > 50, to_text(found)
    fault = Fault("unscaled scores", "blocks.1.attention")
    found = compare_runs(runs(), runs("rewritten", fault=fault))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)


def test_another_order_of_random_numbers_is_named(runs):
    fault = Fault("order of dropout", "blocks.1.drop")
    assert compare_runs(runs(layout="dropout"), runs("rewritten", "dropout")).agrees
    found = compare_runs(runs(layout="dropout"), runs("rewritten", "dropout", fault))
    assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
    assert any(faults.HINTS[fault.name] in hint for hint in found.first.hints), found.first.hints


def test_rounding_is_measured_and_not_a_constant(runs):
    """The same difference is found in float32, and explained by rounding in bfloat16."""
    fault = Fault("other weight", "head")
    assert not compare_runs(runs(), runs(fault=fault)).agrees
    ours = {record.key: record for record in _traces(runs())[0].records}
    half = {record.key: record for record in _traces(runs(layout="bf16"))[0].records}
    key = ("output", "head", "0", 0)
    assert half[key].rounding > 1000 * ours[key].rounding > 0


def _traces(folder):
    return read_run(folder)[0]


# -- several processes


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["dp2", "shard2", "tp2", "sp2"])
def test_faults_of_several_processes(tmp_path, pair):
    named, count, alarms, _, wrong, _ = search.search(pair, 8, 2, 5, tmp_path)
    assert named >= 7 and not alarms, wrong


@pytest.mark.slow
def test_an_activation_between_divided_layers_is_named(tmp_path, runs):
    """Its output has the features of its input, which the layer before has divided."""
    chosen = [pairs.CLEAN, Fault("other gelu", "blocks.0.mlp.act"), Fault("other gelu", "blocks.1.mlp.act")]
    search.run(tmp_path, "torch", "tp2", 2, [(fault, SEED) for fault in chosen])
    alone = runs(with_stats=False)
    found = compare_runs(alone, tmp_path / "0")
    assert found.agrees, to_text(found)
    shapes = [
        {record.key: record.shape for record in _traces(folder)[0].records if record.name == "blocks.0.mlp.act"}
        for folder in (alone, tmp_path / "0")
    ]
    assert shapes[0] == shapes[1] and len(shapes[0]) == 3, "an output, its gradient and that of the input"
    for number, fault in enumerate(chosen[1:], 1):
        found = compare_runs(alone, tmp_path / str(number))
        assert (found.first.module, found.first.kind) == fault.expected, to_text(found)


def test_two_processes_agree_with_one_and_a_missing_shard_is_named(tmp_path, runs):
    chosen = [pairs.CLEAN, Fault("missing shard", ""), Fault("no sum over processes", "")]
    search.run(tmp_path, "torch", "dp2", 2, [(fault, SEED) for fault in chosen])
    alone = runs(with_stats=False)
    found = compare_runs(alone, tmp_path / "0")
    assert found.agrees and found.steps == [0, 1], to_text(found)
    for number, fault in enumerate(chosen[1:], 1):
        found = compare_runs(alone, tmp_path / str(number))
        assert (found.first.module, found.first.kind) == fault.expected, to_text(found)
        assert any(faults.HINTS[fault.name] in hint for hint in found.first.hints), found.first.hints


def test_divided_sequences_agree_with_whole_ones(tmp_path, runs):
    """Eleven positions, of which one process has six and the other five."""
    chosen = [
        pairs.CLEAN,
        Fault("missing bias", "blocks.1.attention.value"),
        Fault("doubled gradient", "blocks.1.mlp.inner"),
        Fault("missing shard", ""),
    ]
    search.run(tmp_path, "sequence", "sp2", 2, [(fault, SEED) for fault in chosen])
    alone = runs("sequence")
    found = compare_runs(alone, tmp_path / "0")
    assert found.agrees and found.steps == [0, 1] and not found.only[0] and not found.only[1], to_text(found)
    first = [_traces(folder)[0] for folder in (alone, tmp_path / "0")]
    assert first[0].columns == first[1].columns and first[0].samples == first[1].samples, "of a batch that both have"
    whole, divided = ({record.key: record for record in trace.records} for trace in first)
    for kind in ("output", "output_gradient", "gradient"):
        every = [record for key, record in whole.items() if key[0] == kind and record.norm > 1e-6 and key in divided]
        assert len(every) > 20
        for record in every:
            other = divided[record.key]
            assert other.shape == record.shape, record.key
            assert other.norm == pytest.approx(record.norm, rel=1e-3), record.key
    for number, fault in enumerate(chosen[1:], 1):
        found = compare_runs(alone, tmp_path / str(number))
        module, kind = fault.expected
        assert (found.first.module.removeprefix("encoder."), found.first.kind) == (module, kind), to_text(found)


def test_a_mismatch_in_one_process_stops_all(tmp_path):
    """verify_steps under data parallelism, sharding and tensor parallelism."""
    layouts = ("dp2", "shard2", "tp2")
    launch.run(2, tmp_path, *layouts, script=Path(__file__).with_name("verify_job.py"))
    for found in launch.results(tmp_path, 2):
        for layout in layouts:
            clean, (steps, message) = found[layout]
            assert clean == [2, ""], f"{layout}: a run without a fault"
            assert steps == 1, "the update was not applied"
            assert "step 2: the gradients differ" in message and "in process 1" in message, f"{layout}: {message}"
            assert "in the output of blocks.1.mlp.act " in message, f"{layout}: {message}"
        assert found["warned"] == [[2, ""]]
    events = [json.loads(line) for line in (tmp_path / "warned" / "run.jsonl").read_text().splitlines()]
    (event,) = [each for each in events if each["event"] == "replay_mismatch"]
    assert (event["process"], event["module"], event["action"]) == (1, "blocks.1.mlp.act", "warn")


# -- the command


def test_text_json_and_page(runs, tmp_path, capsys):
    a, b = str(runs()), str(runs(fault=FEW[0]))
    page = tmp_path / "diff.html"
    assert main(["diff", a, b, "--html", str(page)]) == 1
    text = capsys.readouterr().out
    assert "First difference: step 0, activation, in blocks.1.attention.value (Linear)." in text
    assert "hint: blocks.1.attention.value.bias is missing in B" in text and "Agreed before it: 8 samples" in text
    assert "<script" not in page.read_text() and "blocks.1.attention.value" in page.read_text()
    assert main(["diff", a, b, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["first"]["module"], found["first"]["kind"]) == FEW[0].expected and found["steps"] == [0, 1]
    assert found["first"]["distance"] > found["first"]["rounding"] > 0
    assert main(["diff", a, a]) == 0
    assert "No difference in steps 0 to 1" in capsys.readouterr().out


def test_runs_are_compared_while_they_train(runs, tmp_path, monkeypatch, capsys):
    """Step by step as both write them; recordings of an earlier run in the directory are not compared."""
    a, b = tmp_path / "a", tmp_path / "b"
    other = changed(runs(), tmp_path / "other", lambda each: replace(each, norm=2 * each.norm, projections=[9.0] * 8)
                    if each.kind == "update" else each)  # fmt: skip
    earlier = changed(runs(fault=FEW[0]), tmp_path / "earlier", lambda each: each)

    def begins(folder, source):
        folder.mkdir(exist_ok=True)
        lines = (source / "run.jsonl").read_text().splitlines(keepends=True)
        (folder / "run.jsonl").write_text("".join(line for line in lines if json.loads(line)["event"] != "ended"))

    def records(folder, source, step):
        (folder / "trace").mkdir(parents=True, exist_ok=True)
        shutil.copy(trace_file.path_of(source, step), trace_file.path_of(folder, step))

    def train():
        yield records(b, earlier, 0)
        yield begins(a, runs()), begins(b, runs())
        yield records(a, runs(), 0)
        yield records(b, runs(), 0)
        yield capsys.readouterr().out
        yield records(a, runs(), 1), shutil.copy(runs() / "run.jsonl", a / "run.jsonl")  # it has ended
        yield records(b, other, 1)

    steps, said = train(), []
    capsys.readouterr()
    monkeypatch.setattr(following.time, "sleep", lambda seconds: said.append(next(steps)))
    assert main(["diff", str(a), str(b), "--follow", "--html", str(tmp_path / "diff.html")]) == 1
    assert said[4] == "No difference in step 0 beyond what rounding explains.\n" and next(steps, None) is None
    assert "First difference: step 1, update, in (all parameters)." in capsys.readouterr().out
    assert "First difference: step 1" in (tmp_path / "diff.html").read_text()
    for folder in (a, b):  # both are over
        shutil.copy(runs() / "run.jsonl", folder / "run.jsonl")
        shutil.copytree(runs() / "trace", folder / "trace", dirs_exist_ok=True)
    assert main(["diff", str(a), str(b), "--follow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == [0, 1]
    shutil.rmtree(b / "trace")
    assert main(["diff", str(a), str(b), "--follow"]) == 2 and "has no recording" in capsys.readouterr().err


def test_names_of_a_run_do_not_become_html(runs):
    found = compare_runs(runs(), runs(fault=FEW[0]))
    found.names = ("<b>", "&")
    assert "<b>" not in to_html(found) and "&lt;b&gt;" in to_html(found)


def test_what_cannot_be_compared(runs, tmp_path, capsys):
    a = runs()
    assert main(["diff", str(a), str(tmp_path)]) == 2
    assert "has no recording. Train with trace_steps" in capsys.readouterr().err
    other = tmp_path / "other"
    shutil.copytree(a / "trace", other / "trace")
    (other / "trace" / "step-000001.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="checksum"):
        compare_runs(a, other)
    (other / "trace" / "step-000001.json").unlink()
    (other / "trace" / "step-000000.json").rename(other / "trace" / "step-000005.json")
    with pytest.raises(CheckpointError, match="renamed"):
        compare_runs(a, other)
    assert main(["diff", str(a), str(a), "--map", "x"]) == 2
    assert "expected NAME_IN_A=NAME_IN_B" in capsys.readouterr().err


@pytest.mark.parametrize("newest", [0, 1])
def test_steps_of_an_earlier_run_in_the_directory_are_left_out(runs, tmp_path, newest):
    """The last run is that of the file that was written last, whichever step it has."""
    a, b = runs(), runs(fault=FEW[0])
    mixed = tmp_path / "mixed"
    (mixed / "trace").mkdir(parents=True)
    for step in (0, 1):
        target = mixed / "trace" / f"step-{step:06d}.json"
        shutil.copy((a if step == newest else b) / "trace" / target.name, target)
        os.utime(target, (2**31, 2**31 - (step != newest)))
    found = compare_runs(a, mixed)
    assert found.agrees and found.steps == [newest] and "recorded by another run" in found.notes[0]
    assert "recorded by another run" in to_text(found)


# -- in one process, and names


def _trainer(kit, folder, model=None, **given):
    options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "device": "cpu", "max_steps": 9}
    args = TrainingArguments(str(folder), per_device_train_batch_size=8, **options | given)
    return Trainer(model or kit.classifier(), args, train_dataset=rows(24))


@pytest.mark.parametrize("framework", [name for name in names() if name != "mindspore"])
def test_two_trainers_in_one_process(tmp_path, framework):
    kits = [kit_module(name).Kit() for name in ("torch", framework)]
    a, b = (_trainer(kit, tmp_path / name) for kit, name in zip(kits, "ab", strict=True))
    before = [kit.weights(trainer.model) for kit, trainer in zip(kits, (a, b), strict=True)]
    found = oneloop.diff(a, b, steps=2)
    assert found.agrees and found.steps == [0, 1], to_text(found)
    b = _trainer(kits[1], tmp_path / "c", learning_rate=1e-4)
    found = oneloop.diff(a, b)
    assert (found.first.module, found.first.kind) == (faults.ALL, "update")
    after = kits[0].weights(a.model)
    assert all(np.array_equal(before[0][name], after[name]) for name in after), "weights are restored"
    assert a.args.output_dir == str(tmp_path / "a") and not (tmp_path / "a" / "trace").exists()
    with pytest.raises(ArgumentError, match="same one twice"):
        oneloop.diff(a, a)


@pytest.mark.slow
def test_a_port_to_mindspore_in_one_process(tmp_path):
    """In an interpreter of its own: MindSpore cannot be imported after Paddle."""
    if "mindspore" not in names():
        pytest.skip("MindSpore is not installed")
    code = """
import sys, oneloop
from pathlib import Path
from tests.backends.support import kit_module
from tests.divergence.test_diff import _trainer
kits = [kit_module(name).Kit() for name in ("torch", "mindspore")]
folder = Path(sys.argv[1])
a, b = (_trainer(kit, folder / name) for kit, name in zip(kits, "ab"))
found = oneloop.diff(a, b, steps=2)
assert found.agrees and found.steps == [0, 1] and found.agreed["outputs of layers"] > 2, found
other = oneloop.diff(a, _trainer(kits[1], folder / "c", learning_rate=1e-4))
assert (other.first.module, other.first.kind) == ("(all parameters)", "update"), other
"""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def changed(run, folder, change):
    """A copy of the recordings of a run, with other records."""
    for step in (0, 1):
        trace = trace_file.read(trace_file.path_of(run, step), digests.VERSION)
        trace.records = [record for record in map(change, trace.records) if record is not None]
        trace_file.write(folder, trace, digests.VERSION)
    return folder


def test_hints_that_follow_from_the_records(runs, tmp_path):
    """A factor of a weight, a constant buffer that differs, a layer that is called again, and a loss."""
    a, number = runs(), iter(range(9))

    def hints(change):
        return compare_runs(a, changed(a, tmp_path / str(next(number)), change)).first.hints

    def scaled(kind, name, factor, item="", **given):
        def change(each):
            if (each.kind, each.name) != (kind, name) or item not in each.item:
                return each
            values = [value * factor for value in each.projections]
            return replace(each, projections=values, norm=each.norm * factor, **given)

        return change

    def inside(each):
        return replace(each, name=each.name.replace("attention.value.bias", "attention.bias"))

    both = (changed(run, tmp_path / run.name, inside) for run in (a, runs(fault=FEW[0])))
    assert "blocks.1.attention.bias is missing in B" in compare_runs(*both).first.hints, "of the layer around"
    assert hints(scaled("weight", "head.weight", 1.01)) == ("B has 1.01 times the values of A",)
    assert hints(scaled("output", "", 8, item="loss"))[0].startswith("the loss of B is 8 times that of A: the loss is ")
    assert hints(scaled("gradient", "head.weight", 0)) == ("it is zero in B: a tensor is detached, or not used",)
    assert hints(scaled("gradient", "head.weight", 0.02)) == ("B has 0.02 times the values of A",)
    noisy = [1.55 + 0.01 * i for i in range(8)]
    assert hints(lambda each: replace(each, projections=noisy, norm=0.02) if each.name == "head.weight" and
                 each.kind == "gradient" else each) == (), "another direction is no factor"  # fmt: skip
    assert hints(scaled("output", "", 1.0137, item="loss")) == (), "some factor fits any two numbers"
    both = scaled("buffer", "stats.running_mean", 0.5), scaled("buffer_after", "stats.running_mean", 0.5)
    assert all("was not updated" not in hint for hint in hints(lambda each: both[1](both[0](each))))
    first, again = scaled("output", "blocks.1.mlp.inner", 1.5), scaled("output", "norm", 1, call=1)
    assert "norm is called once in A, 2 times in B" in hints(lambda each: again(first(each)))


def test_hints_on_the_order_of_the_data(runs, tmp_path):
    """The same samples in other steps, or some of them."""
    a, folder = runs(), tmp_path / "turned"
    for step in (0, 1):
        trace, other = (trace_file.read(trace_file.path_of(a, each), digests.VERSION) for each in (step, 1 - step))
        trace.samples, trace.columns = other.samples, other.columns
        trace_file.write(folder, trace, digests.VERSION)
    (hint,) = compare_runs(a, folder).first.hints
    assert hint == "the data is in another order: over all recorded steps the samples are the same"
    (hint,) = compare_runs(a, runs(fault=Fault("other order", ""))).first.hints
    assert hint == "the data is in another order: some samples are in both runs, in other steps"


def test_other_names_are_listed_and_mapped(runs, tmp_path):
    """The blocks are called layers in the other run."""
    a = runs()
    b = changed(a, tmp_path / "b", lambda each: replace(each, name=each.name.replace("blocks.", "layers.")))
    found = compare_runs(a, b)
    assert found.agrees and "blocks.0.norm1.weight" in found.only[0] and "layers.0.norm1.weight" in found.only[1]
    text = to_text(found)
    assert "No difference in what both have in steps 0 to 1" in text and "Only in B, and not compared: layers" in text
    assert "Only in B, and not compared" in to_html(found)
    kernel = changed(a, tmp_path / "kernel", lambda each: replace(each, name=each.name.replace("d.weight", "d.kernel")))
    found = compare_runs(a, kernel)
    assert found.agrees and found.only == (["embed.weight", "head.weight"], ["embed.kernel", "head.kernel"])
    mapped = compare_runs(a, b, {"blocks": "layers"})
    assert mapped.agrees and mapped.only == ([], []) and mapped.agreed["weights"] == 2 * 40
    assert not mapped.notes and "No difference in steps 0 to 1" in to_text(mapped)
    wrong = compare_runs(a, b, {"block": "layers"})
    assert wrong.notes == ["The mapping has block, which is no name in A, nor the beginning of one."]
    assert "which is no name in B" in to_text(compare_runs(a, b, {"blocks": "layer"}))
    first = changed(
        b, tmp_path / "first", lambda each: replace(each, name=each.name.replace("layers.0", "layers.first"))
    )
    assert compare_runs(a, first, {"blocks": "layers", "blocks.0": "layers.first"}).only == ([], [])
    with pytest.raises(ArgumentError, match="two of B the name head"):
        compare_runs(a, b, {"head": "norm"})
    with pytest.raises(CheckpointError, match=r"nothing was compared.*A has embed\..*B has model\.embed\."):
        compare_runs(a, changed(a, tmp_path / "c", lambda each: replace(each, name=f"model.{each.name}")))
    path = tmp_path / "names.json"
    path.write_text('{"blocks.0": "layers.0", "blocks.1": "layers.1"}')
    assert compare_runs(a, b, read_mapping([str(path)])).only == ([], [])
