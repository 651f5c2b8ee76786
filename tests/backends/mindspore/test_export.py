"""trainer.export(): files that MindSpore and onnxruntime run without the model's code."""

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore as ms
from mindspore import nn

from oneloop import Trainer
from oneloop.backends.mindspore import export
from oneloop.errors import DataError, ModelError
from tests.backends.kits.mindspore_kit import Kit
from tests.backends.support import rows, tagged

kit = Kit()


def test_what_is_written_computes_what_the_model_does(arguments, tmp_path):
    trainer = Trainer(kit.classifier(dropout=0.3, norm=True), arguments(), eval_dataset=rows(8))
    assert str(tmp_path / "export" / "model.mindir") in trainer.export(tmp_path / "export")
    loaded = nn.GraphCell(ms.load(str(tmp_path / "export" / "model.mindir")))
    for count in (8, 3):  # any number of rows
        data = rows(count, seed=5)
        (logits,) = loaded(kit.tensor(np.stack([row["x"] for row in data])))
        np.testing.assert_allclose(logits.asnumpy(), trainer.predict(data).predictions, rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # tests/trainer/test_export.py has one of them too
def test_any_length_of_words(arguments, tmp_path):
    trainer = Trainer(kit.tagger(), arguments(), eval_dataset=tagged([4] * 6))
    trainer.export(tmp_path / "export")
    loaded = nn.GraphCell(ms.load(str(tmp_path / "export" / "model.mindir")))
    longer = tagged([9] * 2, 3)
    (logits,) = loaded(kit.tensor(np.stack([row["input_ids"] for row in longer])))
    np.testing.assert_allclose(logits.asnumpy(), trainer.predict(longer).predictions, rtol=1e-5, atol=1e-6)


def test_onnx_where_it_can_be_written(arguments, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    trainer = Trainer(kit.classifier("logits"), arguments(), eval_dataset=rows(8), criterion=kit.cross_entropy)
    folder = tmp_path / "export"
    assert trainer.export(folder) == [str(folder / "model.mindir"), str(folder / "model.onnx")]
    session = onnxruntime.InferenceSession(str(tmp_path / "export" / "model.onnx"), providers=["CPUExecutionProvider"])
    data = np.stack([row["x"] for row in rows(8)])
    (logits,) = session.run(None, {session.get_inputs()[0].name: data})
    np.testing.assert_allclose(logits, trainer.predict(rows(8)).predictions, rtol=1e-5, atol=1e-6)


def test_an_operation_that_onnx_lacks_is_said(arguments, tmp_path, caplog):
    class Exact(nn.Cell):
        def __init__(self):
            super().__init__()
            self.head = nn.Dense(6, 3)
            self.act = nn.GELU(approximate=False)

        def construct(self, x):
            return self.act(self.head(x))

    trainer = Trainer(Exact(), arguments(label_names=["labels"]), eval_dataset=rows(8))
    files = trainer.export(tmp_path / "export")
    assert files == [str(tmp_path / "export" / "model.mindir")]
    assert "No ONNX file is written next to" in caplog.text


def test_a_file_that_computes_something_else_is_an_error():
    with pytest.raises(ModelError, match="outputs of the exported model differ"):
        export._compare([np.zeros(3)], [np.ones(3)])


def test_inputs_with_a_gap(arguments, tmp_path):
    class Gap(nn.Cell):
        def construct(self, x, mask=None, scale=None):
            return x * scale

    data = [{"x": row["x"], "scale": np.float32(2)} for row in rows(4)]
    trainer = Trainer(Gap(), arguments(), eval_dataset=data)
    with pytest.raises(DataError, match="move those that are always passed to the front"):
        trainer.export(tmp_path / "export")
