"""export(): files that another process runs without the model's code."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.backends._common.helpers import compare_outputs
from oneloop.errors import DataError, ModelError
from tests.backends.support import names, rows, tagged
from tests.stacks import STACKS

# Each makes `out` of `ids` in the folder `d`; none of them sees oneloop or the model's class.
READERS = {
    "torch": {
        "model.pt2": "import torch; m = torch.export.load(d + '/model.pt2').module(); "
        "out = m(input_ids=torch.from_numpy(ids))['logits'].detach().numpy()",
        "model.onnx": "import onnxruntime; s = onnxruntime.InferenceSession(d + '/model.onnx'); "
        "out = s.run(None, {'input_ids': ids})[0]",
    },
    "paddle": {
        "model.json": "from paddle import inference; c = inference.Config(d + '/model.json', d + '/model.pdiparams'); "
        "c.disable_glog_info(); p = inference.create_predictor(c); "
        "i = p.get_input_handle('input_ids'); i.copy_from_cpu(ids); p.run(); "
        "out = p.get_output_handle(p.get_output_names()[0]).copy_to_cpu()",
    },
    "mindspore": {
        "model.mindir": "import mindspore as ms; g = ms.nn.GraphCell(ms.load(d + '/model.mindir')); "
        "out = g(ms.Tensor(ids)); out = (out[0] if isinstance(out, tuple) else out).asnumpy()",
    },
}


def read_elsewhere(codes, folder, inputs):
    """What a new process makes of each of these inputs with each exported file: out[file][input]."""
    program = [f"import numpy as np; d = {str(folder)!r}"]
    for number, ids in enumerate(inputs):
        np.save(folder / f"ids{number}.npy", ids)
        program.append(f"ids = np.load(d + '/ids{number}.npy')")
        program += [f"{code}; np.save(d + '/out{place}-{number}.npy', out)" for place, code in enumerate(codes)]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [[np.load(folder / f"out{place}-{n}.npy") for n in range(len(inputs))] for place in range(len(codes))]


def test_the_exported_model_computes_the_same_elsewhere_at_other_sizes(backend, arguments, tmp_path):
    data = tagged([5, 3, 4, 5])
    trainer = Trainer(STACKS[backend.name](), arguments(max_steps=3, learning_rate=0.1), train_dataset=data)
    trainer.train()
    folder = tmp_path / "exported"
    written = trainer.export(folder)
    assert {str(folder / name) for name in READERS[backend.name]} <= set(written)
    inputs = [np.random.RandomState(0).randint(1, 9, shape).astype(np.int64) for shape in ((1, 7), (6, 3))]
    expected = [trainer.predict([{"input_ids": row} for row in ids]).predictions for ids in inputs]
    for of_file in read_elsewhere(READERS[backend.name].values(), folder, inputs):
        for found, wanted in zip(of_file, expected, strict=True):
            assert found.shape == wanted.shape and np.abs(found - wanted).max() < 1e-5


@pytest.mark.rare_on("mindspore")
def test_export_goes_into_output_dir_and_leaves_the_mode(backend, arguments):
    trainer = Trainer(STACKS[backend.name](), arguments(max_steps=1), train_dataset=tagged([4, 4]))
    trainer.train()
    written = trainer.export()
    folder = Path(trainer.args.output_dir) / "export"
    assert written and all(Path(each).is_file() and Path(each).parent == folder for each in written)


@pytest.mark.skipif("torch" not in names(), reason="torch is not installed")
def test_outputs_and_free_sizes_of_onnx_have_their_names(arguments, tmp_path):
    onnx = pytest.importorskip("onnx")
    trainer = Trainer(STACKS["torch"](), arguments(), train_dataset=tagged([4, 4, 4]))
    written = trainer.export(tmp_path / "exported")
    graph = onnx.load(next(each for each in written if each.endswith(".onnx"))).graph
    (ids,), (logits,) = graph.input, graph.output
    assert (ids.name, logits.name) == ("input_ids", "logits")
    assert [size.dim_param for size in ids.type.tensor_type.shape.dim] == ["batch", "sequence"]
    assert [size.dim_param for size in logits.type.tensor_type.shape.dim][:2] == ["batch", "sequence"]


def test_without_data_there_is_nothing_to_read_inputs_off(backend, arguments):
    with pytest.raises(DataError, match="export needs an example batch"):
        Trainer(backend.classifier(), arguments()).export()


def test_a_model_that_returns_nan_is_to_blame_itself():
    nan, one = np.full((2, 2), np.nan, np.float32), np.ones((2, 2), np.float32)
    ids = np.ones(2, np.int64)
    with pytest.raises(ModelError, match="the outputs of the model itself are NaN"):
        compare_outputs([ids, nan], [ids, nan])
    with pytest.raises(ModelError, match="the outputs of the exported model differ"):
        compare_outputs([ids, one], [ids, nan])
    compare_outputs([ids, one], [ids, one])


def test_a_forward_that_cannot_be_followed_says_why(arguments):
    torch = pytest.importorskip("torch")

    class Looks(torch.nn.Module):
        """Its result depends on the values of a tensor in Python."""

        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x, labels=None):
            logits = self.head(x)
            return {"loss": logits.mean(), "logits": logits if float(x.sum()) > 0 else -logits}

    trainer = Trainer(Looks(), arguments(), train_dataset=rows(4))
    with pytest.raises(ModelError, match="torch.export cannot trace"):
        trainer.export()
