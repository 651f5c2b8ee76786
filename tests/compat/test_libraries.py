"""What compat tells the core of other libraries' objects, without which it treats them like any others."""

import oneloop.public  # noqa: F401
from oneloop import libraries
from oneloop.data.process_sharding import is_prepared


def test_what_is_known():
    assert {"transformers", "mindnlp"} == libraries.MODELS and {"transformers"} == libraries.PACKED_BY_POSITIONS
    assert {"transformers", "accelerate", "peft", "paddlenlp", "mindnlp"} <= set(libraries.RECORDED)
    assert len(set(libraries.RECORDED)) == len(libraries.RECORDED)


def test_a_prepared_loader_is_recognised_by_its_module():
    assert is_prepared(type("DataLoaderShard", (), {"__module__": "accelerate.data_loader"})())
    assert not is_prepared(type("DataLoader", (), {"__module__": "torch.utils.data"})())


def test_the_state_of_another_adafactor():
    shapes = libraries.OPTIMIZER_STATES["transformers.optimization.Adafactor"]
    matrix = {"step": None, "RMS": None, "exp_avg_sq_row": (2, 3), "exp_avg_sq_col": (2, 4)}
    assert shapes((2, 3, 4), {"beta1": None}) == matrix
    assert shapes((5,), {"beta1": 0.0}) == {"step": None, "RMS": None, "exp_avg_sq": (5,), "exp_avg": (5,)}
