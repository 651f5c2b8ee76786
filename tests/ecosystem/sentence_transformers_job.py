"""Scripts for sentence-transformers, each run twice: on oneloop, and on transformers' own Trainer.

    python -m tests.ecosystem.sentence_transformers_job oneloop|transformers FOLDER SCENARIO...

Each scenario writes FOLDER/SCENARIO/result.json: logs, metrics, the texts of the batches, and checksums of weights.
"""

import json
import os
import sys
import time
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


def source(folder):
    """Where the model is loaded from, for each process its own."""
    return folder / f"bert{os.environ.get('RANK', '')}"


def sentence_model(folder, dropout=0.0):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    part = Transformer(tiny_text.bert(source(folder), dropout=dropout))
    return SentenceTransformer(modules=[part, Pooling(part.get_embedding_dimension(), "mean")], device="cpu")


def sparse_model(folder):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    part = MLMTransformer(tiny_text.bert(source(folder), "BertForMaskedLM"))
    return SparseEncoder(modules=[part, SpladePooling("max")], device="cpu")


def cross_model(folder, labels=1):
    from sentence_transformers import CrossEncoder

    kind = "BertForSequenceClassification"
    return CrossEncoder(tiny_text.bert(source(folder), kind, num_labels=labels), num_labels=labels, device="cpu")


def multi_vector_model(folder):
    from sentence_transformers import MultiVectorEncoder
    from transformers import set_seed

    path = tiny_text.bert(source(folder))
    set_seed(1)  # a projection is added
    return MultiVectorEncoder(path, device="cpu")


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
    """Note the texts that the model tokenizes, with their prompts: the batches."""
    preprocess = model.preprocess

    def record(inputs, *args, **kwargs):
        seen.append([f"{kwargs.get('prompt') or ''}{each}" for each in inputs])
        return preprocess(inputs, *args, **kwargs)

    model.preprocess = record
    return model


def parts(kind):
    import sentence_transformers as library

    return {
        "sentence": (library.SentenceTransformerTrainer, library.SentenceTransformerTrainingArguments),
        "sparse": (library.SparseEncoderTrainer, library.SparseEncoderTrainingArguments),
        "cross": (library.CrossEncoderTrainer, library.CrossEncoderTrainingArguments),
        "multi_vector": (library.MultiVectorEncoderTrainer, library.MultiVectorEncoderTrainingArguments),
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
    """A dict of data sets with a loss each, one of which has parameters of its own, evaluators, accumulation."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    data = {"pairs": pairs(16), "scored": scored(16), "entailed": entailed(8)}
    loss = {
        "pairs": losses.MultipleNegativesRankingLoss(model),
        "scored": losses.CosineSimilarityLoss(model),
        "entailed": softmax_loss(model),
    }
    given = {"eval_strategy": "steps", "eval_steps": 5, "gradient_accumulation_steps": 2, "weight_decay": 0.01}
    given |= {"max_grad_norm": 1e9}  # transformers does not clip the gradients of the loss's own parameters
    given |= {"prompts": {"pairs": {"anchor": "query: "}, "scored": "one "}}
    more = {"eval_dataset": {"pairs": pairs(8, 7), "scored": scored(8, 8)}, "evaluator": [similarity(), similarity(9)]}
    return run(folder, "sentence", model, data, loss, given=given, trainer_options=more)


def softmax_loss(model):
    from sentence_transformers.sentence_transformer import losses
    from transformers import set_seed

    set_seed(1)
    return losses.SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=3)


@scenario
def best_model(folder):
    """Checkpoints, the best one loaded at the end, rates by name, warmup as a ratio."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    given = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_sts_spearman_cosine",
        "num_train_epochs": 3,
        "learning_rate": 0.05,
        "learning_rate_mapping": {"embeddings": 1e-3},
        "warmup_ratio": 0.2,
    }
    loss = losses.CoSENTLoss(model)
    return run(folder, "sentence", model, scored(16), loss, given=given, trainer_options={"evaluator": similarity()})


@scenario
def lora(folder):
    """An adapter of PEFT, saved and loaded at the end as the best."""
    from peft import LoraConfig, TaskType
    from sentence_transformers.sentence_transformer import losses
    from transformers import set_seed

    model = sentence_model(folder)
    set_seed(2)
    targets = ["query", "value"]
    model.add_adapter(LoraConfig(task_type=TaskType.FEATURE_EXTRACTION, r=4, lora_dropout=0.0, target_modules=targets))
    given = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "learning_rate": 0.01}
    more = {"eval_dataset": pairs(8, 7)}
    loss = losses.MultipleNegativesRankingLoss(model)
    return run(folder, "sentence", model, pairs(16), loss, given=given, trainer_options=more)


