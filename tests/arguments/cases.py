"""For every argument that works: two values or more, and what there is to see of each in a small run."""

import signal
from dataclasses import dataclass, field
from typing import Any

from tests.arguments import probes
from tests.arguments.probes import for_metrics, log, log_steps, notes

FLOAT, HALF, BRAIN = "torch.float32", "torch.float16", "torch.bfloat16"


@dataclass(frozen=True)
class Observation:
    """see: from a TinyRun to a value. seen: (value of the argument, what is to be seen); `differs` leaves that open.
    given: the other arguments of these runs."""

    see: Any
    seen: list
    given: dict = field(default_factory=dict)
    exact: bool = True


def shows(see, *seen, **given):
    return Observation(see, list(seen), given)


def differs(see, first, second, **given):
    """The same again for the same value, something else for the other."""
    return Observation(see, [(first, None), (second, None)], given, exact=False)


def refuses(value, refused, error="UnsupportedError", **given):
    """One value trains, another is refused: all that there is to choose."""
    return shows(probes.outcome, (value, "trained"), (refused, error), **given)


by_steps = {"eval_strategy": "steps", "eval_steps": 1}
one_epoch = {"max_steps": -1, "num_train_epochs": 1}
branches = {
    "learning_rate": 0.5,
    "lr_scheduler_type": "constant",
    "resume_from_checkpoint": True,
}
by_sgd = {"optim": "sgd", "learning_rate": 0.1}
workers = {"dataloader_num_workers": 1}
saving = {"save_strategy": "steps", "save_steps": 2}
spiky = {"max_steps": 12, "save_strategy": "steps", "save_steps": 8, "learning_rate": 0.01}
generating = {"predict_with_generate": True}

RUN = {
    "output_dir": shows(probes.folders, ("here", ["here"]), ("there", ["there"])),
    "output_url": shows(probes.uploaded, ("memory://observed/one", ["one"]), ("memory://observed/two", ["two"])),
    "overwrite_output_dir": shows(probes.warnings_about_checkpoints, (False, 1), (True, 0)),
    "do_train": shows(probes.script, (False, []), (True, ["train"])),
    "do_eval": shows(probes.script, (False, []), (True, ["eval"])),
    "do_predict": shows(probes.script, (False, []), (True, ["predict"])),
    "do_export": shows(probes.script, (False, []), (True, ["export"])),
    "resume_from_checkpoint": shows(probes.resumed_steps, (None, [1, 2, 3, 4]), (True, [3, 4]), ("latest", [3, 4])),
    "seed": differs(probes.weights, 1, 2, data_seed=1),
    "data_seed": differs(probes.order, 1, 2),
    "full_determinism": shows(probes.deterministic, (False, False), (True, True)),
    "run_name": shows(probes.name_in_writers, ("one", ["one"]), ("two", ["two"]), report_to="tensorboard"),
    "device": shows(probes.device_used, ("cpu", "cpu"), ("mps", "UnsupportedError"), ("cuda:99", "ArgumentError")),
    "debug": shows(probes.named_layer, ("", False), ("underflow_overflow", True)),
    "profile": shows(
        probes.profiled, ("", []), (True, ["trace-3-4.json"]), (2, ["trace-2-2.json"]), ("1-3", ["trace-1-3.json"])
    ),
    "trace_steps": shows(
        probes.traced, ("", []), (0, ["step-000000.json"]), ("1-2,3", [f"step-00000{step}.json" for step in (1, 2, 3)])
    ),
    "verify_steps": shows(probes.replays, (0, 0), (1, 4), (2, 2), (3, 1)),
    "verify_action": shows(probes.outcome_of_dice, ("stop", ["stop"]), ("warn", ["warn"] * 4), verify_steps=1),
    "replay_overrides": shows(
        probes.measures_rounding, (None, [False]), ("compute_loss", [True]), ("training_step", [False]), trace_steps=1
    ),
    "log_level": shows(probes.log_level, ("passive", "warning"), ("error", "error"), ("debug", "debug")),
    "disable_tqdm": shows(probes.shows_a_bar, (False, True), (True, False)),
    "skip_memory_metrics": shows(probes.metric("train_mem_cpu_alloc_delta"), (False, True), (True, False)),
    "past_index": shows(notes("mems"), (-1, [False] * 4), (2, [False, True, True, True])),
}

