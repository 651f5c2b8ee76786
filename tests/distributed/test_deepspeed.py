"""DeepSpeed's ZeRO stages where the package is there, and its configuration and the layout of its state everywhere."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from oneloop.arguments.packages import installed
from oneloop.backends.torch import weights, zero, zero_config, zero_state
from oneloop.errors import ArgumentError, CheckpointError, MissingPackageError, UnsupportedError
from tests.distributed.launch import results, run_launched
from tests.distributed.test_sharding import difference

JOB = Path(__file__).with_name("deepspeed_job.py")
LAYOUTS = Path(__file__).with_name("layouts_job.py")
STAGES = ("stage0", "stage1", "stage2", "stage3")
with_deepspeed = pytest.mark.skipif(not installed("deepspeed"), reason="needs deepspeed: bash scripts/deepspeed")


def arguments(**given):
    usual = {"train_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 2, "max_grad_norm": 0.5}
    usual |= {"learning_rate": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_epsilon": 1e-8, "weight_decay": 0.1}
    usual |= {"optim": "adamw_torch", "lr_scheduler_type": "linear", "fp16": False, "bf16": False}
    return SimpleNamespace(**usual | {"device": SimpleNamespace(type="cpu")} | given)


def test_without_the_package():
    if not installed("deepspeed"):
        with pytest.raises(MissingPackageError, match="pip install deepspeed"):
            zero.package(arguments())


# -- libraries that prepare models with the engine of the Trainer

REFERENCE = Path(__file__).with_name("reference_job.py")
TRAINERS = ("DPO", "KTO", "GRPO")


def with_reference(folder, engine, processes, *trainers):
    from tests.ecosystem import tiny

    (folder / "model").mkdir(parents=True)
    tiny.save(tiny.causal(), folder / "model")
    run_launched(processes, folder, engine, *trainers, script=REFERENCE)
    return results(folder, processes)


@with_deepspeed
@pytest.mark.slow
def test_reference_models_of_trl_are_prepared_by_deepspeed(tmp_path):
    pytest.importorskip("trl")
    (alone,) = with_reference(tmp_path / "alone", "none", 1, *TRAINERS)
    found = {stage: with_reference(tmp_path / str(stage), f"zero{stage}", 2, *TRAINERS) for stage in (2, 3)}
    for stage, processes in found.items():
        for each in processes:
            for name in TRAINERS:
                run = each[name]
                assert (run["flags"], run["type"], run["stage"]) == ([True, False], "DEEPSPEED", stage)
                assert (run["reference"], run["engine"], run["wrapped"]) == ("DeepSpeedEngine", "DeepSpeedEngine", True)
                # GRPO draws its texts in each process, so on two of them they are others, at every stage the same.
                expected = alone[name] if name != "GRPO" else found[2][0][name]
                assert difference(run["losses"], expected["losses"]) <= 1e-5
    assert (
        alone["DPO"]["flags"] == [False, False]
        and alone["DPO"]["stage"] is None
        and alone["DPO"]["engine"] == "NoneType"
    )


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stage2", "stage3"])
def test_reference_models_of_trl_are_sharded_by_fsdp(stage, tmp_path):
    pytest.importorskip("trl")
    (alone,) = with_reference(tmp_path / "alone", "none", 1, "DPO", "KTO")
    for each in with_reference(tmp_path / "two", stage, 2, "DPO", "KTO"):
        for name, run in each.items():
            assert (run["flags"], run["type"], run["stage"]) == ([False, True], "FSDP", None)
            assert difference(run["losses"], alone[name]["losses"]) <= 1e-5
            assert run["reference"].startswith("FSDP") and run["wrapped"] and run["engine"] == "NoneType"
            if stage == "stage3":
                assert run["here"] <= 0.6 * alone[name]["here"]


# -- runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Where runs of one, two and four processes are, and what each case on two found, by rank."""
    folder = tmp_path_factory.mktemp("deepspeed")
    for size, cases in {2: ("stages", "resumed", "halves"), 1: ("stages", "left"), 4: ("on_more",)}.items():
        (folder / str(size)).mkdir()
        run_launched(size, folder / str(size), *cases, script=JOB)
    (folder / "later").mkdir()
    run_launched(2, folder / "later", "returned", script=JOB)
    return folder


@with_deepspeed
def test_stages_have_the_losses_of_one_process(runs):
    alone = results(runs / "1", 1)[0]["stages"]["alone"]
    for each in results(runs / "2", 2):
        for stage in STAGES:
            found = each["stages"][stage]
            assert difference(found["losses"], alone["losses"]) <= 1e-5
            assert abs(found["evaluated"] - alone["evaluated"]) <= 1e-5
            assert None not in found["norms"]
            assert "model.safetensors" in found["files"]


