"""Export, graphs, recomputation, and what Paddle's models are asked."""

import logging
from pathlib import Path

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from paddle import nn  # noqa: E402
from safetensors import safe_open  # noqa: E402

from oneloop import Trainer  # noqa: E402
from oneloop.backends.paddle import engine, models, optimizers, tensors, weights  # noqa: E402
from oneloop.errors import DataError, ModelError, UnsupportedError  # noqa: E402
from tests.backends.kits.paddle_kit import Kit, seeded  # noqa: E402
from tests.backends.support import rows, same_bytes, tagged  # noqa: E402

KIT = Kit()
RUN = {"per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 0.1, "logging_steps": 1}


class Block(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.linear, self.dropout, self.computed = nn.Linear(width, width), nn.Dropout(0.3), 0

    def forward(self, x):
        self.computed += 1
        return nn.functional.tanh(self.dropout(self.linear(x)))


class Deep(nn.Layer):
    def __init__(self, width=6):
        super().__init__()
        self.blocks = nn.LayerList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 3)

    def forward(self, x, labels=None):
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits} if labels is not None else logits


def deep():
    with seeded(0):
        return Deep()


# -- export


def test_an_exported_model_computes_the_same_at_other_sizes(trained, tmp_path):
    data = tagged([4] * 12)
    model = KIT.tagger()
    trainer = trained(model, data, **RUN)
    folder = tmp_path / "exported"
    assert trainer.export(folder) == [str(folder / "model.json"), str(folder / "model.pdiparams")]
    loaded = paddle.jit.load(str(tmp_path / "exported" / "model"))
    model.eval()
    for shape in ((1, 9), (7, 2)):
        ids = paddle.randint(1, 17, shape)
        (found,) = [loaded(ids)] if not isinstance(loaded(ids), list) else loaded(ids)
        np.testing.assert_allclose(found.numpy(), model(ids)["logits"].numpy(), rtol=1e-6)


def test_the_model_is_what_it_was_after_an_export(trained, tmp_path):
    model = deep()
    trainer = trained(model, rows(12), **RUN)
    model.train()
    before, forward = KIT.weights(model), model.forward
    assert [Path(each).name for each in trainer.export()] == ["model.json", "model.pdiparams"]
    assert (tmp_path / "out" / "export" / "model.json").is_file()
    assert model.training and model.forward == forward and same_bytes(before, KIT.weights(model))


def test_an_export_by_input_spec(trained, tmp_path):
    trainer = trained(deep(), rows(12), **RUN)
    spec = [paddle.static.InputSpec([None, 6], "float32", "x")]
    trainer.export(tmp_path / "fixed", input_spec=spec)
    assert paddle.jit.load(str(tmp_path / "fixed" / "model"))(paddle.ones([5, 6])).shape == [5, 3]


def test_an_export_that_computes_something_else_is_an_error(trained):
    class Counts(nn.Layer):
        """Scales by how often it was called: a graph has frozen that."""

        def __init__(self):
            super().__init__()
            self.head, self.calls = nn.Linear(6, 3), 0

        def forward(self, x, labels=None):
            self.calls += 1
            logits = self.head(x) * float(self.calls)
            return logits if labels is None else (nn.functional.cross_entropy(logits, labels), logits)

    trainer = trained(Counts(), rows(12), **RUN)
    with pytest.raises(ModelError, match="outputs of the exported model differ"):
        trainer.export()


def test_an_export_without_data(arguments):
    with pytest.raises(DataError, match="pass dataset="):
        Trainer(KIT.classifier(), arguments()).export()


# -- graphs


def test_evaluation_on_the_graph(arguments):
    model = deep()
    plain = Trainer(model, arguments(), eval_dataset=rows(10)).evaluate()["eval_loss"]
    called = []

    class Own(Trainer):
        def prediction_step(self, model, *args, **kwargs):
            called.append(model)
            return super().prediction_step(model, *args, **kwargs)

    trainer = Own(model, arguments(jit_mode_eval=True), eval_dataset=rows(10))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain, rel=1e-6)
    wrapped = called[0]
    assert isinstance(wrapped, models.Compiled) and models.unwrap(wrapped) is model
    assert not isinstance(model, models.Compiled) and type(model.forward).__name__ == "method"