DATA = {
    "per_device_train_batch_size": shows(notes("rows"), (2, [2] * 4), (4, [4] * 4)),
    "per_device_eval_batch_size": shows(notes("rows", training=False), (4, [4] * 4), (8, [8] * 2), eval_on_start=True),
    "gradient_accumulation_steps": shows(notes("rows"), (1, [4] * 4), (2, [4] * 8)),
    "dataloader_drop_last": shows(
        notes("rows"), (False, [6, 6, 4]), (True, [6, 6]), per_device_train_batch_size=6, **one_epoch
    ),
    "dataloader_num_workers": shows(probes.loaders, (0, 0), (2, 2)),
    "dataloader_pin_memory": shows(probes.pinned, (False, False), (True, True)),
    "dataloader_persistent_workers": shows(
        probes.loaders, (False, 2), (True, 1), max_steps=-1, num_train_epochs=2, **workers
    ),
    "dataloader_prefetch_factor": shows(probes.made_ahead, (1, 1), (3, 3), **workers),
    "dataloader_multiprocessing_context": shows(
        probes.start_method, ("fork", "fork"), ("forkserver", "forkserver"), max_steps=1, **workers
    ),
    "dataloader_in_order": shows(
        probes.arrival,
        (True, [0, 1, 2, 3, 4, 5, 6, 7]),
        (False, [4, 5, 6, 7, 0, 1, 2, 3]),
        train_sampling_strategy="sequential",
        dataloader_num_workers=2,
        **one_epoch,
    ),
    "remove_unused_columns": shows(probes.extra_columns, (True, []), (False, ["extra"])),
    "label_names": shows(probes.labels_found, (None, [i % 3 for i in range(16)]), (["number"], list(range(16)))),
    "train_sampling_strategy": shows(
        lambda tiny_run: probes.order(tiny_run) == list(range(16)), ("random", False), ("sequential", True)
    ),
    "data_order": shows(
        probes.order,
        ("oneloop", [3, 4, 9, 14, 7, 0, 1, 6, 15, 2, 11, 12, 10, 13, 5, 8]),
        ("transformers", [6, 3, 0, 7, 10, 15, 2, 12, 14, 9, 8, 5, 4, 13, 11, 1]),  # of torch.randperm
        **one_epoch,
    ),
    "length_column_name": shows(
        probes.first_batch("length"), ("length", [15]), ("size", [0]), train_sampling_strategy="group_by_length"
    ),
    "max_tokens_per_batch": shows(probes.rows_of_five_tokens, (None, [4] * 4), (10, [2] * 4), (39, [6, 6, 4, 4])),
    "packing": shows(
        probes.rows_of_documents(),
        (False, [4, 4]),
        (True, [4, 9]),
        ("best_fit", [4, 8]),
        ("wrapped", [4, 9]),
        max_length=9,
        max_steps=1,
    ),
    "max_length": shows(probes.rows_of_documents(), (8, [4, 8]), (16, [4, 16]), packing=True, max_steps=1),
    "eval_packing": shows(
        probes.rows_of_documents(evaluated=True),
        (None, [8, 8]),
        (False, [8, 4]),
        packing=True,
        max_length=8,
        max_steps=1,
    ),
    "seed_each_sample": shows(probes.draws_of_samples, (False, False), (True, True)),
    "stream_sharding": shows(
        probes.read_by_the_first_of_two, ("samples", [0, 1, 2, 3, 8, 9, 10, 11]), ("shards", [0, 1, 2, 3, 4, 5, 6, 7])
    ),
    "mixture_weights": shows(
        probes.mixed,
        (None, [2, 6]),
        ("a=0.75,b=0.25", [6, 2]),
        ({"a": 1, "b": 1}, [4, 4]),
        ('[[0, {"a": 1, "b": 0}], [1, {"a": 0, "b": 1}]]', [4, 4]),
        ("a=1", "ArgumentError"),
        mixture_stop=8,
    ),
    "mixture_temperature": shows(probes.mixed, (1.0, [2, 6]), (2.0, [3, 5]), (100.0, [4, 4]), mixture_stop=8),
    "mixture_stop": shows(
        probes.epoch_of_mixture, ("first_exhausted", 8), ("all_exhausted", 24), (10, 10), mixture_weights="a=1,b=1"
    ),
    "mixture_metrics": shows(
        probes.logged_of_datasets,
        ("loss", ["loss/a", "loss/b", "num_samples/a", "num_samples/b"]),
        ("tokens", ["num_samples/a", "num_samples/b"]),
        ("no", []),
        logging_steps=1,
    ),
    "ignore_data_skip": shows(probes.resumed_data, (False, 8), (True, 0), resume_from_checkpoint=True),
    "auto_find_batch_size": shows(probes.micro_batches, (False, "out of memory"), (True, [2] * 8)),
}