@with_deepspeed
@pytest.mark.parametrize("case", ["resumed", "halves"])
def test_a_resumed_run_ends_with_the_same_bytes(runs, case):
    expected = STAGES if case == "resumed" else [f"{kind}-{stage}" for kind in ("bf16", "fp16") for stage in STAGES]
    for each in results(runs / "2", 2):
        assert list(each[case]) == list(expected)
        for name, found in each[case].items():
            straight, resumed = found["bytes"]
            assert resumed == straight, name
            assert found["continued"] == found["losses"][3:], name


@with_deepspeed
def test_half_precision_follows_float32(runs):
    """bf16 has three digits. Updates that overflow in fp16 are skipped."""
    found = results(runs / "2", 2)[0]
    expected = found["resumed"]["stage2"]["losses"]
    for stage in STAGES:
        assert difference(found["halves"][f"bf16-{stage}"]["losses"], expected) <= 0.02
    for stage in STAGES:
        half = found["halves"][f"fp16-{stage}"]
        engine = half["bytes"][0]["run"]["engine"]
        assert engine["scaler"]["deepspeed"]["cur_iter"] == 6
        assert engine["skipped"] == half["norms"].count(float("inf")) >= 1
        assert half["losses"][-1] < half["losses"][0] - 1


@with_deepspeed
def test_on_another_number_of_processes(runs):
    before, after = results(runs / "2", 2)[0], results(runs / "4", 4)[0]["on_more"]
    for name, losses in after.items():
        straight = before["resumed" if name in STAGES else "halves"][name]["losses"][3:]
        assert len(losses) == 3
        assert difference(losses, straight) <= 1e-6, name


@with_deepspeed
def test_a_run_leaves_deepspeed_and_comes_back(runs):
    """Stage 2 on two processes, then one process without DeepSpeed, then stage 3."""
    straight = results(runs / "2", 2)[0]["resumed"]["stage2"]["losses"]
    assert difference(results(runs / "1", 1)[0]["left"], straight[3:]) <= 1e-6
    assert difference(results(runs / "later", 2)[0]["returned"], straight[4:]) <= 1e-6


@with_deepspeed
def test_every_layout_goes_on_from_deepspeed(tmp_path):
    """From stages 2 and 3 on two processes to divided layers, sequences and weights, and to one process."""
    pytest.importorskip("transformers")
    for size in (1, 2, 4):
        (tmp_path / str(size)).mkdir()
    run_launched(2, tmp_path / "2", "of_deepspeed", script=LAYOUTS)
    stored = results(tmp_path / "2", 2)[0]["of_deepspeed"]
    layouts = set()
    for size, cases in {1: ("crossed",), 2: ("crossed", "crossed_whole"), 4: ("crossed", "crossed_whole")}.items():
        run_launched(size, tmp_path / str(size), *cases, script=LAYOUTS)
        for each in results(tmp_path / str(size), size):
            for layout, found in [pair for case in cases for pair in each[case].items()]:
                layouts.add(layout)
                assert found.keys() == stored.keys()
                for stage, losses in found.items():
                    assert len(losses) == 3
                    assert difference(losses, stored[stage][3:]) <= 1e-5, (layout, stage)
    assert len(layouts) == 11


@with_deepspeed
def test_models_of_other_makes(tmp_path):
    """zero.Init, LoRA, compiled models, and the best model."""
    for size, cases in {1: ("models",), 2: ("models", "best", "refused")}.items():
        (tmp_path / str(size)).mkdir()
        run_launched(size, tmp_path / str(size), *cases, script=JOB)
    alone = results(tmp_path / "1", 1)[0]["models"]["lora"]["losses"]
    for each in results(tmp_path / "2", 2):
        for name, found in each["models"].items():
            straight, resumed = found["bytes"]
            assert resumed == straight, name
        for stage in ("stage2", "stage3"):
            assert difference(each["models"][f"lora-{stage}"]["losses"], alone) <= 1e-5
            assert "adapter_model.safetensors" in each["models"][f"lora-{stage}"]["files"]
        assert difference(each["models"]["init"]["losses"], each["models"]["compiled-stage3"]["losses"]) <= 1e-5
        assert "only once" in each["refused"]["twice"]
        assert "zero.Init" in each["refused"]["early"]
        lost = {name: said for name, said in each["refused"].items() if "steep" in name}
        assert len(lost) == 8
        assert all(said.startswith("NonFiniteError") for said in lost.values())
    # The others may have looked before the main process had written the model.
    for name, found in results(tmp_path / "2", 2)[0]["best"].items():
        assert found["saved"] == found["third"] != found["sixth"], name


