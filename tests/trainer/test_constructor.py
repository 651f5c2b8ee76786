"""What Trainer(...) takes, under which names, and what it says to the rest."""

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.errors import ArgumentError, ModelError, UnsupportedError
from tests.backends.support import rows


def test_defaults_go_to_tmp_trainer(backend, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(backend.classifier())
    assert trainer.args.output_dir == "tmp_trainer"
    assert not (tmp_path / "tmp_trainer").exists(), "nothing is written before something is trained"


def test_positional_order(backend, arguments):
    collate, words = (lambda samples: samples), object()
    model, args = backend.classifier(), arguments()
    trainer = Trainer(model, args, collate, rows(4), rows(2), words, None)
    assert trainer.model is model and trainer.args is args and trainer.data_collator is collate
    assert len(trainer.train_dataset) == 4 and len(trainer.eval_dataset) == 2 and trainer.processing_class is words


def test_positional_order_of_paddlenlp(backend, arguments):
    """The criterion second and the arguments third; what follows by position or by keyword."""
    collate, words = (lambda samples: samples), object()
    model, criterion, args = backend.classifier("logits"), backend.criterion(), arguments()
    trainer = Trainer(model, criterion, args, collate, rows(4), rows(2), words)
    assert trainer.criterion is criterion and trainer.args is args and trainer.data_collator is collate
    assert len(trainer.train_dataset) == 4 and len(trainer.eval_dataset) == 2 and trainer.processing_class is words
    trainer = Trainer(model, criterion, args, train_dataset=rows(4), eval_dataset=rows(2), tokenizer=words)
    assert trainer.criterion is criterion and trainer.args is args
    assert len(trainer.train_dataset) == 4 and len(trainer.eval_dataset) == 2 and trainer.processing_class is words


def test_positions_after_model_init_differ_between_versions(backend, arguments):
    with pytest.raises(ArgumentError, match="by keyword"):
        Trainer(backend.classifier(), arguments(), None, None, None, None, None, lambda prediction: {})


def test_an_unknown_argument(backend, arguments):
    with pytest.raises(TypeError, match="compute_metric"):
        Trainer(backend.classifier(), arguments(), compute_metric=None)


def test_tokenizer_and_processing_class_are_one(backend, arguments):
    one, other = object(), object()
    assert Trainer(backend.classifier(), arguments(), tokenizer=one, processing_class=one).tokenizer is one
    with pytest.raises(ArgumentError, match="the same argument"):
        Trainer(backend.classifier(), arguments(), tokenizer=one, processing_class=other)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"args": {"output_dir": "out"}}, r"TrainingArguments\(\*\*args\)"),
        ({"args": "out"}, "expected oneloop's TrainingArguments"),
        ({"optimizers": 3}, "pair"),
        ({"optimizers": (None, None, None)}, "pair"),
        ({"data_collator": "text"}, "Invalid data_collator of type str"),
    ],
)
def test_arguments_of_the_wrong_kind(backend, arguments, given, said):
    with pytest.raises(ArgumentError, match=said):
        Trainer(backend.classifier(), **({"args": arguments()} | given))


def test_model_and_model_init(backend, arguments):
    with pytest.raises(ModelError, match="not both"):
        Trainer(backend.classifier(), arguments(), model_init=backend.classifier)
    with pytest.raises(ModelError, match="returned None"):
        Trainer(args=arguments(), model_init=lambda: None)
    with pytest.raises(ArgumentError, match="model_init needs a, b"):
        Trainer(args=arguments(), model_init=lambda a, b: None)
    with pytest.raises(ArgumentError, match="cannot be combined"):
        optimizers = (backend.sgd(backend.classifier()), None)
        Trainer(args=arguments(), model_init=lambda: backend.classifier(), optimizers=optimizers)


def test_two_sources_of_an_optimizer(backend, arguments):
    with pytest.raises(ArgumentError, match="cannot be combined"):
        model = backend.classifier()
        optimizer = backend.sgd(model)
        pair = (type(optimizer), {"lr": 0.1})
        Trainer(model, arguments(), optimizers=(optimizer, None), optimizer_cls_and_kwargs=pair)


def test_one_callback_needs_no_list(backend, arguments):
    from oneloop import TrainerCallback

    class Mine(TrainerCallback):
        pass

    trainer = Trainer(backend.classifier(), arguments(), callbacks=Mine())
    assert any(isinstance(callback, Mine) for callback in trainer.callback_handler.callbacks)


def test_arguments_that_were_spoilt_after_they_were_made(backend, arguments):
    args = arguments()
    args.learning_rate = -1.0
    with pytest.raises(ArgumentError, match="learning_rate"):
        Trainer(backend.classifier(), args)


def test_what_a_machine_cannot_do_is_refused_before_training(backend, tmp_path):
    args = TrainingArguments(str(tmp_path), report_to="none", use_ipex=True)
    with pytest.raises(UnsupportedError, match="use_ipex"):
        Trainer(backend.classifier(), args)


def test_train_takes_nothing_it_does_not_know(backend, arguments):
    with pytest.raises(ArgumentError, match="resume"):
        Trainer(backend.classifier(), arguments(), train_dataset=rows(4)).train(resume=True)


def test_questions_before_there_is_an_optimizer(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(weight_decay=0.1), train_dataset=rows(4))
    with pytest.raises(ArgumentError, match="create_optimizer"):
        trainer.get_learning_rates()
    trainer.create_optimizer()
    assert trainer.get_learning_rates() == [5e-5, 5e-5]
    assert trainer.get_num_trainable_parameters() == 6 * 8 + 8 + 8 * 3 + 3
    assert trainer.get_optimizer_group("head.bias")["weight_decay"] == 0.0
    assert trainer.get_optimizer_group("head.weight")["weight_decay"] == 0.1
    assert len(trainer.get_optimizer_group()) == 2
    plain = Trainer(backend.classifier(), arguments(), train_dataset=rows(4))
    plain.create_optimizer()
    # Without decay there is nothing to tell the groups apart; on torch there are two, as in transformers.
    assert len(plain.get_optimizer_group()) == (2 if backend.name == "torch" else 1)
    assert trainer.get_total_train_batch_size(trainer.args) == 8
    assert trainer.num_examples(trainer.get_train_dataloader()) == 4


def test_model_init_may_have_defaults_of_its_own(backend, arguments):
    def make(width=3, seed=1):
        return backend.classifier(seed=seed)

    assert Trainer(args=arguments(), model_init=make).model is not None
    with pytest.raises(ArgumentError, match="model_init needs width, seed"):
        Trainer(args=arguments(), model_init=lambda width, seed: backend.classifier())


def test_smoothing_beside_a_criterion_is_said_to_do_nothing(backend, arguments, caplog):
    Trainer(backend.classifier(), arguments(label_smoothing_factor=0.1), criterion=backend.cross_entropy)
    assert "label_smoothing_factor=0.1 has no effect" in caplog.text


def test_arguments_in_third_place_behind_no_criterion(backend, arguments):
    args = arguments()
    assert Trainer(backend.classifier(), None, args).args is args