OPTIMIZATION = {
    "learning_rate": differs(probes.weights, 0.01, 0.02),
    "weight_decay": differs(probes.weights, 0.0, 0.5),
    "adam_beta1": differs(probes.weights, 0.9, 0.5),
    "adam_beta2": differs(probes.weights, 0.999, 0.5),
    "adam_epsilon": differs(probes.weights, 1e-8, 0.1),
    "max_grad_norm": differs(probes.weights, 0.01, 0, **by_sgd),
    "optim": shows(
        probes.optimizer, ("adamw", "AdamW"), ("sgd", "SGD"), ("adafactor", "Adafactor"), ("rmsprop", "RMSprop")
    ),
    "cooldown_steps": shows(
        probes.resumed_rates, (None, [0.5, 0.5]), (2, [0.5, 0.25]), **branches, cooldown_type="linear"
    ),
    "cooldown_type": differs(probes.resumed_rates, "linear", "1-sqrt", **branches, cooldown_steps=4),
    "ema_decay": differs(probes.average, 0.5, 0.9),
    "swa_start": differs(probes.average, 0, 3),
    "averaging_steps": differs(probes.average, 1, 2, swa_start=0),
    "eval_with_average": differs(log("eval_loss"), False, True, ema_decay=0.9, eval_strategy="epoch"),
    "save_average": differs(probes.saved_weights, False, True, ema_decay=0.9),
    "optim_args": differs(probes.weights, None, "momentum=0.9", **by_sgd),
    "optim_target_modules": differs(probes.weights, None, ["head"], optim="muon"),
    "lr_scheduler_type": shows(
        log("learning_rate"), ("constant", [0.5] * 4), ("linear", [0.5, 0.375, 0.25, 0.125]), learning_rate=0.5
    ),
    "lr_scheduler_kwargs": differs(
        log("learning_rate"), {"power": 1.0}, {"power": 2.0}, lr_scheduler_type="polynomial"
    ),
    "warmup_steps": shows(
        log("learning_rate"),
        (0, [0.5] * 4),
        (2, [0.0, 0.25, 0.5, 0.5]),
        (0.5, [0.0, 0.25, 0.5, 0.5]),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=0.5,
    ),
    "warmup_ratio": shows(
        log("learning_rate"),
        (0.5, [0.0, 0.25, 0.5, 0.5]),
        (1.0, [0.0, 0.125, 0.25, 0.375]),
        lr_scheduler_type="constant_with_warmup",
        learning_rate=0.5,
    ),
    "num_train_epochs": shows(log_steps("loss"), (0.5, [1, 2]), (1, [1, 2, 3, 4]), max_steps=-1),
    "max_steps": shows(log_steps("loss"), (2, [1, 2]), (3, [1, 2, 3])),
    "chunked_loss": refuses(None, True),  # the model has labels of whole samples
    "chunked_loss_layer": shows(
        probes.outcome, (None, "UnsupportedError"), ("nowhere", "ArgumentError"), chunked_loss=True
    ),
    "label_smoothing_factor": differs(log("loss"), 0.0, 0.2),
    "neftune_noise_alpha": differs(probes.noisy, None, 50.0),
}

