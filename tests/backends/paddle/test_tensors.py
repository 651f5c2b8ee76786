"""Tensors out of arrays."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from oneloop import Trainer, TrainingArguments  # noqa: E402
from oneloop.backends.paddle import tensors  # noqa: E402
from oneloop.errors import DataError  # noqa: E402

# A compiled model lets go of its inputs in threads of its executor, while the next inputs are made in this one.
FREED_ELSEWHERE = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import numpy as np, paddle
from oneloop.backends.paddle.tensors import from_numpy
model = paddle.jit.to_static(paddle.nn.Sequential(*(paddle.nn.Linear(8, 8) for _ in range(20))))
model.eval()
with paddle.no_grad():
    for _ in range(800):
        model(from_numpy(np.ones((4, 8), "float32")))
        [from_numpy(np.ones((4, 8), "float32")) for _ in range(20)]
print("done")
"""


def test_inputs_that_an_executor_frees_stop_nothing():
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", FREED_ELSEWHERE],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.endswith("done\n"), done.stderr[-4000:]


def test_an_array_is_shared_and_lives_as_long_as_its_tensor():
    array = np.zeros((2, 3), "float32")
    tensor = tensors.from_numpy(array)
    array[1, 2] = 7
    del array
    assert tensor.numpy().tolist() == [[0, 0, 0], [0, 0, 7]]
    assert tensor.stop_gradient and tensor.place.is_cpu_place()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_kinds_and_shapes_stay(kind, shape):
    tensor = tensors.from_numpy(np.ones(shape, kind))
    assert (str(tensor.dtype), tuple(tensor.shape)) == (f"paddle.{kind}", shape)
    assert tensor.numpy().tolist() == np.ones(shape, kind).tolist()


@pytest.mark.parametrize(("kind", "signed"), [("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64")])
def test_unsigned_integers_keep_their_values(kind, signed):
    """Paddle would read the bits of uint16 as bfloat16, and knows no larger ones."""
    largest = min(np.iinfo(kind).max, np.iinfo("int64").max)
    tensor = tensors.from_numpy(np.array([0, 5, largest], kind))
    assert tensor.dtype == getattr(paddle, signed)
    assert tensor.numpy().tolist() == [0, 5, largest]


def test_an_integer_that_paddle_does_not_have_is_an_error():
    with pytest.raises(DataError, match="not support integers as large as 18446744073709551615"):
        tensors.from_numpy(np.array([1, 2**64 - 1], "uint64"))


def test_ids_of_two_bytes_train_a_model(tmp_path):
    """As they lie in files of tokens."""

    class Model(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.words, self.head = paddle.nn.Embedding(9, 4), paddle.nn.Linear(4, 2)

        def forward(self, input_ids, labels):
            return {"loss": paddle.nn.functional.cross_entropy(self.head(self.words(input_ids).mean(1)), labels)}

    data = [{"input_ids": np.arange(3, dtype="uint16") + k, "labels": k % 2} for k in range(6)]
    losses = []
    for kind in ("uint16", "int64"):
        paddle.seed(0)
        args = TrainingArguments(str(tmp_path / kind), report_to="none", save_strategy="no", device="cpu", max_steps=3)
        rows = [row | {"input_ids": row["input_ids"].astype(kind)} for row in data]
        losses.append(Trainer(Model(), args, train_dataset=rows).train().training_loss)
    assert losses[0] == losses[1]