@scenario
def no_duplicates(folder):
    """A batch sampler whose length is an estimate, over data with duplicates."""
    from datasets import Dataset
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    texts = tiny_text.sentences(9)
    data = Dataset.from_dict({"anchor": [texts[i % 3] for i in range(14)], "positive": texts[:7] * 2})
    loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
    return run(folder, "sentence", model, data, loss, given={"batch_sampler": "no_duplicates", "num_train_epochs": 3})


def estimated(dataset, **options):
    """A batch sampler that yields more batches than its length says."""
    from sentence_transformers.base.sampler import DefaultBatchSampler

    class Estimated(DefaultBatchSampler):
        def __iter__(self):
            return iter([[i, i + 1] for i in range(self.epoch, self.epoch + 5)])

        def __len__(self):
            return 3

    return Estimated(dataset, **options)


@scenario
def too_short_a_length(folder):
    """A batch sampler of one's own, and accumulation: the epoch ends at the length."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    given = {"batch_sampler": estimated, "gradient_accumulation_steps": 2}
    return run(folder, "sentence", model, pairs(), losses.MultipleNegativesRankingLoss(model), given=given)


@scenario
def group_by_label(folder):
    """Batches with several labels, of which one has no partner at the end."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    loss = losses.BatchAllTripletLoss(model)
    return run(folder, "sentence", model, labelled(19), loss, given={"batch_sampler": "group_by_label"})


@scenario
def round_robin(folder):
    """Several data sets in turn, of different lengths, with one loss."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    data = {"long": pairs(17), "short": pairs(9, 5)}
    given = {
        "multi_dataset_batch_sampler": "round_robin",
        "batch_sampler": "no_duplicates",
        "dataloader_drop_last": True,
    }
    return run(folder, "sentence", model, data, losses.MultipleNegativesRankingLoss(model), given=given)


@scenario
def sparse(folder):
    """SpladeLoss returns its parts, which are logged, of training and of evaluations; a callback raises its weights."""
    from sentence_transformers.sparse_encoder import evaluation, losses

    model = sparse_model(folder)
    inner = losses.SparseMultipleNegativesRankingLoss(model)
    loss = losses.SpladeLoss(model, inner, document_regularizer_weight=3e-3, query_regularizer_weight=5e-3)
    data = scored(12, 4)
    evaluator = evaluation.SparseEmbeddingSimilarityEvaluator(
        data["sentence1"], data["sentence2"], data["score"], name="sts"
    )
    given = {"eval_strategy": "steps", "eval_steps": 3, "max_steps": 6}
    more = {"eval_dataset": pairs(8, 7), "evaluator": evaluator}
    return run(folder, "sparse", model, pairs(16), loss, given=given, trainer_options=more)


def answers(count=16):
    from datasets import Dataset

    texts = tiny_text.sentences(2 * count, 6)
    return Dataset.from_dict({"query": texts[:count], "answer": texts[count:], "label": [i % 2 for i in range(count)]})


# Of a CrossEncoder, on two processes of transformers: "Expected to mark a variable ready only once" without it.
ON_TWO = {"ddp_find_unused_parameters": False}
BEST = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}


@scenario
def cross(folder):
    """A cross-encoder with its default loss, and the best model by the loss of an evaluation."""
    given = BEST | {"lr_scheduler_type": "cosine", "warmup_steps": 2} | ON_TWO
    more = {"eval_dataset": answers(8)}
    return run(folder, "cross", cross_model(folder), answers(), None, given=given, trainer_options=more)


@scenario
def reranking(folder):
    """A cross-encoder with an evaluator, whose metric decides which model is the best."""
    from sentence_transformers.cross_encoder import evaluation

    texts = tiny_text.sentences(12, 9)
    samples = [{"query": texts[i], "positive": [texts[3 + i]], "negative": texts[4 + i : 7 + i]} for i in range(3)]
    more = {"evaluator": evaluation.CrossEncoderRerankingEvaluator(samples, name="rank")}
    given = BEST | {"metric_for_best_model": "eval_rank_mrr@10"}
    return run(folder, "cross", cross_model(folder), answers(), None, given=given, trainer_options=more)


@scenario
def several_labels(folder):
    """A cross-encoder with classes, and a listwise loss beside it."""
    from sentence_transformers.cross_encoder import losses

    model = cross_model(folder, labels=3)
    return run(folder, "cross", model, entailed(16), losses.CrossEntropyLoss(model), given=ON_TWO)


@scenario
def texts_alone(folder):
    """A cross-encoder whose batches are columns of text without labels; the last one of an evaluation is smaller."""
    from sentence_transformers.cross_encoder import losses

    model = cross_model(folder)
    given = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    more = {"eval_dataset": pairs(5, 7)}
    loss = losses.MultipleNegativesRankingLoss(model, num_negatives=None)
    return run(folder, "cross", model, pairs(16), loss, given=given, trainer_options=more)


@scenario
def dropout(folder):
    """from_pretrained leaves the BERT in evaluation mode, and the model around it is in training mode."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder, dropout=0.2)
    given = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 5} | in_transformers_order()
    loss = losses.MultipleNegativesRankingLoss(model)
    return run(folder, "sentence", model, pairs(16), loss, given=given, trainer_options={"eval_dataset": pairs(8, 7)})