PRECISION = {
    "fp16": shows(probes.precision, (False, (FLOAT, FLOAT, False)), (True, (HALF, FLOAT, False))),
    "bf16": shows(probes.precision, (False, (FLOAT, FLOAT, False)), (True, (BRAIN, FLOAT, False))),
    "fp16_opt_level": shows(
        probes.precision,
        ("O0", (FLOAT, FLOAT, False)),
        ("O1", (BRAIN, FLOAT, False)),
        ("O2", (BRAIN, FLOAT, True)),
        ("O3", (BRAIN, BRAIN, False)),
        bf16=True,
    ),
    "half_precision_backend": refuses("auto", "apex", "MissingPackageError", bf16=True),
    "scale_loss": shows(log("loss_scale"), (8.0, [8.0] * 4), (64.0, [64.0] * 4), fp16=True),
    "bf16_full_eval": shows(probes.evaluated_in, (False, FLOAT), (True, BRAIN)),
    "fp16_full_eval": shows(probes.evaluated_in, (False, FLOAT), (True, HALF)),
    "tf32": shows(probes.tf32_flag, (None, True), (False, False)),
    "gradient_checkpointing": shows(probes.computed, (False, 4), (True, 8)),
    "gradient_checkpointing_kwargs": shows(
        probes.block_learns,
        ({"use_reentrant": False}, True),
        ({"use_reentrant": True}, False),
        gradient_checkpointing=True,
    ),
    "torch_compile": shows(probes.is_compiled, (False, False), (True, True)),
    "torch_compile_backend": shows(probes.compiler_modes, (None, []), ("noting", [None])),
    "torch_compile_mode": shows(
        probes.compiler_modes, (None, [None]), ("reduce-overhead", ["reduce-overhead"]), torch_compile_backend="noting"
    ),
    "jit_mode_eval": shows(probes.compiled_evaluation, (False, []), (True, [None])),
    "use_cache": shows(probes.cache_setting, (False, False), (True, True)),
    "torch_empty_cache_steps": shows(probes.cache_emptied, (None, []), (2, [2, 4])),
}

EVALUATION = {
    "eval_strategy": shows(
        log_steps("eval_loss"), ("no", []), ("steps", [1, 2, 3, 4]), ("epoch", [2, 4]), per_device_train_batch_size=8
    ),
    "eval_steps": shows(log_steps("eval_loss"), (1, [1, 2, 3, 4]), (0.5, [2, 4]), eval_strategy="steps"),
    "eval_delay": shows(log_steps("eval_loss"), (0, [1, 2, 3, 4]), (3, [3, 4]), **by_steps),
    "eval_on_start": shows(log_steps("eval_loss"), (False, []), (True, [0])),
    "eval_accumulation_steps": shows(
        probes.moves_to_host, (None, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), per_device_eval_batch_size=4
    ),
    "eval_do_concat_batches": shows(
        for_metrics(lambda prediction: len(prediction.label_ids)), (True, [16]), (False, [2])
    ),
    "minimum_eval_times": shows(log_steps("eval_loss"), (None, [4]), (2, [2, 4]), eval_strategy="steps", eval_steps=4),
    "prediction_loss_only": shows(probes.has_predictions, (False, True), (True, False)),
    "include_for_metrics": shows(
        for_metrics(lambda prediction: (prediction.inputs is not None, prediction.losses is not None)),
        ([], [(False, False)]),
        (["inputs"], [(True, False)]),
        (["loss"], [(False, True)]),
    ),
    "batch_eval_metrics": shows(
        for_metrics(lambda prediction: len(prediction.label_ids)), (False, [16]), (True, [8, 8])
    ),
    "load_best_model_at_end": shows(
        probes.loaded_step, (False, [4]), (True, [2]), metric_for_best_model="score", **by_steps
    ),
    "metric_for_best_model": shows(
        probes.best_step, ("rising", 4), ("falling", 1), load_best_model_at_end=True, greater_is_better=True, **by_steps
    ),
    "greater_is_better": shows(
        probes.best_step, (True, 4), (False, 1), load_best_model_at_end=True, metric_for_best_model="rising", **by_steps
    ),
}

