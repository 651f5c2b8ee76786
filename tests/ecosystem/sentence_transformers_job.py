"""Scripts for sentence-transformers, each run twice: on oneloop, and on transformers' own Trainer.

    python -m tests.ecosystem.sentence_transformers_job oneloop|transformers FOLDER SCENARIO...

Each scenario writes FOLDER/SCENARIO/result.json: logs, metrics, the texts of the batches, and checksums of weights.
"""

import json
import os
import sys
from pathlib import Path

from tests.ecosystem import tiny_text

COMMON = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
}
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# -- models and data


def sentence_model(folder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    part = Transformer(tiny_text.bert(folder / "bert"))
    return SentenceTransformer(modules=[part, Pooling(part.get_embedding_dimension(), "mean")], device="cpu")


def sparse_model(folder):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    part = MLMTransformer(tiny_text.bert(folder / "bert", "BertForMaskedLM"))
    return SparseEncoder(modules=[part, SpladePooling("max")], device="cpu")


def cross_model(folder, labels=1):
    from sentence_transformers import CrossEncoder

    kind = "BertForSequenceClassification"
    return CrossEncoder(tiny_text.bert(folder / "bert", kind, num_labels=labels), num_labels=labels, device="cpu")


def pairs(count=14, seed=0):
    from datasets import Dataset

    texts = tiny_text.sentences(2 * count, seed)
    return Dataset.from_dict({"anchor": texts[:count], "positive": texts[count:]})


def scored(count=14, seed=1):
    from datasets import Dataset

    texts = tiny_text.sentences(2 * count, seed)
    scores = [(i % 5) / 4 for i in range(count)]
    return Dataset.from_dict({"sentence1": texts[:count], "sentence2": texts[count:], "score": scores})


def labelled(count=18, seed=2, classes=3):
    from datasets import Dataset

    texts = tiny_text.sentences(count, seed)
    return Dataset.from_dict({"sentence": texts, "label": [i % classes for i in range(count)]})


def entailed(count=14, seed=3):
    from datasets import Dataset

    texts = tiny_text.sentences(2 * count, seed)
    classes = [i % 3 for i in range(count)]
    return Dataset.from_dict({"premise": texts[:count], "hypothesis": texts[count:], "label": classes})


def similarity(seed=4):
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    data = scored(12, seed)
    return EmbeddingSimilarityEvaluator(data["sentence1"], data["sentence2"], data["score"], name="sts")


# -- a run


def recorded(model, seen):
    """Note the texts that the model tokenizes, which are the batches."""
    preprocess = model.preprocess

    def record(inputs, *args, **kwargs):
        seen.append([str(each) for each in inputs])
        return preprocess(inputs, *args, **kwargs)

    model.preprocess = record
    return model


def parts(kind):
    import sentence_transformers as library

    return {
        "sentence": (library.SentenceTransformerTrainer, library.SentenceTransformerTrainingArguments),
        "sparse": (library.SparseEncoderTrainer, library.SparseEncoderTrainingArguments),
        "cross": (library.CrossEncoderTrainer, library.CrossEncoderTrainingArguments),
    }[kind]


def run(folder, kind, model, data, loss=None, resume=None, given=None, trainer_options=None):
    """Train once; what is compared of it."""
    trainer_class, arguments_class = parts(kind)
    seen = []
    args = arguments_class(output_dir=str(folder / "out"), **(COMMON | (given or {})))
    trainer = trainer_class(
        model=recorded(model, seen), args=args, train_dataset=data, loss=loss, **(trainer_options or {})
    )
    del seen[:]
    output = trainer.train(resume_from_checkpoint=resume)
    batches = list(seen)
    evaluates = trainer.eval_dataset is not None or trainer.evaluator is not None
    metrics = trainer.evaluate() if evaluates else {}
    trainer.save_model(str(folder / "final"))
    return {
        "steps": output.global_step,
        "train_loss": output.training_loss,
        "history": trainer.state.log_history,
        "metrics": metrics,
        "batches": batches,
        "best_step": Path(trainer.state.best_model_checkpoint or "-0").name.rpartition("-")[2],
        "best_metric": trainer.state.best_metric,
        "weights": weights(trainer),
        "files": files(folder),
    }


def weights(trainer):
    """Sums of every parameter, those of the loss included."""
    found = dict(trainer.model.named_parameters())
    losses = trainer.loss if isinstance(trainer.loss, dict) else {"": trainer.loss}
    for name, loss in losses.items():
        own = {key: value for key, value in loss.named_parameters() if not key.startswith("model.")}
        found |= {f"loss {name} {key}": value for key, value in own.items()}
    return {name: [float(value.detach().double().sum()), float(value.detach().double().abs().sum())]
            for name, value in found.items()}  # fmt: skip


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


# -- scenarios


@scenario
def several_datasets(folder):
    """A dict of data sets with a loss each, one of which has parameters of its own, an evaluator, accumulation."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    data = {"pairs": pairs(), "scored": scored(), "entailed": entailed()}
    loss = {
        "pairs": losses.MultipleNegativesRankingLoss(model),
        "scored": losses.CosineSimilarityLoss(model),
        "entailed": softmax_loss(model),
    }
    given = {"eval_strategy": "steps", "eval_steps": 4, "gradient_accumulation_steps": 2, "weight_decay": 0.01}
    more = {"eval_dataset": {"pairs": pairs(6, 7), "scored": scored(6, 8)}, "evaluator": similarity()}
    return run(folder, "sentence", model, data, loss, given=given, trainer_options=more)


def softmax_loss(model):
    from sentence_transformers.sentence_transformer import losses
    from transformers import set_seed

    set_seed(1)
    return losses.SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=3)


def main(trainer, folder, names):
    if trainer == "oneloop":
        from oneloop.compat.redirect import redirect

        redirect("transformers")
    for name in names:
        place = Path(folder) / name
        place.mkdir(parents=True)
        result = SCENARIOS[name](place)
        if int(os.environ.get("RANK", "0")) == 0:
            (place / "result.json").write_text(json.dumps(result, indent=1, default=float))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