@with_deepspeed
def test_killed_and_resumed(tmp_path):
    """SIGKILL to the main process at stage 2, to the other at stage 3."""
    for case in ("killing2", "killing3"):
        run_launched(2, tmp_path, case, script=JOB, status=1)
    run_launched(2, tmp_path, "after_kill", script=JOB)
    for each in results(tmp_path, 2):
        for stage in ("stage2", "stage3"):
            found = each["after_kill"][stage]
            assert found["before"] and "checkpoint-6" not in found["before"]
            killed, unbroken = found["bytes"]
            assert killed == unbroken


# -- its configuration


def test_auto_is_filled_from_the_arguments():
    given = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.99]}},
        "bf16": {"enabled": "auto"},
    }
    found = zero_config.filled(given, arguments())
    assert found["train_micro_batch_size_per_gpu"] == 4
    assert found["gradient_accumulation_steps"] == 2
    assert found["train_batch_size"] == 16
    assert found["gradient_clipping"] == 0.5
    assert not {"optimizer", "bf16", "fp16"} & found.keys()
    assert zero_config.finished(found, torch.nn.Linear(1, 1))["zero_optimization"] == {"stage": 2, "overlap_comm": True}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (SimpleNamespace(hidden_size=100), 100),
        (SimpleNamespace(hidden_sizes=[10, 30]), 30),
        (SimpleNamespace(text_config=SimpleNamespace(hidden_size=20)), 20),
    ],
)
def test_auto_is_filled_from_the_model(config, size):
    keys = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    model = SimpleNamespace(config=config)
    found = zero_config.finished({"zero_optimization": {"stage": 3} | dict.fromkeys(keys, "auto")}, model)
    assert [found["zero_optimization"][key] for key in keys] == [size**2, int(0.9 * size**2), 10 * size]
    kept = {"zero_optimization": {"stage": 3, "reduce_bucket_size": 7}}
    assert zero_config.finished(kept, model) == kept


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_half_precision_is_filled(kind):
    for given in ({}, {kind: {"enabled": "auto"}}, {kind: {"enabled": True}}):
        found = zero_config.filled(given, arguments(**{kind: True}))
        assert found[kind]["enabled"] is True
        assert zero_config.half(found) == kind
    assert zero_config.filled({"fp16": {"enabled": "auto", "initial_scale_power": 4}}, arguments(fp16=True))[
        "fp16"
    ] == {
        "enabled": True,
        "initial_scale_power": 4,
    }
    with pytest.raises(ArgumentError, match=f"{kind}.enabled is True there and {kind} is False here"):
        zero_config.filled({kind: {"enabled": True}}, arguments())
    cast = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    found = zero_config.filled(cast, arguments(bf16=True))
    assert zero_config.half(found) is None
    assert zero_config.autocast(found) == "bf16"


def test_what_contradicts_the_arguments_is_listed():
    given = {"train_batch_size": 7, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}
    with pytest.raises(
        ArgumentError, match=r"train_batch_size is 7 there and 16 here; gradient_clipping is 1.0 .* optimizer.params.lr"
    ):
        zero_config.filled(given, arguments())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": {"type": "AdamW", "params": {"freeze_step": 3}}}, "sets freeze_step"),
        ({"optimizer": {"type": "Lamb", "params": {"lr": "auto"}}}, "Lamb"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}}, "lr_scheduler_type"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "on a CPU it is there"),
        ({"managed_gradient_accumulation": False}, "the loop announces it"),
        ({"tensor_parallel": {"autotp_size": 2}}, "autotp_size"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 2}}, "mics_shard_size"),
    ],
)
def test_what_is_not_driven_is_refused(given, words):
    with pytest.raises(UnsupportedError, match=words):
        zero_config.filled(given, arguments())


