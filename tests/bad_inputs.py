"""What people hand to a Trainer by mistake: what they do, the kind of error, and words that it must have."""

import numpy as np

from oneloop import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from oneloop.errors import ArgumentError, DataError, ModelError, OneloopError, UnsupportedError
from tests.backends.support import rows

PARTS = {"args", "train_dataset", "eval_dataset", "data_collator", "tokenizer", "processing_class", "model_init"}
PARTS |= {"criterion", "compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs"}
PARTS |= {"preprocess_logits_for_metrics"}


class Maker:
    """A Trainer over a small classifier; what Trainer takes goes there, other keywords to the arguments."""

    def __init__(self, kit, arguments):
        self.kit, self.arguments = kit, arguments

    def __call__(self, model=None, cls=Trainer, **given):
        parts = {"train_dataset": rows(), "eval_dataset": rows()}
        parts |= {key: given.pop(key) for key in PARTS & given.keys()}
        given = {"max_steps": 2, "per_device_train_batch_size": 4} | given
        parts.setdefault("args", None)
        if parts["args"] is None:
            parts["args"] = self.arguments(**given)
        if "model_init" not in parts:
            parts["model"] = self.kit.classifier() if model is None else model
        return cls(**parts)


class Stream:
    """Data that can only be walked through."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


class Unsized:
    def __getitem__(self, index):
        return rows()[index]


def without(*columns):
    return [{key: value for key, value in row.items() if key not in columns} for row in rows()]


def ragged():
    return [{"x": np.ones(i % 3 + 1, np.float32), "labels": 0} for i in range(8)]


def of_score(score):
    return lambda prediction: {"score": score}


by_steps = {"eval_strategy": "steps", "eval_steps": 1}

# name: (what to do, the kind of error, words of it)
MODELS = {
    "none": (lambda make: Trainer(args=make.arguments()), ModelError, ["model=", "model_init="]),
    "class": (lambda make: make(type(make.kit.classifier())), ModelError, ["the class Classifier", "an instance"]),
    "name": (lambda make: make("bert-base-chinese"), ModelError, ["str", "Pass the model object"]),
    "dict": (lambda make: make({"layers": 2}), ModelError, ["dict", "torch.nn.Module"]),
    "model_init of nothing": (lambda make: make(model_init=lambda: None), ModelError, ["model_init", "return"]),
    "model_init of a name": (lambda make: make(model_init=lambda: "bert"), ModelError, ["str"]),
    "model_init of two": (lambda make: make(model_init=lambda a, b: 0), ArgumentError, ["model_init needs a, b"]),
    "model_init text": (lambda make: make(model_init="bert"), ArgumentError, ["model_init", "function"]),
    "no loss": (lambda make: make(train_dataset=without("labels")).train(), ModelError, ["no loss", "criterion="]),
    "logits": (lambda make: make(make.kit.classifier("logits")).train(), ModelError, ["(4, 3)", "criterion="]),
    "both": (
        lambda make: Trainer(make.kit.classifier(), make.arguments(), model_init=make.kit.classifier),
        ModelError,
        ["model or model_init"],
    ),
}

ARGUMENTS = {
    "dict": (lambda make: make(args={"output_dir": "out"}), ArgumentError, ["dict", "TrainingArguments(**args)"]),
    "text": (lambda make: make(args="out"), ArgumentError, ["str", "TrainingArguments(...)"]),
    "class": (lambda make: make(args=TrainingArguments), ArgumentError, ["the class TrainingArguments"]),
    "empty output_dir": (lambda make: TrainingArguments(""), ArgumentError, ["output_dir", "Pass it first"]),
    "unknown": (lambda make: make(learning_rat=1), ArgumentError, ["learning_rat", "'learning_rate'"]),
    "type": (lambda make: make(learning_rate="fast"), ArgumentError, ["learning_rate='fast'", "a number"]),
    "batch of none": (lambda make: make(per_device_train_batch_size=0), ArgumentError, ["=0", "at least 1"]),
    "fp16 and bf16": (lambda make: make(fp16=True, bf16=True), ArgumentError, ["fp16", "bf16", "Remove one"]),
    "two spellings": (
        lambda make: make(evaluation_strategy="no", eval_strategy="epoch"),
        ArgumentError,
        ["evaluation_strategy", "eval_strategy", "Remove the other"],
    ),
    "use_cpu on a gpu": (lambda make: make(use_cpu=True, device="gpu"), ArgumentError, ["use_cpu", "device='gpu'"]),
    "no such device": (lambda make: make(device="gpu:99"), ArgumentError, ["gpu:99", "device='cpu'"]),
    "writer": (lambda make: make(report_to="tensorbord"), ArgumentError, ["'tensorbord'", "tensorboard", "none"]),
    "optimizer": (lambda make: make(optim="adamm"), ArgumentError, ["'adamm'", "'adamw'", "adamw_torch"]),
    "schedule": (lambda make: make(lr_scheduler_type="lin"), ArgumentError, ["'lin'", "'linear'"]),
    "schedule's options": (
        lambda make: make(lr_scheduler_kwargs={"slope": 2}).train(),
        ArgumentError,
        ["'slope'", "lr_scheduler_kwargs"],
    ),
    "optimizer's options": (lambda make: make(optim_args="nope=1").train(), ArgumentError, ["nope", "optim_args"]),
    "optimizer's numbers": (
        lambda make: make(optim="sgd", optim_args="momentum=much").train(),
        ArgumentError,
        ["cannot create ", "optim_args"],
    ),
    "compiler": (
        lambda make: make(torch_compile_backend="warp"),
        OneloopError,
        ["torch_compile_backend", "'warp'", "remove it"],
    ),
    "compiler's mode": (lambda make: make(torch_compile_mode="warp"), OneloopError, ["torch_compile_mode", "warp"]),
    "plateau without evaluation": (
        lambda make: make(lr_scheduler_type="reduce_lr_on_plateau"),
        ArgumentError,
        ["needs evaluations", "set eval_strategy"],
    ),
    "no epochs": (lambda make: make(max_steps=-1, num_train_epochs=0).train(), ArgumentError, ["num_train_epochs"]),
    "past_index": (lambda make: make(past_index=7).train(), ArgumentError, ["past_index=7", "2 outputs"]),
    "noise without embeddings": (
        lambda make: make(neftune_noise_alpha=1).train(),
        ModelError,
        ["neftune_noise_alpha", "Remove it"],
    ),
    "recompute without blocks": (
        lambda make: make(recompute=True),
        OneloopError,
        ["recompute", "put its layers into"],
    ),
    "train(nope=)": (lambda make: make().train(nope=1), ArgumentError, ["train()", "nope"]),
}

PARTS_OF_A_TRAINER = {
    "two tokenizers": (
        lambda make: make(tokenizer=object(), processing_class=object()),
        ArgumentError,
        ["tokenizer", "processing_class", "pass one"],
    ),
    "tokenizer's name": (lambda make: make(tokenizer="bert"), ArgumentError, ["'bert'", "from_pretrained"]),
    "not a pair": (lambda make: make(optimizers=object()), ArgumentError, ["optimizers", "pair"]),
    "not an optimizer": (
        lambda make: make(optimizers=(object(), None)),
        ArgumentError,
        ["Invalid optimizers: the first"],
    ),
    "not a schedule": (
        lambda make: make(optimizers=(None, object())),
        ArgumentError,
        ["Invalid optimizers: the second"],
    ),
    "class without options": (lambda make: make(optimizer_cls_and_kwargs=object), ArgumentError, ["pair", "dict"]),
    "collator": (lambda make: make(data_collator=5), ArgumentError, ["data_collator", "function"]),
    "criterion": (lambda make: make(criterion="mse"), ArgumentError, ["criterion", "function"]),
    "compute_metrics": (lambda make: make(compute_metrics={"f1": 1}), ArgumentError, ["compute_metrics", "function"]),
    "callback": (lambda make: make(callbacks=["EarlyStopping"]), ArgumentError, ["callback", "TrainerCallback"]),
    "positional": (
        lambda make: Trainer(make.kit.classifier(), make.arguments(), None, None, None, None, None, None),
        ArgumentError,
        ["positional", "by keyword"],
    ),
}

DATA = {
    "no data": (lambda make: make(train_dataset=None).train(), DataError, ["train_dataset="]),
    "no evaluation data": (lambda make: make(eval_dataset=None).evaluate(), DataError, ["eval_dataset="]),
    "nothing to predict": (lambda make: make().predict(None), DataError, ["predict()"]),
    "strategy without data": (
        lambda make: make(eval_dataset=None, eval_strategy="steps"),
        DataError,
        ["eval_strategy='steps'", "eval_dataset="],
    ),
    "empty": (lambda make: make(train_dataset=[]).train(), DataError, ["train_dataset is empty", "at least one"]),
    "empty evaluation": (lambda make: make(eval_dataset=[]).evaluate(), DataError, ["eval_dataset is empty"]),
    "empty stream": (lambda make: make(train_dataset=Stream([])).train(), DataError, ["no batch", "at least one"]),
    "stream without an end": (
        lambda make: make(train_dataset=Stream(rows()), max_steps=-1).train(),
        ArgumentError,
        ["'linear'", "max_steps", "constant"],
    ),
    "stream by length": (
        lambda make: make(train_dataset=Stream(rows()), group_by_length=True).train(),
        DataError,
        ["Stream", "group_by_length", "map-style"],
    ),
    "no lengths": (lambda make: make(group_by_length=True).train(), DataError, ["'input_ids'", "length_column_name"]),
    "path": (lambda make: make(train_dataset="data.csv"), DataError, ["train_dataset", "'data.csv'", "Load"]),
    "number": (lambda make: make(train_dataset=5), DataError, ["train_dataset is an int", "expected a list"]),
    "columns": (lambda make: make(train_dataset={"x": [1], "labels": [1]}), DataError, ["dict", "from_dict"]),
    "no length": (lambda make: make(train_dataset=Unsized()), DataError, ["Unsized", "__len__"]),
    "evaluation by path": (lambda make: make(eval_dataset={"dev": "dev.csv"}), DataError, ["eval_dataset['dev']"]),
    "unknown set": (lambda make: make(eval_dataset={"dev": rows()}).evaluate("test"), DataError, ["'test'", "'dev'"]),
    "prediction by path": (lambda make: make().predict("test.csv"), DataError, ["test_dataset", "'test.csv'"]),
    "no labels for a criterion": (
        lambda make: make(train_dataset=without("labels"), criterion=make.kit.cross_entropy).train(),
        DataError,
        ["labels", "label_names"],
    ),
    "columns that match nothing": (
        lambda make: make(train_dataset=[{"text": "a", "score": 1}] * 8).train(),
        DataError,
        ["'text'", "'x'", "Rename"],
    ),
    "columns that lack one": (
        lambda make: make(train_dataset=without("x")).train(),
        DataError,
        ["required argument: 'x'", "columns labels", "data_collator"],
    ),
    "columns too many": (
        lambda make: make(train_dataset=[row | {"y": 1} for row in rows()], remove_unused_columns=False).train(),
        DataError,
        ["'y'", "accepts x, labels", "remove_unused_columns"],
    ),
    "text": (lambda make: make(train_dataset=["good", "bad"] * 4).train(), DataError, ["str", "dict"]),
    "ragged": (lambda make: make(train_dataset=ragged()).train(), DataError, ["'x'", "lengths", "DataCollatorWith"]),
    "ragged in a worker": (
        lambda make: make(train_dataset=ragged(), dataloader_num_workers=1).train(),
        DataError,
        ["'x'", "lengths", "DataCollatorWith"],
    ),
    "tuples": (lambda make: make(train_dataset=[(1, 2), (1,)] * 4).train(), DataError, ["tuples", "same number"]),
    "smaller than a batch": (
        lambda make: make(dataloader_drop_last=True, per_device_train_batch_size=99).train(),
        DataError,
        ["24 samples", "dataloader_drop_last=False"],
    ),
    "collator of None": (
        lambda make: make(data_collator=lambda samples: None).train(),
        DataError,
        ["data_collator returned None"],
    ),
    "collator of nothing": (
        lambda make: make(data_collator=lambda samples: {}).train(),
        DataError,
        ["empty batch", "data_collator"],
    ),
    "collator of samples": (
        lambda make: make(data_collator=lambda samples: samples).train(),
        DataError,
        ["4 elements", "accepts x, labels"],
    ),
}

METRICS = {
    "number": (lambda make: make(compute_metrics=lambda p: 0.5).evaluate(), ArgumentError, ["returned float", "dict"]),
    "None": (lambda make: make(compute_metrics=lambda p: None).evaluate(), ArgumentError, ["NoneType", "dict"]),
    "by batches": (
        lambda make: make(compute_metrics=of_score(1), batch_eval_metrics=True),
        ArgumentError,
        ["compute_result", "Add that parameter"],
    ),
    "number by batches": (
        lambda make: make(compute_metrics=lambda p, compute_result: 1, batch_eval_metrics=True).evaluate(),
        ArgumentError,
        ["returned int", "dict"],
    ),
    "no such metric": (
        lambda make: make(load_best_model_at_end=True, metric_for_best_model="f1", **by_steps).train(),
        ArgumentError,
        ["'f1'", "eval_loss", "compute_metrics"],
    ),
    "metric in words": (
        lambda make: make(
            compute_metrics=of_score("high"), load_best_model_at_end=True, metric_for_best_model="score", **by_steps
        ).train(),
        ArgumentError,
        ["eval_score is 'high'", "not a number"],
    ),
    "no metric for the plateau": (
        lambda make: make(lr_scheduler_type="reduce_lr_on_plateau", metric_for_best_model="f1", **by_steps).train(),
        ArgumentError,
        ["'f1'", "eval_loss"],
    ),
    "model that cannot generate": (
        lambda make: make(
            cls=Seq2SeqTrainer,
            compute_metrics=of_score(1),
            args=Seq2SeqTrainingArguments(make.arguments().output_dir, predict_with_generate=True, report_to="none"),
        ).evaluate(),
        ModelError,
        ["predict_with_generate", "generate method"],
    ),
}

CASES = {
    f"{heading}: {name}": case
    for heading, table in {
        "model": MODELS,
        "arguments": ARGUMENTS,
        "parts": PARTS_OF_A_TRAINER,
        "data": DATA,
        "metrics": METRICS,
    }.items()
    for name, case in table.items()
}

# What a framework's error must be and say besides, where they differ. Every framework has each of these cases.
ON = {
    "torch": {
        "arguments: optimizer's numbers": (ArgumentError, ["cannot create SGD", "'str' and 'float'"]),
        "arguments: optimizer's options": (ArgumentError, ["AdamW does not accept nope", "betas", "fused"]),
        "arguments: compiler": (UnsupportedError, ["unknown torch_compile_backend", "inductor"]),
        "arguments: compiler's mode": (ArgumentError, ["reduce-overhead", "max-autotune"]),
        "arguments: recompute without blocks": (UnsupportedError, ["nn.ModuleList or nn.Sequential"]),
        "arguments: no such device": (ArgumentError, ["PyTorch", "0 cuda device(s)"]),
    },
    "paddle": {
        "arguments: optimizer's numbers": (ArgumentError, ["cannot create Momentum: momentum='much' is not a number"]),
        "arguments: optimizer's options": (ArgumentError, ["AdamW does not accept nope", "beta1", "multi_precision"]),
        "arguments: compiler": (UnsupportedError, ["a compiler of torch", "paddle.jit.to_static"]),
        "arguments: compiler's mode": (UnsupportedError, ["paddle.jit.to_static has no modes"]),
        "arguments: recompute without blocks": (UnsupportedError, ["paddle.nn.LayerList", "enable_recompute"]),
        "arguments: no such device": (ArgumentError, ["Paddle", "0 gpu device(s)"]),
    },
    "mindspore": {
        "arguments: optimizer's numbers": (ArgumentError, ["cannot create SGD", "string to float: 'much'"]),
        "arguments: optimizer's options": (ArgumentError, ["AdamW does not accept nope", "betas, eps, weight_decay."]),
        "arguments: compiler": (UnsupportedError, ["a compiler of torch", "mindspore.jit"]),
        "arguments: compiler's mode": (UnsupportedError, ["a mode of torch's compiler"]),
        "arguments: recompute without blocks": (UnsupportedError, ["nn.CellList or nn.SequentialCell"]),
        "arguments: no such device": (ArgumentError, ["MindSpore", "0 GPU device(s)"]),
    },
}