def test_training_on_the_graph(trained, tmp_path):
    plain, compiled = deep(), deep()
    for block in (*plain.blocks, *compiled.blocks):
        block.dropout.p = 0.0
    run = RUN | {"save_strategy": "steps", "save_steps": 6}
    first = trained(plain, rows(24), output_dir=tmp_path / "a", **run)
    second = trained(compiled, rows(24), output_dir=tmp_path / "b", torch_compile=True, **run)
    assert isinstance(second.model_wrapped, models.Compiled) and second.model is compiled
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (first, second)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    names = [set(KIT.weights(model)) for model in (plain, compiled)]
    assert names[0] == names[1] == set(weights.load_tensors(tmp_path / "b/checkpoint-6/model.safetensors"))


def test_compilers_that_paddle_does_not_have(arguments):
    with pytest.raises(UnsupportedError, match="torch_compile_backend='inductor'.*to_static"):
        Trainer(deep(), arguments(torch_compile_backend="inductor"))
    if not paddle.is_compiled_with_cinn():
        with pytest.raises(UnsupportedError, match="'CINN' for Paddle"):
            Trainer(deep(), arguments(torch_compile_backend="CINN"))


# -- recomputation


def test_recomputing_changes_no_bit(trained, caplog):
    plain, again = deep(), deep()
    with caplog.at_level(logging.WARNING):
        trained(plain, rows(24), **RUN)
        trained(again, rows(24), recompute=True, **RUN)
    assert same_bytes(KIT.weights(plain), KIT.weights(again))
    assert [block.computed for block in again.blocks] == [2 * block.computed for block in plain.blocks]
    assert "recompute block need grad" not in caplog.text


def test_a_model_that_recomputes_by_itself_is_told_to(arguments):
    class Own(Deep):
        enable_recompute = False

    class Inner(Deep):
        def __init__(self):
            super().__init__()
            self.blocks[1].enable_recompute = False

    class Method(Deep):
        def recompute_enable(self):
            self.told = True

    own, inner, method = Own(), Inner(), Method()
    for model in (own, inner, method):
        Trainer(model, arguments(recompute=True))
        assert not hasattr(model.blocks[0], "_recomputed_forward")
    assert own.enable_recompute and inner.blocks[1].enable_recompute and method.told


def test_a_model_without_blocks(arguments):
    with pytest.raises(UnsupportedError, match="paddle.nn.LayerList"):
        Trainer(KIT.classifier(), arguments(recompute=True))


# -- half precision: what can be looked at without an accelerator


def test_o2_asks_for_master_weights(arguments):
    args = arguments(bf16=True, fp16_opt_level="O2")
    cls, options = optimizers.class_and_options(args)
    assert cls is paddle.optimizer.AdamW and options["multi_precision"] is True
    assert "multi_precision" not in optimizers.class_and_options(arguments(bf16=True))[1]


def test_the_level_follows_the_weights():
    model = deep()
    assert engine.Engine(model, "cpu", half="bf16").level == "O1"
    assert engine.Engine(models.to_half(model, "bf16"), "cpu", half="bf16").level == "O2"


def test_weights_come_back_from_half_precision_exactly():
    model = deep()
    before, kept = KIT.weights(model), models.copy_values(model)
    models.to_half(model, "fp16")
    assert KIT.dtypes(model) == {"float16"}
    models.restore_values(model, kept)
    assert same_bytes(before, KIT.weights(model))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64", "uint8", "bool"])
