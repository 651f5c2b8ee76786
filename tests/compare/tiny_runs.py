"""The table of tiny runs: {FRAMEWORK-NAME: Run}. A run is a script that is played with a Lab (see probe.py).

Nothing here imports a framework or oneloop: the driver reads the names.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from models import KITS, FetchedByBatch, Rows, Sentences
from recording import METHODS

RUNS = {}
ALL = "torch paddle mindspore"


@dataclass(frozen=True)
class Run:
    name: str
    framework: str
    phases: tuple[tuple[int, Callable], ...]  # (processes, script), one after the other in the same directory
    sees_control: bool = True  # see recording.callback


def add(name, frameworks, *phases, **more):
    for framework in frameworks.split():
        full = f"{framework}-{name}"
        assert full not in RUNS, full
        RUNS[full] = Run(full, framework, phases, **more)


def simple(name, frameworks="torch", processes=1, **given):
    """A run that is a training with these arguments."""
    add(name, frameworks, (processes, lambda lab: lab.train(**given)), sees_control=processes == 1)


def tiny(frameworks="torch", processes=1, **more):
    """A run that is the decorated function."""

    def register(script):
        add(script.__name__, frameworks, (processes, script), **more)
        return script

    return register


EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def callback(lab, **events):
    """A callback with these events, each a function of (args, state, control)."""

    def method(function):
        return lambda self, args, state, control, **kwargs: function(args, state, control)

    methods = {name: method(function) for name, function in events.items()}
    return type("Own", (lab.oneloop.TrainerCallback,), methods)()


# -- arguments alone

simple("plain", ALL)
simple("accumulation", ALL, gradient_accumulation_steps=2)
simple("accumulation_with_rest", ALL, gradient_accumulation_steps=4)
simple("fp16", "torch mindspore", fp16=True, scale_loss=2.0**19)
simple("bf16", bf16=True)
simple("workers", ALL, dataloader_num_workers=2)
simple("persistent_workers", dataloader_num_workers=1, dataloader_persistent_workers=True)
simple("drop_last", dataloader_drop_last=True)
simple("max_steps", max_steps=8, logging_first_step=True, save_strategy="no")
simple("by_epochs", ALL, save_strategy="epoch", logging_strategy="epoch", num_train_epochs=1.5)
simple("save_total_limit", ALL, save_steps=2, save_total_limit=2)
simple("save_only_model", "torch paddle", save_only_model=True)
simple("saved_in_the_background", ALL, save_async=True)
simple("sgd", ALL, optim="sgd", weight_decay=0.1)
simple("adafactor", optim="adafactor")
simple("weight_decay", weight_decay=0.1, adam_beta1=0.8, max_grad_norm=0.1)
simple("cosine", lr_scheduler_type="cosine", warmup_steps=3)
simple("label_smoothing", ALL, label_smoothing_factor=0.1)
simple("gradient_checkpointing", ALL, gradient_checkpointing=True)
simple("tokens_seen", include_num_input_tokens_seen="non_padding", include_tokens_per_second=True)
simple("seed_each_sample", seed_each_sample=True, data_seed=5)
simple("full_determinism", full_determinism=True)
simple("half_in_evaluation", bf16_full_eval=True, eval_strategy="epoch", eval_dataset=Rows(11, seed=1))
simple("debugged", debug="underflow_overflow")
simple("compiled", torch_compile=True, torch_compile_backend="eager")


# -- data


@tiny(ALL)
def dropout_and_norm(lab):
    lab.train(model=lab.kit.classifier(dropout=0.4, norm=True))


@tiny(ALL)
def length_groups(lab):
    data = lab.rows(kind=Sentences)
    lab.train(model=lab.kit.tagger(), data=data, data_collator=lab.kit.pad, group_by_length=True)


@tiny(ALL)
def tokens_accumulated(lab):
    data = lab.rows(kind=Sentences)
    given = {"data_collator": lab.kit.pad, "gradient_accumulation_steps": 3, "neftune_noise_alpha": 5.0}
    lab.train(model=lab.kit.tagger(), data=data, **given)


@tiny(ALL)
def iterable(lab):
    lab.train(data=lab.kit.stream(lab.rows()), lr_scheduler_type="constant")


@tiny()
def iterable_with_max_steps(lab):
    lab.train(data=lab.kit.stream(lab.rows()), max_steps=8, gradient_accumulation_steps=2)


@tiny()
def iterable_with_workers(lab):
    lab.train(data=lab.kit.stream(lab.rows()), max_steps=8, dataloader_num_workers=1)


@tiny()
def fetched_by_batch(lab):
    lab.train(data=lab.rows(kind=FetchedByBatch))


@tiny(ALL)
def many_samples(lab):
    """Above 4096 samples the order is computed position by position."""
    lab.train(data=lab.rows(5000), max_steps=4, save_steps=2)


@tiny()
def used_up(lab):
    """Data that can be walked through once, and ends before the run does."""
    data = lab.kit.stream(lab.rows())
    walk = iter(data)
    type(data).__iter__ = lambda self: walk
    lab.train(data=data, max_steps=20)


@tiny()
def unused_columns(lab):
    class More(Rows):
        def __getitem__(self, index):
            return super().__getitem__(index) | {"more": 1.0}

    lab.train(data=lab.rows(kind=More))


# -- evaluation


@tiny(ALL)
def evaluated(lab):
    lab.train(**EVALUATED, eval_on_start=True, eval_dataset=lab.rows(11, seed=1), compute_metrics=accuracy)


@tiny()
def evaluated_by_epochs(lab):
    lab.train(eval_strategy="epoch", eval_dataset=lab.rows(11, seed=1), prediction_loss_only=True)


@tiny()
def several_sets(lab):
    sets = {"near": lab.rows(11, seed=1), "far": lab.rows(7, seed=2)}
    lab.train(**EVALUATED, eval_dataset=sets, metric_for_best_model="near_loss", load_best_model_at_end=True)


@tiny()
def metrics_by_batch(lab):
    seen = []

    def metrics(prediction, compute_result):
        seen.append(len(prediction.label_ids))
        return {"samples": sum(seen), "batches": len(seen)} if compute_result else {}

    lab.train(**EVALUATED, eval_dataset=lab.rows(11, seed=1), compute_metrics=metrics, batch_eval_metrics=True)


@tiny()
def inputs_for_metrics(lab):
    def metrics(prediction):
        return accuracy(prediction) | {"mean": float(prediction.inputs.mean())}

    given = {"include_for_metrics": ["inputs", "loss"], "eval_accumulation_steps": 2, "compute_metrics": metrics}
    given |= {"preprocess_logits_for_metrics": lambda logits, labels: -logits}
    lab.train(**EVALUATED, **given, eval_dataset=lab.rows(11, seed=1))


@tiny(ALL)
def predicted(lab):
    trainer = lab.train(max_steps=3)
    lab.note(trainer.evaluate(lab.rows(11, seed=1)))
    lab.note(trainer.predict(lab.rows(11, seed=1)))
    lab.note({"examples": trainer.num_examples(trainer.get_train_dataloader())})
    trainer.save_model("model")
    trainer.save_state()
    trainer.save_metrics("test", {"accuracy": 0.5})


@tiny(ALL)
def best_model(lab):
    rate = {"learning_rate": 0.3, "greater_is_better": True, "metric_for_best_model": "accuracy"}
    given = {"compute_metrics": accuracy, "load_best_model_at_end": True, "save_total_limit": 1, "save_steps": 3}
    lab.train(**EVALUATED, **rate, **given, eval_dataset=lab.rows(11, seed=1))


@tiny()
def saved_when_best(lab):
    given = {"save_strategy": "best", "metric_for_best_model": "loss", "learning_rate": 0.3}
    lab.train(**EVALUATED, **given, eval_dataset=lab.rows(11, seed=1))


@tiny("torch paddle")
def early_stopping(lab):
    stopping = lab.oneloop.EarlyStoppingCallback(early_stopping_patience=3)
    given = {"metric_for_best_model": "loss", "load_best_model_at_end": True, "learning_rate": 0.1}
    lab.train(eval_strategy="steps", eval_steps=1, **given, eval_dataset=lab.rows(11, seed=1), callbacks=[stopping])


@tiny()
def plateau(lab):
    given = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}, "learning_rate": 0.5}
    lab.train(eval_strategy="steps", eval_steps=1, **given, eval_dataset=lab.rows(11, seed=1))


@tiny()
def searched(lab):
    import optuna

    trainer = lab.trainer(model_init=lab.kit.classifier, **EVALUATED, eval_dataset=lab.rows(11, seed=1), max_steps=6)
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 0.1, log=True)},
        n_trials=2,
        direction="minimize",
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    lab.note({"run_id": best.run_id, "objective": best.objective, "hyperparameters": best.hyperparameters})


@tiny()
def sequence_to_sequence(lab):
    import numpy as np
    import transformers

    config = {"vocab_size": 17, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    lab.kit.torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
    random = np.random.RandomState(0)
    pairs = [{"input_ids": random.randint(2, 17, 5), "labels": random.randint(2, 17, 4)} for _ in range(8)]
    given = {"base": lab.oneloop.Seq2SeqTrainer, "arguments": lab.oneloop.Seq2SeqTrainingArguments}
    given |= {"predict_with_generate": True, "generation_max_length": 6}
    trainer = lab.train(model=model, data=pairs, eval_dataset=pairs, max_steps=3, **given)
    lab.note(trainer.evaluate())
    lab.note(trainer.predict(pairs))


# -- losses, optimizers and schedules of the user's


@tiny(ALL)
def loss_function(lab):
    def divided(outputs, labels, num_items_in_batch=None):
        loss = lab.kit.loss(outputs["logits"], labels, "sum")
        return loss / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    lab.train(compute_loss_func=divided, gradient_accumulation_steps=4)


@tiny(ALL)
def criterion(lab):
    lab.train(criterion=lambda logits, labels: lab.kit.loss(logits, labels), gradient_accumulation_steps=4)


@tiny()
def weighted_classes(lab):
    criterion = lab.kit.torch.nn.CrossEntropyLoss(weight=lab.kit.torch.tensor([1.0, 2.0, 0.5]))
    lab.train(criterion=criterion, gradient_accumulation_steps=4)


@tiny(ALL)
def schedules(lab):
    names = "linear constant constant_with_warmup cosine_with_restarts polynomial inverse_sqrt warmup_stable_decay"
    for name in names.split():
        more = {"lr_scheduler_kwargs": {"num_decay_steps": 2}} if name == "warmup_stable_decay" else {}
        lab.train(lr_scheduler_type=name, warmup_steps=2, max_steps=8, logging_steps=1, save_strategy="no", **more)


@tiny()
def optimizers(lab):
    for name in "adamw_torch adamw_torch_fused adamw_hf adamw_anyprecision adagrad rmsprop".split():
        lab.train(optim=name, max_steps=4, save_steps=4, output_dir=name)


@tiny(ALL)
def optimizer_given(lab):
    model = lab.kit.classifier()
    lab.train(model=model, optimizers=(lab.kit.sgd(model, 0.05), None))


@tiny()
def scheduler_given(lab):
    torch, model = lab.kit.torch, lab.kit.classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    lab.train(model=model, optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)))


@tiny()
def rates_by_group(lab):
    model = lab.kit.classifier()
    head = list(model.head.parameters())
    rest = [p for name, p in model.named_parameters() if not name.startswith("head")]
    groups = [{"params": rest, "lr": 0.01, "weight_decay": 0.1}, {"params": head, "lr": 0.1}]
    lab.train(model=model, optimizers=(lab.kit.torch.optim.AdamW(groups), None))


@tiny("torch paddle")
def out_of_memory(lab):
    lab.train(model=lab.kit.classifier(largest=1), auto_find_batch_size=True)


@tiny(ALL)
def nonfinite_stop(lab):
    with lab.failing():
        lab.train(data=lab.rows(bad=6), save_steps=1)


@tiny(ALL)
def nonfinite_skip(lab):
    lab.train(data=lab.rows(bad=6), nonfinite="skip")


# -- runs that stop, fail and go on


def stopping(lab, step, **given):
    def stop(args, state, control):
        control.should_training_stop = control.should_training_stop or state.global_step == step

    lab.train(model=lab.kit.classifier(dropout=0.4), callbacks=[callback(lab, on_step_end=stop)], **given)


def failing(lab, step, **given):
    def fail(args, state, control):
        if state.global_step == step:
            raise ArithmeticError("planned")

    with lab.failing():
        lab.train(**{"model": lab.kit.classifier(dropout=0.4)} | given, callbacks=[callback(lab, on_step_end=fail)])


def going_on(lab, **given):
    lab.train(model=lab.kit.classifier(dropout=0.4), resume=True, **given)


INTERRUPTED = {"save_steps": 3, "gradient_accumulation_steps": 2, "num_train_epochs": 3}


@tiny(ALL)
def failed(lab):
    failing(lab, 7)


add("resumed_after_failure", ALL, (1, lambda lab: failing(lab, 7)), (1, going_on))


@tiny("torch mindspore")
def resumed_from_the_middle(lab):
    """Trained to the end, then again from a checkpoint in the middle of an epoch, into another directory."""
    lab.train(model=lab.kit.classifier(dropout=0.4), **INTERRUPTED)
    lab.train(model=lab.kit.classifier(dropout=0.4), resume="out/checkpoint-3", output_dir="again", **INTERRUPTED)


@tiny()
def resumed_after_a_stop(lab):
    stopping(lab, 5, **INTERRUPTED)
    going_on(lab, **INTERRUPTED)


@tiny()
def resumed_for_longer(lab):
    lab.train(max_steps=6, save_steps=3)
    lab.train(max_steps=10, save_steps=3, resume=True)


@tiny()
def resumed_iterable(lab):
    given = {"max_steps": 10, "save_steps": 4}
    lab.train(data=lab.kit.stream(lab.rows()), **given)
    lab.train(data=lab.kit.stream(lab.rows()), resume="out/checkpoint-4", output_dir="again", **given)


@tiny()
def resumed_with_workers(lab):
    lab.train(dataloader_num_workers=1)
    lab.train(dataloader_num_workers=1, resume="out/checkpoint-5", output_dir="again")


@tiny()
def broken_checkpoint_passed_over(lab):
    lab.train(max_steps=10)
    with open("out/checkpoint-10/model.safetensors", "r+b") as f:
        f.write(b"broken")
    lab.train(max_steps=12, resume=True)


@tiny()
def resumed_from_transformers(lab):
    """From a checkpoint of transformers' Trainer; its files are elsewhere, since they have times in them."""
    import tempfile

    import transformers

    with tempfile.TemporaryDirectory() as place:
        given = {"max_steps": 3, "save_steps": 3, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
        args = transformers.TrainingArguments(place, per_device_train_batch_size=4, learning_rate=0.01, **given)
        transformers.Trainer(lab.kit.classifier(), args, train_dataset=lab.rows()).train()
        lab.train(max_steps=6, resume=f"{place}/checkpoint-3")


def on_another(framework):
    def going_on(lab):
        lab.kit = KITS[framework]()
        lab.train(resume=True)

    return going_on


def failing_without_dropout(lab):
    failing(lab, 7, model=lab.kit.classifier())


add("crossed_to_paddle", "torch", (1, failing_without_dropout), (1, on_another("paddle")))
add("crossed_to_mindspore", "torch", (1, failing_without_dropout), (1, on_another("mindspore")))
add("crossed_to_torch", "paddle mindspore", (1, failing_without_dropout), (1, on_another("torch")))


@tiny(ALL)
def preempted(lab):
    """SIGTERM at a step that saves nothing otherwise."""

    def leave(args, state, control):
        if state.global_step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with lab.failing():
        lab.train(callbacks=[callback(lab, on_step_end=leave)])
    lab.train(resume=True)


@tiny(ALL)
def trained_twice(lab):
    trainer = lab.train(save_steps=4)
    lab.note(trainer.train())


@tiny("torch paddle")
def asking(lab):
    """A callback that asks for everything, at steps where nothing is due."""

    def ask(args, state, control):
        control.should_log = control.should_log or state.global_step == 1
        control.should_evaluate = control.should_evaluate or state.global_step == 2
        control.should_save = control.should_save or state.global_step == 3
        control.should_epoch_stop = control.should_epoch_stop or state.global_step == 4

    given = {"eval_dataset": lab.rows(11, seed=1), "logging_steps": 50, "save_steps": 50}
    lab.train(callbacks=[callback(lab, on_step_end=ask)], **given)


# -- overrides


def whole(lab, **given):
    """Trains, evaluates, saves and predicts, so that every method has its turn."""
    own = {"compute_metrics": accuracy, "eval_dataset": lab.rows(11, seed=1), "gradient_accumulation_steps": 2}
    trainer = lab.train(**EVALUATED, **own, load_best_model_at_end=True, save_steps=3, **given)
    lab.note(trainer.predict(lab.rows(7, seed=2)))
    trainer.save_model("model")
    return trainer


@tiny(ALL)
def everything_watched(lab):
    whole(lab, watch=METHODS)
    lab.note({"methods": [name for name in METHODS if hasattr(lab.oneloop.Trainer, name)]})


@tiny()
def everything_watched_and_resumed(lab):
    lab.train(watch=METHODS)
    lab.train(watch=METHODS, resume="out/checkpoint-5", output_dir="again")


OVERRIDDEN = """compute_loss training_step prediction_step evaluate predict log create_optimizer create_scheduler
create_optimizer_and_scheduler get_train_dataloader get_eval_dataloader get_test_dataloader save_model _save
_save_checkpoint _prepare_inputs get_batch_samples floating_point_ops evaluation_loop _get_train_sampler
_get_eval_sampler get_decay_parameter_names compute_loss_context_manager store_flos""".split()
for _name in OVERRIDDEN:
    add(f"overrides.{_name}", "torch", (1, lambda lab, name=_name: whole(lab, watch=[name])))
for _name in ("compute_loss", "training_step", "_save", "get_train_dataloader"):
    add(f"overrides.{_name}", "paddle mindspore", (1, lambda lab, name=_name: whole(lab, watch=[name])))


@tiny(ALL)
def loss_of_4(lab):
    """compute_loss as it was written for transformers 4.25, before num_items_in_batch."""

    class Doubled(lab.oneloop.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            return (loss * 2, outputs) if return_outputs else loss * 2

    whole(lab, base=Doubled)


@tiny()
def loss_of_5(lab):
    class Divided(lab.oneloop.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(x=inputs["x"])
            loss = lab.kit.loss(outputs["logits"], inputs["labels"], "sum")
            loss = loss / (len(inputs["labels"]) if num_items_in_batch is None else num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

    whole(lab, base=Divided)


@tiny()
def step_of_its_own(lab):
    class Stepping(lab.oneloop.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
            loss.backward()
            return loss.detach()

    whole(lab, base=Stepping)


@tiny()
def sampler_of_its_own(lab):
    class Sampled(lab.oneloop.Trainer):
        def _get_train_sampler(self, *args):
            return lab.kit.torch.utils.data.RandomSampler(self.train_dataset)

    lab.train(base=Sampled)
    lab.train(base=Sampled, resume="out/checkpoint-5", output_dir="again")


@tiny()
def loader_of_its_own(lab):
    lab.train(base=with_loader(lab))


def with_loader(lab):
    class Loaded(lab.oneloop.Trainer):
        def get_train_dataloader(self):
            return lab.kit.torch.utils.data.DataLoader(self.train_dataset, batch_size=4, shuffle=True)

    return Loaded


@tiny()
def asked_from_outside(lab):
    """What scripts ask of a Trainer, beside train, evaluate and predict."""
    trainer = lab.train(label_smoothing_factor=0.1, **EVALUATED, eval_dataset=lab.rows(11, seed=1))
    loader = trainer.get_train_dataloader()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    batch = trainer._prepare_inputs(next(iter(loader)))
    lab.note({"smoothed": float(trainer.label_smoother(trainer.model(batch["x"]), batch["labels"]))})
    lab.note({"rates": trainer.get_learning_rates(), "parameters": trainer.get_num_trainable_parameters()})
    lab.note({"decay": trainer.get_decay_parameter_names(trainer.model), "scaler": trainer.scaler})
    lab.note({"initial": trainer.set_initial_training_values(trainer.args, loader)})
    lab.note(
        {"group": sorted(trainer.get_optimizer_group("head.weight")), "batch": trainer.get_total_train_batch_size()}
    )
    removed = trainer.pop_callback(type(trainer.callback_handler.callbacks[-1]))
    lab.note({"removed": type(removed).__name__})


# -- two processes

simple("two_plain", ALL, processes=2)
simple("two_accumulated", processes=2, gradient_accumulation_steps=2)
simple("two_stage1", "torch paddle", processes=2, sharding="stage1")
simple("two_stage2", processes=2, sharding="stage2")
simple("two_stage3", processes=2, sharding="stage3", max_grad_norm=0.1)
simple("two_bf16", processes=2, bf16=True)
simple("two_stage3_fp16", processes=2, fp16=True, sharding="stage3", scale_loss=2.0**19)


@tiny(processes=2)
def two_evaluated(lab):
    whole(lab, model=lab.kit.classifier(dropout=0.4, norm=True))


@tiny(processes=2, sees_control=False)
def two_loader_of_its_own(lab):
    lab.train(base=with_loader(lab))


@tiny(processes=2, sees_control=False)
def two_few_left(lab):
    """The last update of an epoch has one sample, so that a process has none."""
    for sharding in ("", "stage2", "stage3"):
        lab.train(data=lab.rows(17), sharding=sharding, save_strategy="no", output_dir=f"out{sharding}")


@tiny(processes=2, sees_control=False)
def two_gathered(lab):
    trainer = lab.train(max_steps=2)
    own = lab.kit.tensor([float(trainer.args.process_index), 2.0])
    gathered = {"all": trainer.accelerator.gather(own), "sum": trainer.accelerator.reduce(own, "sum")}
    padded = trainer.accelerator.pad_across_processes(own[: 1 + trainer.args.process_index])
    lab.note({key: value.tolist() for key, value in gathered.items()} | {"padded": padded.tolist()})
    trainer.accelerator.wait_for_everyone()


@tiny(processes=2)
def two_watched(lab):
    whole(lab, watch=METHODS)


@tiny(processes=2, sees_control=False)
def two_tokens(lab):
    lab.train(model=lab.kit.tagger(), data=lab.rows(kind=Sentences), data_collator=lab.kit.pad)


@tiny(processes=2, sees_control=False)
def two_iterable(lab):
    lab.train(data=lab.kit.stream(lab.rows()), max_steps=6, save_steps=3)


@tiny(processes=2, sees_control=False)
def two_stage3_evaluated(lab):
    whole(lab, sharding="stage3")


def going_on_after(first, then, **given):
    """Phases: a run that fails at step 5 on `first` processes, and goes on with step 4 on `then` of them."""
    whole_batch = given | {"save_steps": 3}
    own = whole_batch | {"per_device_train_batch_size": 4 * first // then}
    return (first, lambda lab: failing(lab, 5, **whole_batch)), (then, lambda lab: going_on(lab, **own))


add("two_resumed", "torch", *going_on_after(2, 2))
add("two_stage2_resumed", "torch", *going_on_after(2, 2, sharding="stage2"))
add("two_then_one", "torch", *going_on_after(2, 1))
add("one_then_two", "torch", *going_on_after(1, 2))