def test_a_schedule_of_deepspeed_is_left_to_the_arguments(caplog):
    zero_config.filled({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto"}}}, arguments())
    assert "WarmupDecayLR" in caplog.text
    assert "lr_scheduler_type=linear" in caplog.text


def test_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"zero_optimization": {"stage": 1}}')
    assert zero_config.read(str(path)) == {"zero_optimization": {"stage": 1}}
    with pytest.raises(ArgumentError, match="cannot be read"):
        zero_config.read(str(tmp_path / "none.json"))


# -- the layout of its state, with the optimizer of stage 0, which needs no process group


class Copies:
    """As DeepSpeed's optimizer for half precision without ZeRO: it updates a float32 copy of each parameter."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.fp16_groups = [list(group["params"]) for group in optimizer.param_groups]
        self.fp32_groups = [[p.detach().float().requires_grad_() for p in group] for group in self.fp16_groups]
        for group, copies in zip(optimizer.param_groups, self.fp32_groups):
            group["params"] = copies

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def optimizer_for(net, cls=torch.optim.AdamW, **options):
    decayed = [p for p in net.parameters() if p.dim() > 1]
    rest = [p for p in net.parameters() if p.dim() == 1]
    return cls([{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.05, **options)


def step(parameters, optimizer, seed):
    torch.manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape)
    optimizer.step()


def sharded(net, optimizer):
    names = weights.optimizer_names(optimizer, net)
    groups = [[(names[id(p)], p) for p in group["params"]] for group in optimizer.param_groups]
    package = SimpleNamespace(utils=None, comm=SimpleNamespace(get_rank=None))
    return zero_state.ShardedState(package, Copies(optimizer), groups)


def test_the_state_has_the_names_and_the_layout_of_a_plain_run():
    plain_model, other = model(), model()
    plain = optimizer_for(plain_model)
    own = sharded(other, optimizer_for(other))
    step([p for g in plain.param_groups for p in g["params"]], plain, 3)
    step(_copies(own), own.optimizer.optimizer, 3)
    expected_tensors, expected = weights.optimizer_state(plain, plain_model)
    tensors, data = own.state(lambda name: True)
    assert data == expected
    assert tensors.keys() == expected_tensors.keys()
    assert all(torch.equal(tensors[name], expected_tensors[name]) for name in tensors)
    assert own.state(lambda name: name == "0.bias")[0].keys() == {"0.bias:exp_avg", "0.bias:exp_avg_sq", "0.bias:step"}


def _copies(own):
    return [p for group in own.optimizer.param_groups for p in group["params"]]


def test_the_state_of_a_plain_run_is_taken_over():
    net, other = model(), model()
    plain = optimizer_for(net)
    step([p for g in plain.param_groups for p in g["params"]], plain, 3)
    tensors, data = weights.optimizer_state(plain, net)
    data["groups"][0]["lr"] = 0.01
    own = sharded(other, optimizer_for(other))
    own.load(tensors, data, "there")
    own.set_float32({name: p.detach() for name, p in net.named_parameters()})
    assert own.optimizer.param_groups[0]["lr"] == 0.01
    plain.param_groups[0]["lr"] = 0.01
    step([p for g in plain.param_groups for p in g["params"]], plain, 4)
    step(_copies(own), own.optimizer.optimizer, 4)
    exact = own.float32(lambda name: True)
    assert all(torch.equal(exact[name], p) for name, p in net.named_parameters())


def test_a_state_that_does_not_fit_is_refused():
    net = model()
    plain = optimizer_for(net)
    step([p for g in plain.param_groups for p in g["params"]], plain, 3)
    tensors, data = weights.optimizer_state(plain, net)
    own = sharded(net, optimizer_for(net, torch.optim.SGD))
    with pytest.raises(CheckpointError, match="AdamW"):
        own.load(tensors, data, "there")
    own = sharded(net, optimizer_for(net))
    with pytest.raises(CheckpointError, match="0.weight:exp_avg"):
        own.load(tensors | {"0.weight:exp_avg": torch.zeros(2)}, data, "there")


def test_a_part_is_padded():
    value = torch.arange(5.0).reshape(5, 1)
    assert zero_state._padded_shard(value, 3, 0).tolist() == [0.0, 1.0, 2.0]
    assert zero_state._padded_shard(value, 3, 1).tolist() == [3.0, 4.0, 0.0]
    assert zero_state._padded_shard(value, 3, 2).tolist() == [0.0, 0.0, 0.0]


def test_the_loss_scale_is_that_of_either_writer():
    def optimizer():
        counts = {"cur_scale": 1024.0, "cur_iter": 7, "last_overflow_iter": 3, "cur_hysteresis": 2, "scale_window": 100}
        return SimpleNamespace(loss_scaler=SimpleNamespace(**counts))

    state = zero_state.scaler_state(optimizer())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.load_state_dict(state)
    assert scaler.get_scale() == 1024.0
    assert state["_growth_tracker"] == 3  # updates since the last overflow
    own = optimizer()
    own.loss_scaler.cur_scale, own.loss_scaler.cur_hysteresis = 2.0, 1
    zero_state.load_scaler(own, state)
    assert vars(own.loss_scaler) == vars(optimizer().loss_scaler)
    zero_state.load_scaler(own, {"scale": 64.0, "_growth_tracker": 5})
    assert (own.loss_scaler.cur_scale, own.loss_scaler.cur_iter, own.loss_scaler.last_overflow_iter) == (64.0, 5, -1)