@scenario
def half(folder):
    """In bfloat16, with a loss that multiplies embeddings outside of the model."""
    from sentence_transformers.sentence_transformer import losses

    model = sentence_model(folder)
    given = {"bf16": True, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 5} | in_transformers_order()
    loss = losses.MultipleNegativesRankingLoss(model)
    return run(folder, "sentence", model, pairs(16), loss, given=given, trainer_options={"eval_dataset": pairs(8, 7)})


def in_transformers_order():
    """On oneloop, the argument with which random numbers are drawn as by transformers."""
    from transformers import TrainingArguments

    return {"data_order": "transformers"} if hasattr(TrainingArguments, "data_order") else {}


@scenario
def fitted(folder):
    """The older model.fit, which keeps any number of checkpoints."""
    import random

    from sentence_transformers import InputExample
    from sentence_transformers.sentence_transformer import losses
    from torch.utils.data import DataLoader
    from transformers import set_seed

    model, data, seen = sentence_model(folder), pairs(8), []
    examples = [InputExample(texts=[row["anchor"], row["positive"]]) for row in data]
    objective = DataLoader(examples, batch_size=4), losses.MultipleNegativesRankingLoss(model)
    set_seed(3)
    random.seed(3)
    model.fit(
        [objective],
        epochs=2,
        warmup_steps=1,
        optimizer_params={"lr": 1e-3},
        show_progress_bar=False,
        evaluator=similarity(),
        evaluation_steps=1,
        callback=lambda score, epoch, steps: seen.append([score, epoch, steps]),
        output_path=str(folder / "out"),
        checkpoint_path=str(folder / "checkpoints"),
        checkpoint_save_steps=1,
    )
    sums = {name: float(value.detach().double().abs().sum()) for name, value in model.named_parameters()}
    return {"seen": seen, "weights": sums, "checkpoints": sorted(each.name for each in folder.glob("checkpoints/ch*"))}


@scenario
def multi_vector(folder):
    """Embeddings of tokens, with an evaluator, accumulation, and the best model by its metric."""
    from sentence_transformers.multi_vector_encoder import evaluation, losses

    model = multi_vector_model(folder)
    texts = tiny_text.sentences(18, 9)
    given = BEST | {"metric_for_best_model": "eval_triplets_maxsim_accuracy", "gradient_accumulation_steps": 2}
    evaluator = evaluation.MultiVectorTripletEvaluator(texts[:6], texts[6:12], texts[12:], name="triplets")
    loss = losses.MultiVectorMultipleNegativesRankingLoss(model)
    more = {"eval_dataset": pairs(8, 7), "evaluator": evaluator}
    return run(folder, "multi_vector", model, pairs(16), loss, given=given, trainer_options=more)


# -- SetFit


def setfit_data(count=8, seed=0):
    """Texts whose label is whether they have the word red."""
    from datasets import Dataset

    texts = tiny_text.sentences(2 * count, seed, words=[word for word in tiny_text.WORDS if word != "red"])
    texts = [f"red {text}" if i % 2 else text for i, text in enumerate(texts)]
    return Dataset.from_dict({"text": texts, "label": [i % 2 for i in range(2 * count)]})


def setfit_model(folder):
    from setfit import SetFitModel

    sentence_model(folder).save(str(folder / "body"))
    return SetFitModel.from_pretrained(str(folder / "body"), device="cpu")


def accuracy(predicted, labels):
    return {"accuracy": float(sum(int(a) == int(b) for a, b in zip(predicted, labels)) / len(labels))}


def setfit_run(trainer, folder):
    """What is compared of a run of SetFit's Trainer, which has one of sentence-transformers inside."""
    from transformers import set_seed

    set_seed(3)  # pairs are drawn
    trainer.train()
    inner = trainer.st_trainer
    metrics = trainer.evaluate()
    trainer.model.save_pretrained(str(folder / "final"))
    return {
        "steps": inner.state.global_step,
        "history": inner.state.log_history,
        "metrics": metrics,
        "best_step": Path(inner.state.best_model_checkpoint or "-0").name.rpartition("-")[2],
        "best_metric": inner.state.best_metric,
        "weights": weights(inner),
        "predictions": [int(each) for each in trainer.model.predict(setfit_data(seed=5)["text"])],
        "files": files(folder),
    }


