"""Trainer for generative models: evaluation on generated text."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import libraries
from ..data.samplers import IndexSampler
from ..errors import ArgumentError, ModelError
from ..introspect import accepts
from ..outputs import PredictionOutput
from ..protocols import Batch, Dataset, Datasets, Model, Sampler
from . import dataloaders
from .generic import Args_co
from .loss import split_labels
from .trainer import Trainer


class Seq2SeqTrainer(Trainer[Args_co]):
    """predict_with_generate=True: predictions are what the model generates, not its logits."""

    _gen_kwargs: dict[str, Any]
    _gen_kwargs_of_sets: dict[str, Any]  # while the sets of a dict are evaluated one by one

    if not TYPE_CHECKING:  # it has the parameters of Trainer

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._gen_kwargs = {}
            self._gen_kwargs_of_sets = {}
            super().__init__(*args, **kwargs)
            config = getattr(self.args, "generation_config", None)
            if config is not None:
                self.model.generation_config = _checked(self.load_generation_config(config))

    @staticmethod
    def load_generation_config(gen_config_arg: Any) -> Any:
        """A GenerationConfig, from an object, a file, a folder or the name of a model."""
        if not isinstance(gen_config_arg, (str, Path)):
            return gen_config_arg
        return libraries.models().generation_config(gen_config_arg)

    def _generation(self, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        if gen_kwargs.get("max_length") is None and gen_kwargs.get("max_new_tokens") is None:
            gen_kwargs["max_length"] = getattr(self.args, "generation_max_length", None)
        if gen_kwargs.get("num_beams") is None:
            gen_kwargs["num_beams"] = getattr(self.args, "generation_num_beams", None)
        return {key: value for key, value in gen_kwargs.items() if value is not None}

    def evaluate(
        self,
        eval_dataset: Datasets | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As Trainer.evaluate; further arguments (max_length, num_beams, ...) go to generate."""
        before = self._gen_kwargs_of_sets
        gen_kwargs = before | gen_kwargs
        self._gen_kwargs = self._generation(dict(gen_kwargs))
        # With several datasets, this method is called again for each, without these arguments.
        self._gen_kwargs_of_sets = gen_kwargs
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        finally:
            self._gen_kwargs_of_sets = before

    def predict(
        self,
        test_dataset: Dataset,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As Trainer.predict; further arguments (max_length, num_beams, ...) go to generate."""
        self._gen_kwargs = self._generation(gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def prediction_step(
        self,
        model: Model,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Loss from the labels, predictions from generate."""
        # TrainingArguments have no arguments for generation: evaluate without it.
        if not getattr(self.args, "predict_with_generate", False) or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        backend = self._oneloop.backend
        base = backend.models.unwrap(self.model)
        if not hasattr(base, "generate"):
            raise ModelError(
                f"predict_with_generate=True needs a model with a generate method, but {type(base).__name__} has none. "
                "Use such a model, or predict_with_generate=False."
            )
        loss, _, labels = super().prediction_step(model, inputs, False, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        given, targets = split_labels(inputs, self.label_names)
        if isinstance(given, Mapping) and _is_derived(given.get("decoder_input_ids"), targets):
            given = {k: v for k, v in given.items() if k not in ("decoder_input_ids", "decoder_attention_mask")}
        with backend.engine.no_gradients(), self.compute_loss_context_manager():
            options = gen_kwargs or self._gen_kwargs or self._generation({})
            options = {k: v for k, v in options.items() if v is not None}  # overrides of evaluate may pass None
            own = {k: v for k, v in self._oneloop.strategy.generation_options().items() if accepts(base.generate, k)}
            generated = base.generate(**given, **own | options)
        # Some models return a tuple of the generated ids and their scores.
        return loss, generated[0] if type(generated) is tuple else generated, labels

    def _pad_tensors_to_max_len(self, tensor: Any, max_length: int) -> Any:
        """Rows of token ids, filled up with the pad token; for overrides of prediction_step that call it."""
        core = self._oneloop
        owner = self.processing_class
        if owner is None or not hasattr(owner, "pad_token_id"):
            owner = core.backend.models.config_of(self.model)
        token = getattr(owner, "pad_token_id", None)
        token = getattr(owner, "eos_token_id", None) if token is None else token
        if token is None:
            raise ArgumentError(
                "padding needs a pad token: set pad_token_id of the tokenizer or of the model's config."
            )
        rows = core.backend.tensors.to_numpy(tensor)
        padded = np.pad(rows, ((0, 0), (0, max_length - rows.shape[-1])), constant_values=token)
        return core.to_device(core.backend.tensors.from_numpy(padded))

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        """sortish_sampler: training batches of similar lengths; evaluation and prediction keep the order of the
        data."""
        sampler = super()._get_train_sampler(train_dataset)
        if sampler is None or not getattr(self.args, "sortish_sampler", False):
            return sampler
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return IndexSampler(dataloaders.sortish_orders(self._oneloop, dataset))


def _is_derived(decoder_input_ids: Any, labels: Any) -> bool:
    """Whether a collator made them from the labels, which generating from them would leak. Others are what the text
    should begin with."""
    return labels is not None and getattr(decoder_input_ids, "shape", None) == getattr(labels, "shape", ())


def _checked(config: Any) -> Any:
    """Raise what is wrong with a GenerationConfig now: saving the model would raise it after training."""
    if accepts(getattr(config, "validate", None), "strict"):
        try:
            config.validate(strict=True)
        except ValueError as error:
            raise ArgumentError(f"generation_config: {error}\nFix these issues to train your model.") from error
    return config