def test_every_type_goes_through_a_file(tmp_path, dtype):
    from oneloop.formats.safetensors_io import write

    values = {"a": paddle.arange(12).reshape([3, 4]).astype(dtype), "none": paddle.zeros([0, 3]).astype(dtype)}
    values |= {"turned": values["a"].t(), "one": paddle.ones([]).astype(dtype)}
    copies = {name: weights.copy_to(weights.copy_to(value, None) and value, None) for name, value in values.items()}
    for kind, source in (("tensors", values), ("copies", copies)):
        write(tmp_path / kind, {name: weights.raw(value) for name, value in source.items()})
        read = weights.load_tensors(tmp_path / kind)
        for name, value in values.items():
            assert read[name].dtype == value.dtype and read[name].shape == value.shape
            assert np.array_equal(tensors.to_numpy(read[name]), tensors.to_numpy(value)), name


def test_buffers_of_a_save_are_used_again():
    value = paddle.ones([3])
    copy = weights.copy_to(value, None)
    value.add_(paddle.ones([3]))
    assert copy.array.tolist() == [1, 1, 1], "a copy, not a view"
    again = weights.copy_to(value, copy)
    assert again is copy and copy.array.tolist() == [2, 2, 2]


def test_tied_weights_are_stored_once(trained, tmp_path):
    class Tied(nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(17, 8)
            self.decode = nn.Linear(8, 3)
            self.twin = nn.Embedding(17, 8)
            self.twin.weight = self.embed.weight

        def forward(self, input_ids, labels):
            logits = self.decode(self.embed(input_ids) + self.twin(input_ids))
            return nn.functional.cross_entropy(logits, labels), logits

    run = RUN | {"save_strategy": "steps", "save_steps": 3}
    whole, resumed = Tied(), Tied()
    trained(whole, tagged([4] * 12), output_dir=tmp_path / "a", **run)
    file = tmp_path / "a/checkpoint-3/model.safetensors"
    stored = weights.load_tensors(file)
    with safe_open(str(file), framework="np") as f:
        assert f.metadata()["format"] == "np", "PaddleNLP opens no other"
    assert set(stored) == {"embed.weight", "decode.weight", "decode.bias"}
    trained(resumed, tagged([4] * 12), output_dir=tmp_path / "b", resume=str(tmp_path / "a/checkpoint-3"), **run)
    assert same_bytes(KIT.weights(whole), KIT.weights(resumed))
    assert resumed.twin.weight is resumed.embed.weight


def test_a_smoothed_loss_leaves_out_what_takes_no_part():
    logits, labels = paddle.randn([2, 5, 3]), paddle.to_tensor([[0, 1, -100, 2, 0], [-100] * 5])
    kept = labels.reshape([-1]) != -100
    expected = nn.functional.cross_entropy(
        logits.reshape([-1, 3])[kept], labels.reshape([-1])[kept], label_smoothing=0.2
    )
    assert tensors.smoothed_loss(logits, labels, 0.2, shift=False).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_device_is_what_paddle_takes(arguments):
    args = arguments()
    Trainer(KIT.classifier(), args)
    assert args.device == "cpu" and args.device.type == "cpu" and args.device.index is None and args.n_gpu == 0
    paddle.set_device(args.device)


def test_generation_as_paddlenlp_has_it(arguments, tmp_path):
    """generate returns the tokens and their scores; predictions are the tokens."""
    from oneloop import Seq2SeqTrainer, Seq2SeqTrainingArguments

    class Repeats(type(KIT.tagger())):
        def generate(self, input_ids, max_length=20, **options):
            ids = paddle.tile(input_ids[:, :1], [1, max_length])
            return ids, paddle.ones([len(input_ids)])

    args = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, generation_max_length=3, report_to="none", device="cpu"
    )
    data = tagged([4] * 5)
    output = Seq2SeqTrainer(Repeats(), args).predict(data)
    assert output.predictions.tolist() == [[int(row["input_ids"][0])] * 3 for row in data]
    assert output.label_ids.shape == (5, 4) and output.metrics["test_loss"] > 0