SETFIT = {"batch_size": (4, 2), "num_epochs": (1, 4), "logging_steps": 1, "report_to": "none", "max_steps": 12}


@scenario
def setfit(folder):
    """Contrastive pairs, then a head of scikit-learn; evaluations, checkpoints, the best model, a callback."""
    from setfit import Trainer, TrainingArguments
    from transformers import TrainerCallback

    heard = []

    class Hears(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, st_args=None, **kwargs):
            heard.append([type(args).__module__, type(model).__name__, st_args.per_device_train_batch_size])

    given = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    args = TrainingArguments(
        str(folder / "out"),
        load_best_model_at_end=True,
        body_learning_rate=(1e-3, 1e-4),
        warmup_proportion=0.25,
        **SETFIT,
        **given,
    )
    trainer = Trainer(
        model=setfit_model(folder),
        args=args,
        train_dataset=setfit_data(),
        eval_dataset=setfit_data(4, 3),
        metric=accuracy,
        callbacks=[Hears()],
    )
    return setfit_run(trainer, folder) | {"heard": heard}


@scenario
def setfit_body(folder):
    """The files of a model for a script."""
    sentence_model(folder).save(str(folder / "body"))
    return {}


@scenario
def setfit_search(folder):
    """model_init, and a search with optuna, whose best trial is trained again."""
    import optuna
    from setfit import Trainer, TrainingArguments

    def model_init(params):
        return setfit_model(folder)

    def space(trial):
        return {"body_learning_rate": trial.suggest_float("body_learning_rate", 1e-4, 1e-2, log=True),
                "max_steps": trial.suggest_int("max_steps", 2, 5)}  # fmt: skip

    trainer = Trainer(
        model_init=model_init,
        args=TrainingArguments(str(folder / "out"), **SETFIT),
        train_dataset=setfit_data(),
        eval_dataset=setfit_data(4, 3),
        metric=accuracy,
    )
    best = trainer.hyperparameter_search(
        space, direction="maximize", n_trials=3, sampler=optuna.samplers.RandomSampler(seed=1)
    )
    trainer.apply_hyperparameters(best.hyperparameters, final_model=True)
    search = {"objective": best.objective, "run": best.run_id, "parameters": best.hyperparameters}
    return setfit_run(trainer, folder) | {"search": search}


@scenario
def setfit_parameters(folder):
    """A run with the hyperparameters in the variable PARAMETERS."""
    from setfit import Trainer, TrainingArguments

    args = TrainingArguments(str(folder / "out"), **SETFIT | json.loads(os.environ["PARAMETERS"]))
    data = {"train_dataset": setfit_data(), "eval_dataset": setfit_data(4, 3)}
    return setfit_run(Trainer(model=setfit_model(folder), args=args, metric=accuracy, **data), folder)


@scenario
def interrupted(folder):
    """Killed after the step of the variable KILL_AT; with RESUME, goes on from its last checkpoint. With dropout, as
    random numbers count too."""
    from sentence_transformers.sentence_transformer import losses
    from transformers import TrainerCallback

    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == int(os.environ.get("KILL_AT", "0")):
                while not list(Path(args.output_dir).glob("checkpoint-*")):  # written in the background
                    time.sleep(0.05)
                os._exit(9)

    model = sentence_model(folder, dropout=float(os.environ.get("DROPOUT", "0.2")))
    given = {
        "save_strategy": "steps",
        "save_steps": 3,
        "num_train_epochs": 3,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "load_best_model_at_end": True,
        "metric_for_best_model": "pairs_loss",
        "gradient_accumulation_steps": 2,
        "batch_sampler": os.environ.get("SAMPLER", "batch_sampler"),
    }
    more = {"eval_dataset": {"pairs": pairs(8, 7)}, "callbacks": [Dies()]}
    loss = losses.MultipleNegativesRankingLoss(model)
    data = {"pairs": pairs(18), "others": pairs(10, 5)}
    return run(folder, "sentence", model, data, loss, bool(os.environ.get("RESUME")), given=given, trainer_options=more)


def main(trainer, folder, names):
    if trainer == "oneloop":
        from oneloop.compat.redirect import redirect

        redirect("transformers")
    for name in names:
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        result = SCENARIOS[name](place)
        if int(os.environ.get("RANK", "0")) == 0:
            (place / "result.json").write_text(json.dumps(result, indent=1, default=float))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
