"""What sharding refuses before anything is divided."""

from types import SimpleNamespace

import pytest
import torch

from oneloop.backends.torch import sharding, wrap_policy
from oneloop.checkpoint import from_other_trainers
from oneloop.checkpoint.reader import Checkpoint
from oneloop.errors import UnsupportedError
from tests.backends.torch.test_adapters import KIT, adapted


def test_an_adapter_on_quantized_weights_is_not_divided():
    model = adapted("mine")
    sharding._check(model)
    model.get_base_model().is_quantized = True
    with pytest.raises(UnsupportedError, match="the base model is quantized.*sharding='stage1'"):
        sharding._check(model)


def test_an_adapter_whose_files_are_computed_is_not_divided():
    peft = pytest.importorskip("peft")
    sizes = {"r": 2, "num_vectors": 8, "vector_length": 1, "topk": 1, "target_modules": ["hidden"]}
    for saves_less in (False, True):
        config = peft.VBLoRAConfig(save_only_topk_weights=saves_less, **sizes)
        model = peft.get_peft_model(KIT.classifier(), config)
        if not saves_less:
            sharding._check(model)
            continue
        with pytest.raises(
            UnsupportedError, match="PEFT computes what it stores of a VBLORA adapter.*sharding='stage1'"
        ):
            sharding._check(model)


def test_trainable_parameters_of_several_types_are_not_divided():
    """FSDP2 would find out in the first forward pass."""
    model = adapted("mine")
    layer = model.get_base_model().head.requires_grad_(True).to(torch.bfloat16)
    wrap_policy.check_types(model, [layer], set())
    wrap_policy.check_types(model, [], set(layer.parameters()))
    with pytest.raises(UnsupportedError, match=r"several types: float32 \(.*lora_A.*\) and bfloat16 \(.*head.weight\)"):
        wrap_policy.check_types(model, [], set())
    layer.requires_grad_(False)
    wrap_policy.check_types(model, [], set())


def test_a_checkpoint_of_transformers_is_not_divided_where_it_is_read_whole(tmp_path):
    """On PyTorch it is divided: tests/checkpoint/test_transformers_checkpoint.py."""
    backend = SimpleNamespace(NAME="paddle", external_checkpoint=SimpleNamespace(LOADS_SHARDED=False))
    core = SimpleNamespace(trainer=None, backend=backend, strategy=SimpleNamespace(is_sharded=True))
    with pytest.raises(UnsupportedError, match="for one step without sharding"):
        from_other_trainers.load_run(SimpleNamespace(core=core), Checkpoint(tmp_path))


def test_an_optimizer_with_modes_is_not_divided():
    schedulefree = pytest.importorskip("schedulefree")
    strategy = sharding.ShardedOptimizerStrategy.__new__(sharding.ShardedOptimizerStrategy)
    groups = [{"params": list(KIT.classifier().parameters())}]
    with pytest.raises(UnsupportedError, match="AdamWScheduleFree evaluates other weights than it trains.*stage1"):
        strategy.build_optimizer(schedulefree.AdamWScheduleFree, groups, {})
