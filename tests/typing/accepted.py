"""What must not be an error to a type checker: data, models and subclasses of every kind. It is checked, never run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import datasets
import evaluate
import mindspore
import numpy as np
import optuna
import paddle
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset
from typing_extensions import assert_type

from oneloop import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    IntervalStrategy,
    Mixture,
    OptimizerNames,
    SaveStrategy,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

args = TrainingArguments("output")


# Models of each framework.
class TorchModel(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:  # type: ignore
        return {"loss": x.mean()}


class PaddleModel(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x


class MindSporeModel(mindspore.nn.Cell):
    def construct(self, x, labels=None):
        return x


def compiled(model: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return model


model = TorchModel()
Trainer(model)
Trainer(TorchModel(), args)
Trainer(PaddleModel(), args)
Trainer(MindSporeModel(), args)
Trainer(transformers.PreTrainedModel(), args)
Trainer(compiled(model), args)
Trainer(model=None, args=args, model_init=TorchModel)
Trainer(args=args, model_init=lambda: PaddleModel())
Trainer(args=args, model_init=lambda trial: TorchModel())
Trainer(PaddleModel(), paddle.nn.CrossEntropyLoss(), args, train_dataset=[(1, 2)])  # PaddleNLP's order
Trainer(PaddleModel(), None, args, train_dataset=[(1, 2)])


# Datasets of every kind.
class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {}


class Plain:
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return {"x": i}


class Stream(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {}


class PaddleRows(paddle.io.Dataset[tuple[np.ndarray, int]]):
    def __getitem__(self, idx: int) -> tuple[np.ndarray, int]:
        return np.zeros(2), 1


def lines() -> Iterator[dict[str, int]]:
    yield {"x": 1}


Trainer(model, args, train_dataset=[{"x": 1}], eval_dataset=[{"x": 1}])
Trainer(model, args, train_dataset=[(1, 2), (3, 4)], eval_dataset=((1, 2),))
Trainer(model, args, train_dataset=Rows(), eval_dataset={"a": Rows(), "b": [{"x": 1}]})
Trainer(model, args, train_dataset=Plain(), eval_dataset=Subset(Rows(), [0]))
Trainer(model, args, train_dataset=Stream(), eval_dataset=lines())
Trainer(model, args, train_dataset=PaddleRows())
Trainer(model, args, train_dataset=datasets.Dataset(), eval_dataset=datasets.DatasetDict())
Trainer(model, args, train_dataset=datasets.IterableDataset())
Trainer(model, args, train_dataset=mindspore.dataset.GeneratorDataset(lines, ["x"]).batch(2))
Trainer(model, args, train_dataset={"wiki": Rows(), "code": Stream()})
Trainer(model, args, train_dataset=Mixture({"wiki": [{"x": 1}], "code": [{"x": 2}]}))
Trainer(model, args, train_dataset=np.zeros((3, 2)))


# Functions and collators.
def unannotated(prediction):
    return {"accuracy": 1.0}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    predictions, labels = prediction
    return {"accuracy": float((predictions == labels).mean())}


def of_transformers(prediction: transformers.EvalPrediction) -> dict[str, float]:
    return {}


def of_a_pair(pair: tuple[np.ndarray, np.ndarray]) -> Mapping[str, float]:
    return {}


def in_batches(prediction: EvalPrediction, compute_result: bool) -> dict[str, float]:
    return {}


metric = evaluate.load("accuracy")
for function in (unannotated, accuracy, of_transformers, of_a_pair, in_batches):
    Trainer(model, args, compute_metrics=function)
Trainer(model, args, compute_metrics=lambda pair: metric.compute(predictions=pair[0], references=pair[1]))


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {}


def focal_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    return outputs.logits


def argmax(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


tokenizer = transformers.PreTrainedTokenizerBase()
Trainer(model, args, collate, [{"x": 1}], None, tokenizer)
Trainer(model, args, data_collator=default_data_collator)
Trainer(model, args, data_collator=lambda samples: {"x": samples})
Trainer(model, args, data_collator=DataCollatorWithPadding(tokenizer), processing_class=tokenizer)
Trainer(model, args, data_collator=transformers.DataCollatorWithPadding(tokenizer))
Trainer(model, args, criterion=nn.CrossEntropyLoss(weight=torch.tensor([1.0])))
Trainer(model, args, criterion=lambda logits, labels: logits)
Trainer(model, args, compute_loss_func=focal_loss, preprocess_logits_for_metrics=argmax)


# Optimizers and callbacks.
class TransformersCallback(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        control.should_training_stop = True


class Counting(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        return control


optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
Trainer(model, args, optimizers=(optimizer, schedule))
Trainer(model, args, optimizers=(optimizer, None))
Trainer(model, args, optimizers=(None, None))
Trainer(PaddleModel(), args, optimizers=(paddle.optimizer.AdamW(), paddle.optimizer.lr.CosineAnnealingDecay(0.1, 3)))
Trainer(MindSporeModel(), args, optimizers=(mindspore.nn.AdamWeightDecay(0.1, []), None))
Trainer(model, args, optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": 1e-3}))
Trainer(model, args, callbacks=[Counting(), Counting, EarlyStoppingCallback(3), TransformersCallback()])
Trainer(model, args, callbacks=(Counting(),))
Trainer(model, args, callbacks=Counting())

# What a script reads, sets and calls.
trainer = Trainer(model, args, train_dataset=[{"x": 1}], compute_metrics=accuracy)
assert_type(trainer, Trainer)
assert_type(trainer, Trainer[TrainingArguments])
assert_type(trainer.args.learning_rate, float)
trainer.model.config.use_cache = False
trainer.model.generate(num_beams=3)
trainer.optimizer.param_groups[0]["lr"] = 0.1
trainer.lr_scheduler.get_last_lr()
trainer.processing_class.decode([1])
trainer.tokenizer.pad_token_id
len(trainer.train_dataset)
trainer.train_dataset[0]
trainer.eval_dataset = trainer.compute_metrics = trainer.optimizer = None
trainer.train_dataset = Rows()
for batch in trainer.get_train_dataloader():
    batch["x"]
trainer.get_eval_dataloader().dataset
trainer.get_eval_dataloader("validation")
trainer.train(resume_from_checkpoint=Path("output"))
trainer.train(True)
trainer.evaluate(datasets.Dataset(), metric_key_prefix="test")
trainer.evaluate({"a": Rows()})
trainer.predict(Stream()).predictions.argmax(-1)
trainer.log({"loss": 0.1, "note": "text"})
trainer.save_model(Path("output"))
trainer.save_model()
trainer.add_callback(EarlyStoppingCallback)
trainer.add_callback(TransformersCallback())
trainer.accelerator.print("text")
trainer.is_deepspeed_enabled = False
trainer.hyperparameter_search(lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3)})
trainer.predict(Rows()).metrics["test_loss"]
trainer.hyperparameter_search(n_trials=3).hyperparameters["learning_rate"]
if trainer.eval_dataset is None:
    trainer.eval_dataset = [{"x": 1}]


def inspect_model(model: nn.Module, data: Rows, loader: DataLoader[Any], optimizer: torch.optim.Optimizer) -> None: ...


def run(trainer: Trainer) -> None:
    trainer.train()


inspect_model(trainer.model, trainer.train_dataset, trainer.get_train_dataloader(), trainer.create_optimizer())


# Arguments of one's own: inferred in a call, declared in a subclass.
@dataclass
class MyArguments(TrainingArguments):
    alpha: float = 0.5
    log_level: str = "info"
    eval_strategy: str = "epoch"  # pyright: ignore[reportIncompatibleVariableOverride]
    report_to: str = "none"  # pyright: ignore[reportIncompatibleVariableOverride]
    fp16: bool = True


with_mine = Trainer(model, MyArguments("output"))
assert_type(with_mine.args.alpha, float)
run(with_mine)
assert_type(Trainer(model, nn.CrossEntropyLoss(), MyArguments("output")).args, MyArguments)
assert_type(Seq2SeqTrainer(model, Seq2SeqTrainingArguments("output")).args, Seq2SeqTrainingArguments)
run(Seq2SeqTrainer(model, Seq2SeqTrainingArguments("output"), processing_class=tokenizer))


class Distilling(Trainer[MyArguments]):
    model: TorchModel

    def __init__(self, teacher: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teacher = teacher
        self.is_fsdp_enabled = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        loss = self.args.alpha * loss + (1 - self.args.alpha) * self.teacher(**inputs).mean()
        return (loss, outputs) if return_outputs else loss


run(Distilling(nn.Linear(2, 2), model, MyArguments("output")))


# Overrides with the annotations of a framework, fewer annotations, and the parameters of older versions.
class Annotated(Trainer):
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        return loss.mean()

    def training_step(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], num_items_in_batch: torch.Tensor | None = None
    ) -> torch.Tensor:
        return super().training_step(model, inputs, num_items_in_batch) * 0.5

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Rows())

    def get_eval_dataloader(self, eval_dataset: Dataset | str | None = None) -> DataLoader:
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        return DataLoader(test_dataset)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int] | None:
        return super()._get_train_sampler(train_dataset)

    def create_optimizer(self) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        return super().create_scheduler(num_training_steps, optimizer)

    def evaluate(
        self,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log({**logs, "alpha": 0.5}, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        super()._save(output_dir, state_dict)

    def _save_checkpoint(self, model: nn.Module, trial: optuna.Trial | dict[str, Any] | None) -> None:
        super()._save_checkpoint(model, trial)

    def call_model_init(self, trial: optuna.Trial | dict[str, Any] | None = None) -> nn.Module:
        return super().call_model_init(trial)


class Unannotated(Trainer):
    is_fsdp_enabled = True

    def training_step(self, model, inputs):
        return super().training_step(model, inputs)

    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs):
        super().log(logs)

    def create_optimizer(self, lr_scheduler=None):
        return super().create_optimizer(lr_scheduler)

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix=""
    ):
        return super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

    def train(self, *args, **kwargs):
        return super().train(*args, **kwargs)


class OfPaddle(Trainer):
    def compute_loss(
        self, model: paddle.nn.Layer, inputs: tuple[paddle.Tensor, paddle.Tensor], return_outputs: bool = False
    ) -> paddle.Tensor:
        features, labels = inputs
        return model(features) * labels

    def get_train_dataloader(self) -> paddle.io.DataLoader:
        return super().get_train_dataloader()

    def create_optimizer(
        self, lr_scheduler: paddle.optimizer.lr.LRScheduler | None = None
    ) -> paddle.optimizer.Optimizer:
        return paddle.optimizer.AdamW(lr_scheduler)


class OfMindSpore(Trainer):
    def training_step(self, model: mindspore.nn.Cell, inputs: dict[str, mindspore.Tensor]) -> mindspore.Tensor:
        with self.compute_loss_context_manager(), contextlib.nullcontext():
            return super().training_step(model, self._prepare_inputs(inputs))


class Generating(Seq2SeqTrainer):
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)


class OfALibrary(Trainer):
    """As TRL's: other parameters, which are passed on by name."""

    def __init__(
        self,
        model: str | nn.Module,
        args: TrainingArguments | None = None,
        train_dataset: Dataset | datasets.IterableDataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset | datasets.IterableDataset] | None = None,
        processing_class: transformers.PreTrainedTokenizerBase | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        formatting_func: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        super().__init__(
            model=TorchModel() if isinstance(model, str) else model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = False
        if self.args.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()

    def _prepare_inputs(self, inputs: dict[str, torch.Tensor | Any]) -> dict[str, torch.Tensor | Any]:
        return super()._prepare_inputs(inputs)


# Enums, False for "no" as YAML reads it, and text whose value is not known, which needs a cast.
text: str = input()
TrainingArguments("output", eval_strategy=IntervalStrategy.STEPS, save_strategy=SaveStrategy.BEST, optim="adamw_torch")
TrainingArguments("output", eval_strategy=False, optim=OptimizerNames.SGD, lr_scheduler_type="cosine", save_steps=0.5)
TrainingArguments("output", eval_strategy=cast(Literal["no", "steps", "epoch"], text), learning_rate=text)
TrainingArguments("output", eval_strategy=IntervalStrategy(text), optim=OptimizerNames(text))
TrainingArguments("output", eval_strategy="epoch" if text else "no", fp16=bool(text), report_to=["wandb"])
TrainingArguments(Path("output"), log_level="info", include_num_input_tokens_seen=True, num_train_epochs=3, bf16=True)
TrainingArguments(output_dir="output", fp16=True)