LOGGING = {
    "logging_dir": shows(probes.event_folders, ("one", ["one"]), ("two", ["two"]), report_to="tensorboard"),
    "logging_strategy": shows(
        log_steps("loss"), ("no", []), ("steps", [1, 2, 3, 4]), ("epoch", [2, 4]), per_device_train_batch_size=8
    ),
    "logging_steps": shows(log_steps("loss"), (1, [1, 2, 3, 4]), (0.5, [2, 4])),
    "logging_first_step": shows(log_steps("loss"), (False, [4]), (True, [1, 4]), logging_steps=4),
    "logging_nan_inf_filter": shows(
        probes.average_is_finite, (False, [False]), (True, [True]), nonfinite="ignore", logging_steps=4
    ),
    "nonfinite": shows(probes.after_poison, ("stop", "NonFiniteError"), ("skip", True), ("ignore", False)),
    "nonfinite_limit": shows(probes.after_poison, (1, "NonFiniteError"), (2, True), (0, True), nonfinite="skip"),
    "loss_spike": shows(
        probes.spikes,
        ("off", []),
        ("warn", ["warned"]),
        ("rollback", [[10, 10], [11, 11]]),
        loss_spike_window=8,
        **spiky,
    ),
    **{
        name: shows(probes.spikes, *seen, **{"loss_spike_window": 8} | spiky | {"loss_spike": "rollback"})
        for name, seen in {
            "loss_spike_threshold": ((10.0, [[10, 10], [11, 11]]), (1e9, [])),
            "loss_spike_skip_steps": ((1, [[10, 10], [11, 11]]), (2, [[9, 10], [10, 11]])),
            "loss_spike_limit": ((2, [[10, 10], [11, 11]]), (1, "LossSpikeError")),
        }.items()
    },
    "loss_spike_window": shows(
        probes.spikes, (8, [[10, 10], [11, 11]]), (10, [[11, 11]]), loss_spike="rollback", **spiky
    ),
    "report_to": shows(
        probes.writers,
        ("none", []),
        ("tensorboard", ["events"]),
        (["tensorboard", "visualdl"], ["events", "vdlrecords"]),
    ),
    **{
        name: shows(probes.of_trackio, *seen, report_to="trackio")
        for name, seen in {
            "project": (("one", {"project": "one"}), ("two", {"project": "two"})),
            "trackio_space_id": ((None, {}), ("me/space", {"space_id": "me/space", "private": None})),
            "trackio_bucket_id": ((None, {}), ("me/bucket", {"bucket_id": "me/bucket"})),
        }.items()
    },
    **{
        name: shows(probes.pushed, *seen, **{"push_to_hub": True, "save_strategy": "steps", "save_steps": 2} | more)
        for name, seen, more in (
            (
                "hub_model_id",
                (("me/one", {"repositories": {"me/one": None}}), ("two", {"repositories": {"me/two": None}})),
                {},
            ),
            (
                "hub_strategy",
                (
                    ("end", {"commits": ["End of training"]}),
                    ("every_save", {"commits": ["Training in progress, step 2", "Training in progress, step 4"]}),
                ),
                {"hub_always_push": True},
            ),
            ("hub_token", (("hf_one", {"tokens": {"hf_one"}}), ("hf_two", {"tokens": {"hf_two"}})), {}),
            (
                "hub_private_repo",
                ((False, {"repositories": {"me/out": False}}), (True, {"repositories": {"me/out": True}})),
                {},
            ),
            (
                "hub_always_push",
                (
                    (False, {"held": ["Training in progress, step 2", "End of training"]}),
                    (True, {"held": ["Training in progress, step 2", "Training in progress, step 4"]}),
                ),
                {},
            ),
            ("hub_revision", ((None, {"revisions": {"main"}}), ("dev", {"revisions": {"dev"}})), {}),
        )
    },
    "push_to_hub": shows(probes.pushed, (False, {}), (True, {"repositories": {"me/out": None}})),
    "include_num_input_tokens_seen": shows(probes.tokens_seen, ("no", 0), ("all", 80), ("non_padding", 48)),
    "log_throughput": shows(
        lambda tiny_run: [len(rates) for rates in [log("train_data_wait")(tiny_run)]], (False, [0]), (True, [4])
    ),
    "device_peak_flops": shows(probes.figure("mfu"), (None, False), (1e9, True)),
    "include_tokens_per_second": shows(probes.token_speed, (False, False), (True, True)),
}

SAVING = {
    "save_strategy": shows(
        probes.checkpoints,
        ("no", []),
        ("steps", ["checkpoint-3", "checkpoint-4"]),
        ("epoch", ["checkpoint-2", "checkpoint-4"]),
        save_steps=3,
        per_device_train_batch_size=8,
    ),
    "save_steps": shows(
        probes.checkpoints,
        (2, ["checkpoint-2", "checkpoint-4"]),
        (0.75, ["checkpoint-3", "checkpoint-4"]),
        save_strategy="steps",
    ),
    "save_total_limit": shows(
        probes.checkpoints, (None, ["checkpoint-2", "checkpoint-4"]), (1, ["checkpoint-4"]), **saving
    ),
    "save_interval_minutes": shows(
        probes.checkpoints, (None, []), (1e-9, [f"checkpoint-{step}" for step in (1, 2, 3, 4)])
    ),
    "snapshot_steps": shows(
        probes.snapshots, (None, []), (1, [1, 2, 3]), (2, [2]), save_strategy="steps", save_steps=50, save_async=False
    ),
    "snapshot_dir": shows(
        probes.snapshot_folder, (None, False), ("here", True), snapshot_steps=2, save_strategy="steps", save_steps=50
    ),
    "save_async": shows(probes.writing_threads, (True, ["oneloop-save"]), (False, ["MainThread"]), **saving),
    "preemption_signals": shows(
        probes.left_on(signal.SIGUSR1), ([], [1, 2, 3, 4]), (["SIGTERM"], [1, 2, 3, 4]), (["SIGUSR1"], [1, 2])
    ),
    "enable_jit_checkpoint": shows(
        probes.left_on(signal.SIGTERM), (False, [1, 2, 3, 4]), (True, [1, 2]), preemption_signals=[]
    ),
    "save_only_model": shows(probes.checkpoint_files, (False, True), (True, False), **saving),
    "save_safetensors": refuses(True, False, **saving),
    "restore_callback_states_from_checkpoint": shows(
        probes.restored_patience, (False, 99), (True, 7), resume_from_checkpoint=True, eval_strategy="epoch"
    ),
}

PROCESSES = {
    "world_invariant": shows(probes.stream_after_a_draw, (False, "moved"), (True, "as without it")),
    "accelerator_config": refuses({"split_batches": False}, {"split_batches": True}),
    "ray_scope": shows(
        probes.compared_figure, ("last", 3.0), ("all", 1.0), ("avg", 2.5), ("last-5-avg", 2.0), ("last-10-avg", 2.25)
    ),
}

GENERATION = {
    "sortish_sampler": shows(probes.sortish, (True, [15]), (False, [])),
    "predict_with_generate": shows(probes.generated, (False, []), (True, [{}] * 2)),
    "generation_max_length": shows(probes.generated, (None, [{}] * 2), (7, [{"max_length": 7}] * 2), **generating),
    "generation_num_beams": shows(probes.generated, (None, [{}] * 2), (2, [{"num_beams": 2}] * 2), **generating),
    "generation_config": shows(
        probes.generation_settings,
        (probes.generation(max_length=3), {"max_length": 3}),
        (probes.generation(num_beams=4), {"num_beams": 4}),
    ),
}

OBSERVATIONS = RUN | DATA | OPTIMIZATION | PRECISION | EVALUATION | LOGGING | SAVING | PROCESSES | GENERATION
