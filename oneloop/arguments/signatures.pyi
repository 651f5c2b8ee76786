# Written by `python -m oneloop.arguments.typing_stub`; change the declarations in oneloop/arguments/, not this file.
# fmt: off
# ruff: noqa: E501
"""What the constructors of the arguments take and what their attributes hold, for editors and type checkers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .fields import Group
from .given import Argument, Config, Integer, JsonDict, Number, Switch, Text, Words

@dataclass(init=False, kw_only=True)
class ArgumentFields(Group):
    output_dir: str = field(kw_only=False)
    """Where checkpoints, logs and results go. Required; a Trainer without arguments uses tmp_trainer."""
    overwrite_output_dir: bool = ...
    """For your script: it may start afresh in a directory that holds checkpoints. The Trainer itself deletes nothing; a fresh run among old checkpoints warns and goes on."""
    do_train: bool = ...
    """For your script: train."""
    do_eval: bool = ...
    """For your script: evaluate. Becomes True when eval_strategy is not no."""
    do_predict: bool = ...
    """For your script: predict on the test set."""
    do_export: bool = ...
    """For your script: export the trained model."""
    resume_from_checkpoint: Argument[str | bool | None, bool | Text | None] = ...
    """A checkpoint's path, or True or latest for the newest one; train() uses it when it gets none. True without a checkpoint starts fresh and says so."""
    seed: int = ...
    """Seed of the model's and dropout's randomness."""
    data_seed: int | None = ...
    """Seed of the order of the data."""
    full_determinism: bool = ...
    """Deterministic algorithms in the framework: two runs are equal to the bit."""
    run_name: Argument[str, Text | None] = ...
    """The name of the run in every logger."""
    device_spec: Argument[str | None, object | None] = ...
    """Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device."""
    debug: Argument[str, Words | None] = ...
    """underflow_overflow: on a non-finite value, name the layer and the step."""
    profile: Argument[str, bool | int | str | None] = ...
    """Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. A trace and a table of operators go to output_dir/profile."""
    log_level: str = ...
    """How much the main process says; passive leaves it alone."""
    log_level_replica: str = ...
    """How much the other processes say."""
    log_on_each_node: bool = ...
    """With several machines: log on each, not on the first alone."""
    disable_tqdm: Argument[bool, Switch | None] = ...
    """No progress bars."""
    skip_memory_metrics: bool = ...
    """False adds peak-memory figures to the metrics."""
    past_index: int = ...
    """Feeds this output of the model back as `mems` at the next step; -1 is off."""
    per_device_train_batch_size: int = ...
    """Samples in one micro-batch on one device, in training."""
    per_device_eval_batch_size: int = ...
    """Samples in one batch on one device, in evaluation."""
    gradient_accumulation_steps: int = ...
    """Micro-batches per update; the update equals that of the undivided batch."""
    average_tokens_across_devices: bool = ...
    """With several processes: weigh each one's loss by its number of labelled tokens."""
    dataloader_drop_last: bool = ...
    """Leave out the last batch of an epoch when it is not full."""
    dataloader_num_workers: int = ...
    """Processes that load data; 0 loads in the main process."""
    dataloader_pin_memory: bool = ...
    """Page-locked host memory, for faster copies to an accelerator; MindSpore copies in its own way."""
    dataloader_persistent_workers: bool = ...
    """Keep the loading processes alive between epochs."""
    dataloader_prefetch_factor: int | None = ...
    """Batches that each loading process prepares in advance."""
    dataloader_multiprocessing_context: str | None = ...
    """How loading processes are started."""
    dataloader_in_order: bool = ...
    """False yields a batch as soon as any loading process has it ready, so in no fixed order."""
    remove_unused_columns: bool = ...
    """Drop the columns that the model's forward does not accept, and say which."""
    label_names: Argument[list[str] | None, Words | None] = ...
    """The columns that are labels."""
    train_sampling_strategy: str = ...
    """The order of the training data; group_by_length makes batches of like lengths."""
    length_column_name: str = ...
    """The column that holds each sample's length, for group_by_length; measured when it is not there."""
    seed_each_sample: bool = ...
    """Random numbers that the data set draws follow from the sample and the epoch alone, so that they are the same on any number of processes and workers. It costs a reseeding per sample, and samples are fetched one by one."""
    ignore_data_skip: bool = ...
    """After a resume, start the data from the beginning of the epoch."""
    auto_find_batch_size: bool = ...
    """On out-of-memory: smaller micro-batches and more accumulation, with the same global batch."""
    learning_rate: float = ...
    """The highest learning rate of the schedule."""
    weight_decay: float = ...
    """Decay of the weights, but not of biases and norm weights."""
    adam_beta1: float = ...
    """AdamW's decay of the mean."""
    adam_beta2: float = ...
    """AdamW's decay of the variance."""
    adam_epsilon: float = ...
    """AdamW's epsilon."""
    max_grad_norm: float = ...
    """Gradients are scaled down to this norm; 0 turns it off. The norm is logged."""
    optim: Argument[OptimizerNames, OptimizerNames | str] = ...
    """The optimizer. Every spelling of AdamW is AdamW, except adamw_anyprecision, which is its own; one that needs a package says which."""
    optim_args: Argument[str | None, Mapping[str, Any] | Text | None] = ...
    """Further options of the optimizer: "key=value,key=value"."""
    optim_target_modules: Argument[str | list[str] | None, Words | None] = ...
    """For GaLore and APOLLO optimizers: the modules they work on."""
    lr_scheduler_type: Argument[SchedulerType, SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] | str] = ...
    """How the learning rate moves."""
    lr_scheduler_kwargs: Argument[dict[str, Any] | None, JsonDict | None] = ...
    """Further options of the schedule, as a dict or as JSON."""
    warmup_steps: float = ...
    """Steps over which the learning rate rises from 0; below 1 it is a ratio of all steps."""
    warmup_ratio: float = ...
    """The same as a ratio of all steps; warmup_steps wins."""
    num_train_epochs: float = ...
    """Passes over the data; fractions of an epoch are trained."""
    max_steps: int = ...
    """Updates in all, when it is not -1; wins over num_train_epochs."""
    label_smoothing_factor: float = ...
    """Spreads this share of each label over all classes."""
    neftune_noise_alpha: float | None = ...
    """Strength of NEFTune's noise on the embeddings."""
    fp16: bool = ...
    """Mixed precision with float16 and a loss scale."""
    bf16: bool = ...
    """Mixed precision with bfloat16."""
    fp16_opt_level: str = ...
    """For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half."""
    half_precision_backend: str = ...
    """Who does the mixed precision."""
    scale_loss: float = ...
    """The first loss scale for fp16; steps that overflow are skipped and counted."""
    bf16_full_eval: bool = ...
    """Evaluate with bfloat16 weights."""
    fp16_full_eval: bool = ...
    """Evaluate with float16 weights."""
    tf32: bool | None = ...
    """TF32 in matrix products on GPUs that have it."""
    gradient_checkpointing: bool = ...
    """Compute activations again in the backward pass: same losses, less memory."""
    gradient_checkpointing_kwargs: Argument[dict[str, Any] | None, JsonDict | None] = ...
    """Further options of gradient_checkpointing, as a dict or as JSON."""
    torch_compile: bool = ...
    """Compile the model with the framework's own graph compiler. On when a backend or a mode is named."""
    torch_compile_backend: str | None = ...
    """The compiler's backend; naming one turns torch_compile on."""
    torch_compile_mode: str | None = ...
    """The compiler's mode; naming one turns torch_compile on."""
    jit_mode_eval: bool = ...
    """Evaluate on the compiled graph."""
    use_ipex: bool = ...
    """Intel's extension for PyTorch."""
    use_liger_kernel: bool = ...
    """Liger's fused kernels for transformers models."""
    liger_kernel_config: Argument[dict[str, Any] | None, JsonDict | None] = ...
    """Which of Liger's kernels, as a dict or as JSON."""
    use_cache: bool = ...
    """Leave the model's key-value cache on while training."""
    torch_empty_cache_steps: int | None = ...
    """Empty the accelerator's memory cache every so many steps."""
    eval_strategy: Argument[IntervalStrategy, IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str] = ...
    """When to evaluate while training."""
    eval_steps: float | None = ...
    """Steps between evaluations; below 1 it is a ratio of all steps."""
    eval_delay: float = ...
    """No evaluation before this epoch, or step, by eval_strategy."""
    eval_on_start: bool = ...
    """Evaluate once before the first step."""
    eval_accumulation_steps: int | None = ...
    """Steps that stay on the device before they move to the host."""
    eval_do_concat_batches: bool = ...
    """False hands the outputs to compute_metrics as a list of batches."""
    eval_use_gather_object: bool = ...
    """With several processes: outputs that are not tensors are gathered too, with it or without."""
    minimum_eval_times: int | None = ...
    """Lowers eval_steps until there are at least so many; -1 or 0: off."""
    prediction_loss_only: bool = ...
    """Keep the loss alone, no outputs."""
    include_for_metrics: Argument[list[str], Words | None] = ...
    """What compute_metrics gets besides: inputs, loss."""
    batch_eval_metrics: bool = ...
    """Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept."""
    load_best_model_at_end: bool = ...
    """Keep the model of the best evaluation and load it at the end, whatever save_strategy says."""
    metric_for_best_model: str | None = ...
    """The metric that says which evaluation is best."""
    greater_is_better: bool | None = ...
    """Whether more of it is better."""
    logging_dir: Argument[str, Text | None] = ...
    """Where the writers put their files."""
    logging_strategy: Argument[IntervalStrategy, IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str] = ...
    """When to log."""
    logging_steps: float = ...
    """Steps between logs; below 1 it is a ratio of all steps."""
    logging_first_step: bool = ...
    """Log the first step too, and evaluate it when evaluation is by steps."""
    logging_nan_inf_filter: bool = ...
    """Leave non-finite losses out of the logged average, and of that alone."""
    nonfinite: str = ...
    """What a non-finite loss or gradient does: stop the run, skip the update, or nothing."""
    report_to: Argument[list[str], Words | None] = ...
    """Who gets the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all that ask for no account; none. A service with accounts has to be named."""
    include_num_input_tokens_seen: Argument[str, Literal["no", "all", "non_padding"] | bool | Text] = ...
    """Count the tokens trained on."""
    include_tokens_per_second: bool = ...
    """Add tokens per second to the speed metrics."""
    project: str = ...
    """The project in writers that have projects."""
    trackio_space_id: str | None = ...
    """The space that trackio writes to."""
    trackio_bucket_id: str | None = ...
    """The bucket that trackio writes to."""
    trackio_static_space_id: str | bool | None = ...
    """The read-only space that trackio makes at the end; False makes none."""
    save_strategy: Argument[SaveStrategy, SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] | str] = ...
    """When to save a checkpoint."""
    save_steps: float = ...
    """Steps between checkpoints; below 1 it is a ratio of all steps."""
    save_total_limit: int | None = ...
    """How many checkpoints to keep, the best among them; with 1, the newest and the best."""
    save_interval_minutes: float | None = ...
    """Also save when the last checkpoint is this old."""
    save_async: bool = ...
    """Write checkpoints in the background while training goes on."""
    save_on_each_node: bool = ...
    """With several machines: save on each, not on the first alone."""
    save_only_model: bool = ...
    """Checkpoints without optimizer, schedule and random state; no exact resume."""
    save_safetensors: bool = ...
    """Weights as safetensors, which is the only format written."""
    restore_callback_states_from_checkpoint: bool = ...
    """On resume, give the callbacks the state they had in the checkpoint."""
    preemption_signals: Argument[list[str], Words | None] = ...
    """Signals on which a run finishes its step, saves and leaves; SIGUSR1 and others can be added, [] turns it off."""
    enable_jit_checkpoint: bool = ...
    """True: SIGTERM is one of preemption_signals, as it is by default."""
    push_to_hub: bool = ...
    """Push the model to the Hub each time it is saved."""
    hub_model_id: str | None = ...
    """With push_to_hub: the repository."""
    hub_strategy: Argument[HubStrategy, HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] | str] = ...
    """With push_to_hub: what is pushed when."""
    hub_token: str | None = ...
    """With push_to_hub: the token. It is in no file and no log."""
    hub_private_repo: bool | None = ...
    """With push_to_hub: make the repository private."""
    hub_always_push: bool = ...
    """With push_to_hub: push even while the last push is still under way."""
    hub_revision: str | None = ...
    """With push_to_hub: the branch to push to."""
    local_rank: int = ...
    """The process's number on this machine."""
    sharding: Argument[str, Words | None] = ...
    """What the processes share out: stage1 optimizer state, stage2 also gradients, stage3 also parameters; plus offload, auto_wrap."""
    sharding_degree: int = ...
    """Processes that share one copy; -1 is all of them."""
    fsdp_config: Argument[dict[str, Any] | None, Config | None] = ...
    """Further options of sharding, as a dict, as JSON or as a JSON file."""
    deepspeed: Argument[str | dict[str, Any] | None, dict[str, Any] | Text | None] = ...
    """DeepSpeed's configuration: a path or a dict."""
    accelerator_config: Argument[dict[str, Any] | None, Config | None] = ...
    """Options of accelerate, as a dict, as JSON or as a JSON file."""
    parallelism_config: Any = ...
    """accelerate's object for several kinds of parallelism."""
    ddp_find_unused_parameters: bool | None = ...
    """Look for parameters that a step does not use."""
    ddp_bucket_cap_mb: int | None = ...
    """Megabytes of gradients sent at once."""
    ddp_broadcast_buffers: bool | None = ...
    """Keep buffers equal in all processes."""
    ddp_static_graph: bool | None = ...
    """Every step uses the same parameters."""
    ddp_timeout: int = ...
    """Seconds to wait for the other processes."""
    ddp_backend: str | None = ...
    """How processes talk: gloo, nccl, mpi, ccl, ..."""
    tpu_num_cores: int | None = ...
    """TPU cores."""
    mp_parameters: str = ...
    """SageMaker's model parallelism."""
    use_legacy_prediction_loop: bool = ...
    """The evaluation loop of early transformers."""
    ray_scope: str = ...
    """Which result of a trial Ray Tune compares."""
    per_gpu_train_batch_size: int = ...
    """The same as per_device_train_batch_size."""
    per_gpu_eval_batch_size: int = ...
    """The same as per_device_eval_batch_size."""
    dataset_drop_last: bool = ...
    """The same as dataloader_drop_last."""
    dataset_num_workers: int = ...
    """The same as dataloader_num_workers."""
    dataset_prefetch_factor: int | None = ...
    """The same as dataloader_prefetch_factor."""
    fp16_backend: str = ...
    """The same as half_precision_backend."""
    f16_full_eval: bool = ...
    """The same as fp16_full_eval."""
    recompute: bool = ...
    """The same as gradient_checkpointing."""
    recompute_kwargs: Argument[dict[str, Any] | None, JsonDict | None] = ...
    """The same as gradient_checkpointing_kwargs."""
    to_static: bool = ...
    """The same as torch_compile."""
    torchdynamo: str | None = ...
    """The same as torch_compile_backend."""
    evaluation_strategy: Argument[IntervalStrategy, IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str | None] = ...
    """The same as eval_strategy."""
    push_to_hub_model_id: str | None = ...
    """The same as hub_model_id."""
    push_to_hub_token: str | None = ...
    """The same as hub_token."""
    sharding_parallel_degree: int = ...
    """The same as sharding_degree."""
    xpu_backend: str | None = ...
    """The same as ddp_backend."""
    device: Argument[Any, object | None] = ...
    """Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device."""
    use_cpu: bool = ...
    """True: device="cpu"."""
    no_cuda: bool = ...
    """True: device="cpu"."""
    use_mps_device: bool = ...
    """True: device="mps"."""
    adafactor: bool = ...
    """True: optim="adafactor"."""
    group_by_length: bool = ...
    """True: train_sampling_strategy="group_by_length"."""
    include_inputs_for_metrics: bool = ...
    """True: inputs in include_for_metrics."""
    tpu_metrics_debug: bool = ...
    """True: tpu_metrics_debug in debug."""
    fsdp: Argument[str, bool | Words | None] = ...
    """full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; plus offload, auto_wrap."""
    sharded_ddp: Argument[str, bool | Words | None] = ...
    """simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; plus offload, auto_wrap."""
    fsdp_min_num_params: int = ...
    """fsdp_config's min_num_params."""
    fsdp_transformer_layer_cls_to_wrap: str | None = ...
    """fsdp_config's transformer_layer_cls_to_wrap."""
    num_cycles: float = ...
    """lr_scheduler_kwargs's num_cycles."""
    lr_end: float = ...
    """lr_scheduler_kwargs's lr_end."""
    power: float = ...
    """lr_scheduler_kwargs's power."""
    push_to_hub_organization: str | None = ...
    """The owner in hub_model_id."""
    _n_gpu: int = ...
    """-1: the number of devices is read off the machine; choose one with device."""
    amp_custom_black_list: list[str] | None = ...
    """None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward."""
    amp_custom_white_list: list[str] | None = ...
    """None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward."""
    amp_master_grad: bool = ...
    """False: gradients have the type of their weights; fp16_opt_level='O1' keeps both in float32."""
    data_parallel_config: str = ...
    """"": the exchange of gradients has no options of Paddle's here."""
    data_parallel_degree: int = ...
    """-1 or the run's own: it is the number of processes that were launched."""
    distributed_dataloader: bool = ...
    """False: every process makes the batches of its own."""
    enable_auto_parallel: bool = ...
    """False: the model is not cut up; use data parallelism, or sharding to share out its state."""
    flatten_param_grads: bool = ...
    """False: gradients stay where the framework has put them."""
    force_reshard_pp: bool = ...
    """False: a checkpoint is one whole model for any number of processes."""
    hybrid_parallel_topo_order: str | None = ...
    """None: the model is not cut up; use data parallelism, or sharding to share out its state."""
    ignore_load_lr_and_optim: bool = ...
    """False: load the weights by hand and start a new run."""
    ignore_save_lr_and_optim: bool = ...
    """False: use save_only_model=True."""
    lazy_data_processing: bool = ...
    """True: data sets are read when their samples are needed."""
    load_sharded_model: bool = ...
    """False: a checkpoint is one whole model for any number of processes."""
    max_evaluate_steps: int = ...
    """-1: an evaluation counts every sample; pass a shorter eval_dataset."""
    metrics_output_path: str | None = ...
    """None: save_metrics() writes into output_dir."""
    pipeline_parallel_config: str = ...
    """"": the model is not cut up; use data parallelism, or sharding to share out its state."""
    pipeline_parallel_degree: int = ...
    """1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state."""
    save_sharded_model: bool = ...
    """False: a checkpoint is one whole model for any number of processes."""
    sep_parallel_degree: int = ...
    """1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state."""
    sharding_parallel_config: str = ...
    """"": sharding has no further options on Paddle."""
    skip_profile_timer: bool = ...
    """True: logs have steps_per_second; profile=True shows more."""
    tensor_parallel_config: str = ...
    """"": the model is not cut up; use data parallelism, or sharding to share out its state."""
    tensor_parallel_degree: int = ...
    """1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state."""
    unified_checkpoint: bool = ...
    """True or False: a checkpoint is one whole model for any number of processes."""
    unified_checkpoint_config: str = ...
    """"": a checkpoint is one whole model for any number of processes."""
    use_expert_parallel: bool = ...
    """False: the model is not cut up; use data parallelism, or sharding to share out its state."""
    use_hybrid_parallel: bool = ...
    """False: the model is not cut up; use data parallelism, or sharding to share out its state."""
    wandb_api_key: str | None = ...
    """None: a key does not belong among arguments, which are written to files; set WANDB_API_KEY instead."""

    def __init__(
        self,
        output_dir: Text,
        *,
        overwrite_output_dir: Switch = False,
        do_train: Switch = False,
        do_eval: Switch = False,
        do_predict: Switch = False,
        do_export: Switch = False,
        resume_from_checkpoint: bool | Text | None = None,
        seed: Integer = 42,
        data_seed: Integer | None = None,
        full_determinism: Switch = False,
        run_name: Text | None = None,
        device_spec: object | None = None,
        debug: Words | None = "",
        profile: bool | int | str | None = "",
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] | str | None = "passive",
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] | str | None = "warning",
        log_on_each_node: Switch = True,
        disable_tqdm: Switch | None = None,
        skip_memory_metrics: Switch = True,
        past_index: Integer = -1,
        per_device_train_batch_size: Integer = 8,
        per_device_eval_batch_size: Integer = 8,
        gradient_accumulation_steps: Integer = 1,
        average_tokens_across_devices: Switch = True,
        dataloader_drop_last: Switch = False,
        dataloader_num_workers: Integer = 0,
        dataloader_pin_memory: Switch = True,
        dataloader_persistent_workers: Switch = False,
        dataloader_prefetch_factor: Integer | None = None,
        dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | str | None = None,
        dataloader_in_order: Switch = True,
        remove_unused_columns: Switch | None = True,
        label_names: Words | None = None,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] | str = "random",
        length_column_name: Text | None = "length",
        seed_each_sample: Switch = False,
        ignore_data_skip: Switch = False,
        auto_find_batch_size: Switch = False,
        learning_rate: Number = 5e-05,
        weight_decay: Number = 0.0,
        adam_beta1: Number = 0.9,
        adam_beta2: Number = 0.999,
        adam_epsilon: Number = 1e-08,
        max_grad_norm: Number = 1.0,
        optim: OptimizerNames | str = "adamw_torch",
        optim_args: Mapping[str, Any] | Text | None = None,
        optim_target_modules: Words | None = None,
        lr_scheduler_type: SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] | str = "linear",
        lr_scheduler_kwargs: JsonDict | None = None,
        warmup_steps: Number = 0,
        warmup_ratio: Number = 0.0,
        num_train_epochs: Number = 3.0,
        max_steps: Integer = -1,
        label_smoothing_factor: Number = 0.0,
        neftune_noise_alpha: Number | None = None,
        fp16: Switch = False,
        bf16: Switch = False,
        fp16_opt_level: Literal["O0", "O1", "O2", "O3"] | str = "O1",
        half_precision_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | str = "auto",
        scale_loss: Number = 32768.0,
        bf16_full_eval: Switch = False,
        fp16_full_eval: Switch = False,
        tf32: Switch | None = None,
        gradient_checkpointing: Switch = False,
        gradient_checkpointing_kwargs: JsonDict | None = None,
        torch_compile: Switch = False,
        torch_compile_backend: Text | None = None,
        torch_compile_mode: Text | None = None,
        jit_mode_eval: Switch = False,
        use_ipex: Switch = False,
        use_liger_kernel: Switch = False,
        liger_kernel_config: JsonDict | None = None,
        use_cache: Switch = False,
        torch_empty_cache_steps: Integer | None = None,
        eval_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str = "no",
        eval_steps: Number | None = None,
        eval_delay: Number | None = 0,
        eval_on_start: Switch = False,
        eval_accumulation_steps: Integer | None = None,
        eval_do_concat_batches: Switch = True,
        eval_use_gather_object: Switch = False,
        minimum_eval_times: Integer | None = None,
        prediction_loss_only: Switch = False,
        include_for_metrics: Words | None = ...,
        batch_eval_metrics: Switch = False,
        load_best_model_at_end: Switch | None = False,
        metric_for_best_model: Text | None = None,
        greater_is_better: Switch | None = None,
        logging_dir: Text | None = None,
        logging_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str = "steps",
        logging_steps: Number = 500,
        logging_first_step: Switch = False,
        logging_nan_inf_filter: Switch = False,
        nonfinite: Literal["stop", "skip", "ignore"] | str = "stop",
        report_to: Words | None = None,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool | Text = "no",
        include_tokens_per_second: Switch = False,
        project: Text = "huggingface",
        trackio_space_id: Text | None = None,
        trackio_bucket_id: Text | None = None,
        trackio_static_space_id: Literal[False] | Text | None = None,
        save_strategy: SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] | str = "steps",
        save_steps: Number = 500,
        save_total_limit: Integer | None = None,
        save_interval_minutes: Number | None = None,
        save_async: Switch = True,
        save_on_each_node: Switch = False,
        save_only_model: Switch = False,
        save_safetensors: Switch = True,
        restore_callback_states_from_checkpoint: Switch = False,
        preemption_signals: Words | None = ...,
        enable_jit_checkpoint: Switch = False,
        push_to_hub: Switch = False,
        hub_model_id: Text | None = None,
        hub_strategy: HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] | str = "every_save",
        hub_token: Text | None = None,
        hub_private_repo: Switch | None = False,
        hub_always_push: Switch = False,
        hub_revision: Text | None = None,
        local_rank: Integer = -1,
        sharding: Words | None = "",
        sharding_degree: Integer = -1,
        fsdp_config: Config | None = None,
        deepspeed: dict[str, Any] | Text | None = None,
        accelerator_config: Config | None = None,
        parallelism_config: Any = None,
        ddp_find_unused_parameters: Switch | None = None,
        ddp_bucket_cap_mb: Integer | None = None,
        ddp_broadcast_buffers: Switch | None = None,
        ddp_static_graph: Switch | None = None,
        ddp_timeout: Integer | None = 1800,
        ddp_backend: Text | None = None,
        tpu_num_cores: Integer | None = None,
        mp_parameters: Text = "",
        use_legacy_prediction_loop: Switch = False,
        ray_scope: Literal["last", "all", "avg", "last-5-avg", "last-10-avg"] | str | None = "last",
        per_gpu_train_batch_size: Integer | None = None,
        per_gpu_eval_batch_size: Integer | None = None,
        dataset_drop_last: Switch | None = None,
        dataset_num_workers: Integer | None = None,
        dataset_prefetch_factor: Integer | None = None,
        fp16_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | str | None = None,
        f16_full_eval: Switch | None = None,
        recompute: Switch | None = None,
        recompute_kwargs: JsonDict | None = None,
        to_static: Switch | None = None,
        torchdynamo: Text | None = None,
        evaluation_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str | None = None,
        push_to_hub_model_id: Text | None = None,
        push_to_hub_token: Text | None = None,
        sharding_parallel_degree: Integer | None = None,
        xpu_backend: Text | None = None,
        device: object | None = None,
        use_cpu: Switch | None = None,
        no_cuda: Switch | None = None,
        use_mps_device: Switch | None = None,
        adafactor: Switch | None = None,
        group_by_length: Switch | None = None,
        include_inputs_for_metrics: Switch | None = None,
        tpu_metrics_debug: Switch | None = None,
        fsdp: bool | Words | None = None,
        sharded_ddp: bool | Words | None = None,
        fsdp_min_num_params: Integer | None = None,
        fsdp_transformer_layer_cls_to_wrap: Text | None = None,
        num_cycles: Number | None = None,
        lr_end: Number | None = None,
        power: Number | None = None,
        push_to_hub_organization: Text | None = None,
        _n_gpu: int = -1,
        amp_custom_black_list: list[str] | None = None,
        amp_custom_white_list: list[str] | None = None,
        amp_master_grad: bool = False,
        data_parallel_config: str = "",
        data_parallel_degree: int = -1,
        distributed_dataloader: bool = False,
        enable_auto_parallel: bool = False,
        flatten_param_grads: bool = False,
        force_reshard_pp: bool = False,
        hybrid_parallel_topo_order: str | None = None,
        ignore_load_lr_and_optim: bool = False,
        ignore_save_lr_and_optim: bool = False,
        lazy_data_processing: bool = True,
        load_sharded_model: bool = False,
        max_evaluate_steps: int = -1,
        metrics_output_path: str | None = None,
        pipeline_parallel_config: str = "",
        pipeline_parallel_degree: int = 1,
        save_sharded_model: bool = False,
        sep_parallel_degree: int = 1,
        sharding_parallel_config: str = "",
        skip_profile_timer: bool = True,
        tensor_parallel_config: str = "",
        tensor_parallel_degree: int = 1,
        unified_checkpoint: bool = True,
        unified_checkpoint_config: str = "",
        use_expert_parallel: bool = False,
        use_hybrid_parallel: bool = False,
        wandb_api_key: str | None = None,
    ) -> None:
        """Arguments are given by name, in any spelling.

        Args:
            output_dir: Where checkpoints, logs and results go. Required; a Trainer without arguments uses tmp_trainer.
            overwrite_output_dir: For your script: it may start afresh in a directory that holds checkpoints. The Trainer itself deletes nothing; a fresh run among old checkpoints warns and goes on.
            do_train: For your script: train.
            do_eval: For your script: evaluate. Becomes True when eval_strategy is not no.
            do_predict: For your script: predict on the test set.
            do_export: For your script: export the trained model.
            resume_from_checkpoint: A checkpoint's path, or True or latest for the newest one; train() uses it when it gets none. True without a checkpoint starts fresh and says so.
            seed: Seed of the model's and dropout's randomness.
            data_seed: Seed of the order of the data.
            full_determinism: Deterministic algorithms in the framework: two runs are equal to the bit.
            run_name: The name of the run in every logger.
            device_spec: Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device.
            debug: underflow_overflow: on a non-finite value, name the layer and the step.
            profile: Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. A trace and a table of operators go to output_dir/profile.
            log_level: How much the main process says; passive leaves it alone.
            log_level_replica: How much the other processes say.
            log_on_each_node: With several machines: log on each, not on the first alone.
            disable_tqdm: No progress bars.
            skip_memory_metrics: False adds peak-memory figures to the metrics.
            past_index: Feeds this output of the model back as `mems` at the next step; -1 is off.
            per_device_train_batch_size: Samples in one micro-batch on one device, in training.
            per_device_eval_batch_size: Samples in one batch on one device, in evaluation.
            gradient_accumulation_steps: Micro-batches per update; the update equals that of the undivided batch.
            average_tokens_across_devices: With several processes: weigh each one's loss by its number of labelled tokens.
            dataloader_drop_last: Leave out the last batch of an epoch when it is not full.
            dataloader_num_workers: Processes that load data; 0 loads in the main process.
            dataloader_pin_memory: Page-locked host memory, for faster copies to an accelerator; MindSpore copies in its own way.
            dataloader_persistent_workers: Keep the loading processes alive between epochs.
            dataloader_prefetch_factor: Batches that each loading process prepares in advance.
            dataloader_multiprocessing_context: How loading processes are started.
            dataloader_in_order: False yields a batch as soon as any loading process has it ready, so in no fixed order.
            remove_unused_columns: Drop the columns that the model's forward does not accept, and say which.
            label_names: The columns that are labels.
            train_sampling_strategy: The order of the training data; group_by_length makes batches of like lengths.
            length_column_name: The column that holds each sample's length, for group_by_length; measured when it is not there.
            seed_each_sample: Random numbers that the data set draws follow from the sample and the epoch alone, so that they are the same on any number of processes and workers. It costs a reseeding per sample, and samples are fetched one by one.
            ignore_data_skip: After a resume, start the data from the beginning of the epoch.
            auto_find_batch_size: On out-of-memory: smaller micro-batches and more accumulation, with the same global batch.
            learning_rate: The highest learning rate of the schedule.
            weight_decay: Decay of the weights, but not of biases and norm weights.
            adam_beta1: AdamW's decay of the mean.
            adam_beta2: AdamW's decay of the variance.
            adam_epsilon: AdamW's epsilon.
            max_grad_norm: Gradients are scaled down to this norm; 0 turns it off. The norm is logged.
            optim: The optimizer. Every spelling of AdamW is AdamW, except adamw_anyprecision, which is its own; one that needs a package says which.
            optim_args: Further options of the optimizer: "key=value,key=value".
            optim_target_modules: For GaLore and APOLLO optimizers: the modules they work on.
            lr_scheduler_type: How the learning rate moves.
            lr_scheduler_kwargs: Further options of the schedule, as a dict or as JSON.
            warmup_steps: Steps over which the learning rate rises from 0; below 1 it is a ratio of all steps.
            warmup_ratio: The same as a ratio of all steps; warmup_steps wins.
            num_train_epochs: Passes over the data; fractions of an epoch are trained.
            max_steps: Updates in all, when it is not -1; wins over num_train_epochs.
            label_smoothing_factor: Spreads this share of each label over all classes.
            neftune_noise_alpha: Strength of NEFTune's noise on the embeddings.
            fp16: Mixed precision with float16 and a loss scale.
            bf16: Mixed precision with bfloat16.
            fp16_opt_level: For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.
            half_precision_backend: Who does the mixed precision.
            scale_loss: The first loss scale for fp16; steps that overflow are skipped and counted.
            bf16_full_eval: Evaluate with bfloat16 weights.
            fp16_full_eval: Evaluate with float16 weights.
            tf32: TF32 in matrix products on GPUs that have it.
            gradient_checkpointing: Compute activations again in the backward pass: same losses, less memory.
            gradient_checkpointing_kwargs: Further options of gradient_checkpointing, as a dict or as JSON.
            torch_compile: Compile the model with the framework's own graph compiler. On when a backend or a mode is named.
            torch_compile_backend: The compiler's backend; naming one turns torch_compile on.
            torch_compile_mode: The compiler's mode; naming one turns torch_compile on.
            jit_mode_eval: Evaluate on the compiled graph.
            use_ipex: Intel's extension for PyTorch.
            use_liger_kernel: Liger's fused kernels for transformers models.
            liger_kernel_config: Which of Liger's kernels, as a dict or as JSON.
            use_cache: Leave the model's key-value cache on while training.
            torch_empty_cache_steps: Empty the accelerator's memory cache every so many steps.
            eval_strategy: When to evaluate while training.
            eval_steps: Steps between evaluations; below 1 it is a ratio of all steps.
            eval_delay: No evaluation before this epoch, or step, by eval_strategy.
            eval_on_start: Evaluate once before the first step.
            eval_accumulation_steps: Steps that stay on the device before they move to the host.
            eval_do_concat_batches: False hands the outputs to compute_metrics as a list of batches.
            eval_use_gather_object: With several processes: outputs that are not tensors are gathered too, with it or without.
            minimum_eval_times: Lowers eval_steps until there are at least so many; -1 or 0: off.
            prediction_loss_only: Keep the loss alone, no outputs.
            include_for_metrics: What compute_metrics gets besides: inputs, loss.
            batch_eval_metrics: Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept.
            load_best_model_at_end: Keep the model of the best evaluation and load it at the end, whatever save_strategy says.
            metric_for_best_model: The metric that says which evaluation is best.
            greater_is_better: Whether more of it is better.
            logging_dir: Where the writers put their files.
            logging_strategy: When to log.
            logging_steps: Steps between logs; below 1 it is a ratio of all steps.
            logging_first_step: Log the first step too, and evaluate it when evaluation is by steps.
            logging_nan_inf_filter: Leave non-finite losses out of the logged average, and of that alone.
            nonfinite: What a non-finite loss or gradient does: stop the run, skip the update, or nothing.
            report_to: Who gets the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all that ask for no account; none. A service with accounts has to be named.
            include_num_input_tokens_seen: Count the tokens trained on.
            include_tokens_per_second: Add tokens per second to the speed metrics.
            project: The project in writers that have projects.
            trackio_space_id: The space that trackio writes to.
            trackio_bucket_id: The bucket that trackio writes to.
            trackio_static_space_id: The read-only space that trackio makes at the end; False makes none.
            save_strategy: When to save a checkpoint.
            save_steps: Steps between checkpoints; below 1 it is a ratio of all steps.
            save_total_limit: How many checkpoints to keep, the best among them; with 1, the newest and the best.
            save_interval_minutes: Also save when the last checkpoint is this old.
            save_async: Write checkpoints in the background while training goes on.
            save_on_each_node: With several machines: save on each, not on the first alone.
            save_only_model: Checkpoints without optimizer, schedule and random state; no exact resume.
            save_safetensors: Weights as safetensors, which is the only format written.
            restore_callback_states_from_checkpoint: On resume, give the callbacks the state they had in the checkpoint.
            preemption_signals: Signals on which a run finishes its step, saves and leaves; SIGUSR1 and others can be added, [] turns it off.
            enable_jit_checkpoint: True: SIGTERM is one of preemption_signals, as it is by default.
            push_to_hub: Push the model to the Hub each time it is saved.
            hub_model_id: With push_to_hub: the repository.
            hub_strategy: With push_to_hub: what is pushed when.
            hub_token: With push_to_hub: the token. It is in no file and no log.
            hub_private_repo: With push_to_hub: make the repository private.
            hub_always_push: With push_to_hub: push even while the last push is still under way.
            hub_revision: With push_to_hub: the branch to push to.
            local_rank: The process's number on this machine.
            sharding: What the processes share out: stage1 optimizer state, stage2 also gradients, stage3 also parameters; plus offload, auto_wrap.
            sharding_degree: Processes that share one copy; -1 is all of them.
            fsdp_config: Further options of sharding, as a dict, as JSON or as a JSON file.
            deepspeed: DeepSpeed's configuration: a path or a dict.
            accelerator_config: Options of accelerate, as a dict, as JSON or as a JSON file.
            parallelism_config: accelerate's object for several kinds of parallelism.
            ddp_find_unused_parameters: Look for parameters that a step does not use.
            ddp_bucket_cap_mb: Megabytes of gradients sent at once.
            ddp_broadcast_buffers: Keep buffers equal in all processes.
            ddp_static_graph: Every step uses the same parameters.
            ddp_timeout: Seconds to wait for the other processes.
            ddp_backend: How processes talk: gloo, nccl, mpi, ccl, ...
            tpu_num_cores: TPU cores.
            mp_parameters: SageMaker's model parallelism.
            use_legacy_prediction_loop: The evaluation loop of early transformers.
            ray_scope: Which result of a trial Ray Tune compares.
            per_gpu_train_batch_size: The same as per_device_train_batch_size.
            per_gpu_eval_batch_size: The same as per_device_eval_batch_size.
            dataset_drop_last: The same as dataloader_drop_last.
            dataset_num_workers: The same as dataloader_num_workers.
            dataset_prefetch_factor: The same as dataloader_prefetch_factor.
            fp16_backend: The same as half_precision_backend.
            f16_full_eval: The same as fp16_full_eval.
            recompute: The same as gradient_checkpointing.
            recompute_kwargs: The same as gradient_checkpointing_kwargs.
            to_static: The same as torch_compile.
            torchdynamo: The same as torch_compile_backend.
            evaluation_strategy: The same as eval_strategy.
            push_to_hub_model_id: The same as hub_model_id.
            push_to_hub_token: The same as hub_token.
            sharding_parallel_degree: The same as sharding_degree.
            xpu_backend: The same as ddp_backend.
            device: Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device.
            use_cpu: True: device="cpu".
            no_cuda: True: device="cpu".
            use_mps_device: True: device="mps".
            adafactor: True: optim="adafactor".
            group_by_length: True: train_sampling_strategy="group_by_length".
            include_inputs_for_metrics: True: inputs in include_for_metrics.
            tpu_metrics_debug: True: tpu_metrics_debug in debug.
            fsdp: full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; plus offload, auto_wrap.
            sharded_ddp: simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; plus offload, auto_wrap.
            fsdp_min_num_params: fsdp_config's min_num_params.
            fsdp_transformer_layer_cls_to_wrap: fsdp_config's transformer_layer_cls_to_wrap.
            num_cycles: lr_scheduler_kwargs's num_cycles.
            lr_end: lr_scheduler_kwargs's lr_end.
            power: lr_scheduler_kwargs's power.
            push_to_hub_organization: The owner in hub_model_id.
            _n_gpu: -1: the number of devices is read off the machine; choose one with device.
            amp_custom_black_list: None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward.
            amp_custom_white_list: None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward.
            amp_master_grad: False: gradients have the type of their weights; fp16_opt_level='O1' keeps both in float32.
            data_parallel_config: "": the exchange of gradients has no options of Paddle's here.
            data_parallel_degree: -1 or the run's own: it is the number of processes that were launched.
            distributed_dataloader: False: every process makes the batches of its own.
            enable_auto_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            flatten_param_grads: False: gradients stay where the framework has put them.
            force_reshard_pp: False: a checkpoint is one whole model for any number of processes.
            hybrid_parallel_topo_order: None: the model is not cut up; use data parallelism, or sharding to share out its state.
            ignore_load_lr_and_optim: False: load the weights by hand and start a new run.
            ignore_save_lr_and_optim: False: use save_only_model=True.
            lazy_data_processing: True: data sets are read when their samples are needed.
            load_sharded_model: False: a checkpoint is one whole model for any number of processes.
            max_evaluate_steps: -1: an evaluation counts every sample; pass a shorter eval_dataset.
            metrics_output_path: None: save_metrics() writes into output_dir.
            pipeline_parallel_config: "": the model is not cut up; use data parallelism, or sharding to share out its state.
            pipeline_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            save_sharded_model: False: a checkpoint is one whole model for any number of processes.
            sep_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            sharding_parallel_config: "": sharding has no further options on Paddle.
            skip_profile_timer: True: logs have steps_per_second; profile=True shows more.
            tensor_parallel_config: "": the model is not cut up; use data parallelism, or sharding to share out its state.
            tensor_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            unified_checkpoint: True or False: a checkpoint is one whole model for any number of processes.
            unified_checkpoint_config: "": a checkpoint is one whole model for any number of processes.
            use_expert_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            use_hybrid_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            wandb_api_key: None: a key does not belong among arguments, which are written to files; set WANDB_API_KEY instead.
        """
    def validate(self) -> None: ...
    def check_together(self) -> None: ...

@dataclass(init=False, kw_only=True)
class GenerationFields(ArgumentFields):
    sortish_sampler: bool = ...
    """Training data sorted by length within shuffled chunks."""
    predict_with_generate: bool = ...
    """Evaluate and predict with generate(), for metrics such as BLEU."""
    generation_max_length: int | None = ...
    """With predict_with_generate: the longest output."""
    generation_num_beams: int | None = ...
    """With predict_with_generate: beams of the search."""
    generation_config: Any = ...
    """With predict_with_generate: a GenerationConfig, or a model's name or path to load it from."""

    def __init__(
        self,
        output_dir: Text,
        *,
        overwrite_output_dir: Switch = False,
        do_train: Switch = False,
        do_eval: Switch = False,
        do_predict: Switch = False,
        do_export: Switch = False,
        resume_from_checkpoint: bool | Text | None = None,
        seed: Integer = 42,
        data_seed: Integer | None = None,
        full_determinism: Switch = False,
        run_name: Text | None = None,
        device_spec: object | None = None,
        debug: Words | None = "",
        profile: bool | int | str | None = "",
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] | str | None = "passive",
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] | str | None = "warning",
        log_on_each_node: Switch = True,
        disable_tqdm: Switch | None = None,
        skip_memory_metrics: Switch = True,
        past_index: Integer = -1,
        per_device_train_batch_size: Integer = 8,
        per_device_eval_batch_size: Integer = 8,
        gradient_accumulation_steps: Integer = 1,
        average_tokens_across_devices: Switch = True,
        dataloader_drop_last: Switch = False,
        dataloader_num_workers: Integer = 0,
        dataloader_pin_memory: Switch = True,
        dataloader_persistent_workers: Switch = False,
        dataloader_prefetch_factor: Integer | None = None,
        dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | str | None = None,
        dataloader_in_order: Switch = True,
        remove_unused_columns: Switch | None = True,
        label_names: Words | None = None,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] | str = "random",
        length_column_name: Text | None = "length",
        seed_each_sample: Switch = False,
        ignore_data_skip: Switch = False,
        auto_find_batch_size: Switch = False,
        learning_rate: Number = 5e-05,
        weight_decay: Number = 0.0,
        adam_beta1: Number = 0.9,
        adam_beta2: Number = 0.999,
        adam_epsilon: Number = 1e-08,
        max_grad_norm: Number = 1.0,
        optim: OptimizerNames | str = "adamw_torch",
        optim_args: Mapping[str, Any] | Text | None = None,
        optim_target_modules: Words | None = None,
        lr_scheduler_type: SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] | str = "linear",
        lr_scheduler_kwargs: JsonDict | None = None,
        warmup_steps: Number = 0,
        warmup_ratio: Number = 0.0,
        num_train_epochs: Number = 3.0,
        max_steps: Integer = -1,
        label_smoothing_factor: Number = 0.0,
        neftune_noise_alpha: Number | None = None,
        fp16: Switch = False,
        bf16: Switch = False,
        fp16_opt_level: Literal["O0", "O1", "O2", "O3"] | str = "O1",
        half_precision_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | str = "auto",
        scale_loss: Number = 32768.0,
        bf16_full_eval: Switch = False,
        fp16_full_eval: Switch = False,
        tf32: Switch | None = None,
        gradient_checkpointing: Switch = False,
        gradient_checkpointing_kwargs: JsonDict | None = None,
        torch_compile: Switch = False,
        torch_compile_backend: Text | None = None,
        torch_compile_mode: Text | None = None,
        jit_mode_eval: Switch = False,
        use_ipex: Switch = False,
        use_liger_kernel: Switch = False,
        liger_kernel_config: JsonDict | None = None,
        use_cache: Switch = False,
        torch_empty_cache_steps: Integer | None = None,
        eval_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str = "no",
        eval_steps: Number | None = None,
        eval_delay: Number | None = 0,
        eval_on_start: Switch = False,
        eval_accumulation_steps: Integer | None = None,
        eval_do_concat_batches: Switch = True,
        eval_use_gather_object: Switch = False,
        minimum_eval_times: Integer | None = None,
        prediction_loss_only: Switch = False,
        include_for_metrics: Words | None = ...,
        batch_eval_metrics: Switch = False,
        load_best_model_at_end: Switch | None = False,
        metric_for_best_model: Text | None = None,
        greater_is_better: Switch | None = None,
        logging_dir: Text | None = None,
        logging_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str = "steps",
        logging_steps: Number = 500,
        logging_first_step: Switch = False,
        logging_nan_inf_filter: Switch = False,
        nonfinite: Literal["stop", "skip", "ignore"] | str = "stop",
        report_to: Words | None = None,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool | Text = "no",
        include_tokens_per_second: Switch = False,
        project: Text = "huggingface",
        trackio_space_id: Text | None = None,
        trackio_bucket_id: Text | None = None,
        trackio_static_space_id: Literal[False] | Text | None = None,
        save_strategy: SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] | str = "steps",
        save_steps: Number = 500,
        save_total_limit: Integer | None = None,
        save_interval_minutes: Number | None = None,
        save_async: Switch = True,
        save_on_each_node: Switch = False,
        save_only_model: Switch = False,
        save_safetensors: Switch = True,
        restore_callback_states_from_checkpoint: Switch = False,
        preemption_signals: Words | None = ...,
        enable_jit_checkpoint: Switch = False,
        push_to_hub: Switch = False,
        hub_model_id: Text | None = None,
        hub_strategy: HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] | str = "every_save",
        hub_token: Text | None = None,
        hub_private_repo: Switch | None = False,
        hub_always_push: Switch = False,
        hub_revision: Text | None = None,
        local_rank: Integer = -1,
        sharding: Words | None = "",
        sharding_degree: Integer = -1,
        fsdp_config: Config | None = None,
        deepspeed: dict[str, Any] | Text | None = None,
        accelerator_config: Config | None = None,
        parallelism_config: Any = None,
        ddp_find_unused_parameters: Switch | None = None,
        ddp_bucket_cap_mb: Integer | None = None,
        ddp_broadcast_buffers: Switch | None = None,
        ddp_static_graph: Switch | None = None,
        ddp_timeout: Integer | None = 1800,
        ddp_backend: Text | None = None,
        tpu_num_cores: Integer | None = None,
        mp_parameters: Text = "",
        use_legacy_prediction_loop: Switch = False,
        ray_scope: Literal["last", "all", "avg", "last-5-avg", "last-10-avg"] | str | None = "last",
        sortish_sampler: Switch = False,
        predict_with_generate: Switch = False,
        generation_max_length: Integer | None = None,
        generation_num_beams: Integer | None = None,
        generation_config: Any = None,
        per_gpu_train_batch_size: Integer | None = None,
        per_gpu_eval_batch_size: Integer | None = None,
        dataset_drop_last: Switch | None = None,
        dataset_num_workers: Integer | None = None,
        dataset_prefetch_factor: Integer | None = None,
        fp16_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | str | None = None,
        f16_full_eval: Switch | None = None,
        recompute: Switch | None = None,
        recompute_kwargs: JsonDict | None = None,
        to_static: Switch | None = None,
        torchdynamo: Text | None = None,
        evaluation_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str | None = None,
        push_to_hub_model_id: Text | None = None,
        push_to_hub_token: Text | None = None,
        sharding_parallel_degree: Integer | None = None,
        xpu_backend: Text | None = None,
        device: object | None = None,
        use_cpu: Switch | None = None,
        no_cuda: Switch | None = None,
        use_mps_device: Switch | None = None,
        adafactor: Switch | None = None,
        group_by_length: Switch | None = None,
        include_inputs_for_metrics: Switch | None = None,
        tpu_metrics_debug: Switch | None = None,
        fsdp: bool | Words | None = None,
        sharded_ddp: bool | Words | None = None,
        fsdp_min_num_params: Integer | None = None,
        fsdp_transformer_layer_cls_to_wrap: Text | None = None,
        num_cycles: Number | None = None,
        lr_end: Number | None = None,
        power: Number | None = None,
        push_to_hub_organization: Text | None = None,
        _n_gpu: int = -1,
        amp_custom_black_list: list[str] | None = None,
        amp_custom_white_list: list[str] | None = None,
        amp_master_grad: bool = False,
        data_parallel_config: str = "",
        data_parallel_degree: int = -1,
        distributed_dataloader: bool = False,
        enable_auto_parallel: bool = False,
        flatten_param_grads: bool = False,
        force_reshard_pp: bool = False,
        hybrid_parallel_topo_order: str | None = None,
        ignore_load_lr_and_optim: bool = False,
        ignore_save_lr_and_optim: bool = False,
        lazy_data_processing: bool = True,
        load_sharded_model: bool = False,
        max_evaluate_steps: int = -1,
        metrics_output_path: str | None = None,
        pipeline_parallel_config: str = "",
        pipeline_parallel_degree: int = 1,
        save_sharded_model: bool = False,
        sep_parallel_degree: int = 1,
        sharding_parallel_config: str = "",
        skip_profile_timer: bool = True,
        tensor_parallel_config: str = "",
        tensor_parallel_degree: int = 1,
        unified_checkpoint: bool = True,
        unified_checkpoint_config: str = "",
        use_expert_parallel: bool = False,
        use_hybrid_parallel: bool = False,
        wandb_api_key: str | None = None,
    ) -> None:
        """Arguments are given by name, in any spelling.

        Args:
            output_dir: Where checkpoints, logs and results go. Required; a Trainer without arguments uses tmp_trainer.
            overwrite_output_dir: For your script: it may start afresh in a directory that holds checkpoints. The Trainer itself deletes nothing; a fresh run among old checkpoints warns and goes on.
            do_train: For your script: train.
            do_eval: For your script: evaluate. Becomes True when eval_strategy is not no.
            do_predict: For your script: predict on the test set.
            do_export: For your script: export the trained model.
            resume_from_checkpoint: A checkpoint's path, or True or latest for the newest one; train() uses it when it gets none. True without a checkpoint starts fresh and says so.
            seed: Seed of the model's and dropout's randomness.
            data_seed: Seed of the order of the data.
            full_determinism: Deterministic algorithms in the framework: two runs are equal to the bit.
            run_name: The name of the run in every logger.
            device_spec: Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device.
            debug: underflow_overflow: on a non-finite value, name the layer and the step.
            profile: Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. A trace and a table of operators go to output_dir/profile.
            log_level: How much the main process says; passive leaves it alone.
            log_level_replica: How much the other processes say.
            log_on_each_node: With several machines: log on each, not on the first alone.
            disable_tqdm: No progress bars.
            skip_memory_metrics: False adds peak-memory figures to the metrics.
            past_index: Feeds this output of the model back as `mems` at the next step; -1 is off.
            per_device_train_batch_size: Samples in one micro-batch on one device, in training.
            per_device_eval_batch_size: Samples in one batch on one device, in evaluation.
            gradient_accumulation_steps: Micro-batches per update; the update equals that of the undivided batch.
            average_tokens_across_devices: With several processes: weigh each one's loss by its number of labelled tokens.
            dataloader_drop_last: Leave out the last batch of an epoch when it is not full.
            dataloader_num_workers: Processes that load data; 0 loads in the main process.
            dataloader_pin_memory: Page-locked host memory, for faster copies to an accelerator; MindSpore copies in its own way.
            dataloader_persistent_workers: Keep the loading processes alive between epochs.
            dataloader_prefetch_factor: Batches that each loading process prepares in advance.
            dataloader_multiprocessing_context: How loading processes are started.
            dataloader_in_order: False yields a batch as soon as any loading process has it ready, so in no fixed order.
            remove_unused_columns: Drop the columns that the model's forward does not accept, and say which.
            label_names: The columns that are labels.
            train_sampling_strategy: The order of the training data; group_by_length makes batches of like lengths.
            length_column_name: The column that holds each sample's length, for group_by_length; measured when it is not there.
            seed_each_sample: Random numbers that the data set draws follow from the sample and the epoch alone, so that they are the same on any number of processes and workers. It costs a reseeding per sample, and samples are fetched one by one.
            ignore_data_skip: After a resume, start the data from the beginning of the epoch.
            auto_find_batch_size: On out-of-memory: smaller micro-batches and more accumulation, with the same global batch.
            learning_rate: The highest learning rate of the schedule.
            weight_decay: Decay of the weights, but not of biases and norm weights.
            adam_beta1: AdamW's decay of the mean.
            adam_beta2: AdamW's decay of the variance.
            adam_epsilon: AdamW's epsilon.
            max_grad_norm: Gradients are scaled down to this norm; 0 turns it off. The norm is logged.
            optim: The optimizer. Every spelling of AdamW is AdamW, except adamw_anyprecision, which is its own; one that needs a package says which.
            optim_args: Further options of the optimizer: "key=value,key=value".
            optim_target_modules: For GaLore and APOLLO optimizers: the modules they work on.
            lr_scheduler_type: How the learning rate moves.
            lr_scheduler_kwargs: Further options of the schedule, as a dict or as JSON.
            warmup_steps: Steps over which the learning rate rises from 0; below 1 it is a ratio of all steps.
            warmup_ratio: The same as a ratio of all steps; warmup_steps wins.
            num_train_epochs: Passes over the data; fractions of an epoch are trained.
            max_steps: Updates in all, when it is not -1; wins over num_train_epochs.
            label_smoothing_factor: Spreads this share of each label over all classes.
            neftune_noise_alpha: Strength of NEFTune's noise on the embeddings.
            fp16: Mixed precision with float16 and a loss scale.
            bf16: Mixed precision with bfloat16.
            fp16_opt_level: For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.
            half_precision_backend: Who does the mixed precision.
            scale_loss: The first loss scale for fp16; steps that overflow are skipped and counted.
            bf16_full_eval: Evaluate with bfloat16 weights.
            fp16_full_eval: Evaluate with float16 weights.
            tf32: TF32 in matrix products on GPUs that have it.
            gradient_checkpointing: Compute activations again in the backward pass: same losses, less memory.
            gradient_checkpointing_kwargs: Further options of gradient_checkpointing, as a dict or as JSON.
            torch_compile: Compile the model with the framework's own graph compiler. On when a backend or a mode is named.
            torch_compile_backend: The compiler's backend; naming one turns torch_compile on.
            torch_compile_mode: The compiler's mode; naming one turns torch_compile on.
            jit_mode_eval: Evaluate on the compiled graph.
            use_ipex: Intel's extension for PyTorch.
            use_liger_kernel: Liger's fused kernels for transformers models.
            liger_kernel_config: Which of Liger's kernels, as a dict or as JSON.
            use_cache: Leave the model's key-value cache on while training.
            torch_empty_cache_steps: Empty the accelerator's memory cache every so many steps.
            eval_strategy: When to evaluate while training.
            eval_steps: Steps between evaluations; below 1 it is a ratio of all steps.
            eval_delay: No evaluation before this epoch, or step, by eval_strategy.
            eval_on_start: Evaluate once before the first step.
            eval_accumulation_steps: Steps that stay on the device before they move to the host.
            eval_do_concat_batches: False hands the outputs to compute_metrics as a list of batches.
            eval_use_gather_object: With several processes: outputs that are not tensors are gathered too, with it or without.
            minimum_eval_times: Lowers eval_steps until there are at least so many; -1 or 0: off.
            prediction_loss_only: Keep the loss alone, no outputs.
            include_for_metrics: What compute_metrics gets besides: inputs, loss.
            batch_eval_metrics: Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept.
            load_best_model_at_end: Keep the model of the best evaluation and load it at the end, whatever save_strategy says.
            metric_for_best_model: The metric that says which evaluation is best.
            greater_is_better: Whether more of it is better.
            logging_dir: Where the writers put their files.
            logging_strategy: When to log.
            logging_steps: Steps between logs; below 1 it is a ratio of all steps.
            logging_first_step: Log the first step too, and evaluate it when evaluation is by steps.
            logging_nan_inf_filter: Leave non-finite losses out of the logged average, and of that alone.
            nonfinite: What a non-finite loss or gradient does: stop the run, skip the update, or nothing.
            report_to: Who gets the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all that ask for no account; none. A service with accounts has to be named.
            include_num_input_tokens_seen: Count the tokens trained on.
            include_tokens_per_second: Add tokens per second to the speed metrics.
            project: The project in writers that have projects.
            trackio_space_id: The space that trackio writes to.
            trackio_bucket_id: The bucket that trackio writes to.
            trackio_static_space_id: The read-only space that trackio makes at the end; False makes none.
            save_strategy: When to save a checkpoint.
            save_steps: Steps between checkpoints; below 1 it is a ratio of all steps.
            save_total_limit: How many checkpoints to keep, the best among them; with 1, the newest and the best.
            save_interval_minutes: Also save when the last checkpoint is this old.
            save_async: Write checkpoints in the background while training goes on.
            save_on_each_node: With several machines: save on each, not on the first alone.
            save_only_model: Checkpoints without optimizer, schedule and random state; no exact resume.
            save_safetensors: Weights as safetensors, which is the only format written.
            restore_callback_states_from_checkpoint: On resume, give the callbacks the state they had in the checkpoint.
            preemption_signals: Signals on which a run finishes its step, saves and leaves; SIGUSR1 and others can be added, [] turns it off.
            enable_jit_checkpoint: True: SIGTERM is one of preemption_signals, as it is by default.
            push_to_hub: Push the model to the Hub each time it is saved.
            hub_model_id: With push_to_hub: the repository.
            hub_strategy: With push_to_hub: what is pushed when.
            hub_token: With push_to_hub: the token. It is in no file and no log.
            hub_private_repo: With push_to_hub: make the repository private.
            hub_always_push: With push_to_hub: push even while the last push is still under way.
            hub_revision: With push_to_hub: the branch to push to.
            local_rank: The process's number on this machine.
            sharding: What the processes share out: stage1 optimizer state, stage2 also gradients, stage3 also parameters; plus offload, auto_wrap.
            sharding_degree: Processes that share one copy; -1 is all of them.
            fsdp_config: Further options of sharding, as a dict, as JSON or as a JSON file.
            deepspeed: DeepSpeed's configuration: a path or a dict.
            accelerator_config: Options of accelerate, as a dict, as JSON or as a JSON file.
            parallelism_config: accelerate's object for several kinds of parallelism.
            ddp_find_unused_parameters: Look for parameters that a step does not use.
            ddp_bucket_cap_mb: Megabytes of gradients sent at once.
            ddp_broadcast_buffers: Keep buffers equal in all processes.
            ddp_static_graph: Every step uses the same parameters.
            ddp_timeout: Seconds to wait for the other processes.
            ddp_backend: How processes talk: gloo, nccl, mpi, ccl, ...
            tpu_num_cores: TPU cores.
            mp_parameters: SageMaker's model parallelism.
            use_legacy_prediction_loop: The evaluation loop of early transformers.
            ray_scope: Which result of a trial Ray Tune compares.
            sortish_sampler: Training data sorted by length within shuffled chunks.
            predict_with_generate: Evaluate and predict with generate(), for metrics such as BLEU.
            generation_max_length: With predict_with_generate: the longest output.
            generation_num_beams: With predict_with_generate: beams of the search.
            generation_config: With predict_with_generate: a GenerationConfig, or a model's name or path to load it from.
            per_gpu_train_batch_size: The same as per_device_train_batch_size.
            per_gpu_eval_batch_size: The same as per_device_eval_batch_size.
            dataset_drop_last: The same as dataloader_drop_last.
            dataset_num_workers: The same as dataloader_num_workers.
            dataset_prefetch_factor: The same as dataloader_prefetch_factor.
            fp16_backend: The same as half_precision_backend.
            f16_full_eval: The same as fp16_full_eval.
            recompute: The same as gradient_checkpointing.
            recompute_kwargs: The same as gradient_checkpointing_kwargs.
            to_static: The same as torch_compile.
            torchdynamo: The same as torch_compile_backend.
            evaluation_strategy: The same as eval_strategy.
            push_to_hub_model_id: The same as hub_model_id.
            push_to_hub_token: The same as hub_token.
            sharding_parallel_degree: The same as sharding_degree.
            xpu_backend: The same as ddp_backend.
            device: Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device.
            use_cpu: True: device="cpu".
            no_cuda: True: device="cpu".
            use_mps_device: True: device="mps".
            adafactor: True: optim="adafactor".
            group_by_length: True: train_sampling_strategy="group_by_length".
            include_inputs_for_metrics: True: inputs in include_for_metrics.
            tpu_metrics_debug: True: tpu_metrics_debug in debug.
            fsdp: full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; plus offload, auto_wrap.
            sharded_ddp: simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; plus offload, auto_wrap.
            fsdp_min_num_params: fsdp_config's min_num_params.
            fsdp_transformer_layer_cls_to_wrap: fsdp_config's transformer_layer_cls_to_wrap.
            num_cycles: lr_scheduler_kwargs's num_cycles.
            lr_end: lr_scheduler_kwargs's lr_end.
            power: lr_scheduler_kwargs's power.
            push_to_hub_organization: The owner in hub_model_id.
            _n_gpu: -1: the number of devices is read off the machine; choose one with device.
            amp_custom_black_list: None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward.
            amp_custom_white_list: None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward.
            amp_master_grad: False: gradients have the type of their weights; fp16_opt_level='O1' keeps both in float32.
            data_parallel_config: "": the exchange of gradients has no options of Paddle's here.
            data_parallel_degree: -1 or the run's own: it is the number of processes that were launched.
            distributed_dataloader: False: every process makes the batches of its own.
            enable_auto_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            flatten_param_grads: False: gradients stay where the framework has put them.
            force_reshard_pp: False: a checkpoint is one whole model for any number of processes.
            hybrid_parallel_topo_order: None: the model is not cut up; use data parallelism, or sharding to share out its state.
            ignore_load_lr_and_optim: False: load the weights by hand and start a new run.
            ignore_save_lr_and_optim: False: use save_only_model=True.
            lazy_data_processing: True: data sets are read when their samples are needed.
            load_sharded_model: False: a checkpoint is one whole model for any number of processes.
            max_evaluate_steps: -1: an evaluation counts every sample; pass a shorter eval_dataset.
            metrics_output_path: None: save_metrics() writes into output_dir.
            pipeline_parallel_config: "": the model is not cut up; use data parallelism, or sharding to share out its state.
            pipeline_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            save_sharded_model: False: a checkpoint is one whole model for any number of processes.
            sep_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            sharding_parallel_config: "": sharding has no further options on Paddle.
            skip_profile_timer: True: logs have steps_per_second; profile=True shows more.
            tensor_parallel_config: "": the model is not cut up; use data parallelism, or sharding to share out its state.
            tensor_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            unified_checkpoint: True or False: a checkpoint is one whole model for any number of processes.
            unified_checkpoint_config: "": a checkpoint is one whole model for any number of processes.
            use_expert_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            use_hybrid_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            wandb_api_key: None: a key does not belong among arguments, which are written to files; set WANDB_API_KEY instead.
        """

@dataclass(init=False, kw_only=True)
class CompressionFields(ArgumentFields):
    warmup_ratio: float = ...
    """The same as a ratio of all steps; warmup_steps wins."""
    logging_steps: float = ...
    """Steps between logs; below 1 it is a ratio of all steps."""
    save_steps: float = ...
    """Steps between checkpoints; below 1 it is a ratio of all steps."""
    do_compress: bool = ...
    """PaddleNLP: compress the model. Refused here."""
    strategy: str | None = ...
    """PaddleNLP: for its compression alone."""
    input_dtype: str | None = ...
    """PaddleNLP: for its compression alone."""
    prune_embeddings: bool = ...
    """PaddleNLP: for its compression alone."""
    onnx_format: bool | None = ...
    """PaddleNLP: for its compression alone."""
    width_mult_list: list[str] | None = ...
    """PaddleNLP: for its compression alone."""
    weight_quantize_type: str | None = ...
    """PaddleNLP: for its compression alone."""
    activation_quantize_type: str | None = ...
    """PaddleNLP: for its compression alone."""
    algo_list: list[str] | None = ...
    """PaddleNLP: for its compression alone."""
    batch_num_list: list[int] | None = ...
    """PaddleNLP: for its compression alone."""
    batch_size_list: list[int] | None = ...
    """PaddleNLP: for its compression alone."""
    round_type: str | None = ...
    """PaddleNLP: for its compression alone."""
    bias_correction: bool | None = ...
    """PaddleNLP: for its compression alone."""
    input_infer_model_path: str | None = ...
    """PaddleNLP: for its compression alone."""
    use_pact: bool | None = ...
    """PaddleNLP: for its compression alone."""
    moving_rate: float | None = ...
    """PaddleNLP: for its compression alone."""

    def __init__(
        self,
        output_dir: Text,
        *,
        overwrite_output_dir: Switch = False,
        do_train: Switch = False,
        do_eval: Switch = False,
        do_predict: Switch = False,
        do_export: Switch = False,
        resume_from_checkpoint: bool | Text | None = None,
        seed: Integer = 42,
        data_seed: Integer | None = None,
        full_determinism: Switch = False,
        run_name: Text | None = None,
        device_spec: object | None = None,
        debug: Words | None = "",
        profile: bool | int | str | None = "",
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] | str | None = "passive",
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] | str | None = "warning",
        log_on_each_node: Switch = True,
        disable_tqdm: Switch | None = None,
        skip_memory_metrics: Switch = True,
        past_index: Integer = -1,
        per_device_train_batch_size: Integer = 8,
        per_device_eval_batch_size: Integer = 8,
        gradient_accumulation_steps: Integer = 1,
        average_tokens_across_devices: Switch = True,
        dataloader_drop_last: Switch = False,
        dataloader_num_workers: Integer = 0,
        dataloader_pin_memory: Switch = True,
        dataloader_persistent_workers: Switch = False,
        dataloader_prefetch_factor: Integer | None = None,
        dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | str | None = None,
        dataloader_in_order: Switch = True,
        remove_unused_columns: Switch | None = True,
        label_names: Words | None = None,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] | str = "random",
        length_column_name: Text | None = "length",
        seed_each_sample: Switch = False,
        ignore_data_skip: Switch = False,
        auto_find_batch_size: Switch = False,
        learning_rate: Number = 5e-05,
        weight_decay: Number = 0.0,
        adam_beta1: Number = 0.9,
        adam_beta2: Number = 0.999,
        adam_epsilon: Number = 1e-08,
        max_grad_norm: Number = 1.0,
        optim: OptimizerNames | str = "adamw_torch",
        optim_args: Mapping[str, Any] | Text | None = None,
        optim_target_modules: Words | None = None,
        lr_scheduler_type: SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] | str = "linear",
        lr_scheduler_kwargs: JsonDict | None = None,
        warmup_steps: Number = 0,
        warmup_ratio: Number = 0.1,
        num_train_epochs: Number = 3.0,
        max_steps: Integer = -1,
        label_smoothing_factor: Number = 0.0,
        neftune_noise_alpha: Number | None = None,
        fp16: Switch = False,
        bf16: Switch = False,
        fp16_opt_level: Literal["O0", "O1", "O2", "O3"] | str = "O1",
        half_precision_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | str = "auto",
        scale_loss: Number = 32768.0,
        bf16_full_eval: Switch = False,
        fp16_full_eval: Switch = False,
        tf32: Switch | None = None,
        gradient_checkpointing: Switch = False,
        gradient_checkpointing_kwargs: JsonDict | None = None,
        torch_compile: Switch = False,
        torch_compile_backend: Text | None = None,
        torch_compile_mode: Text | None = None,
        jit_mode_eval: Switch = False,
        use_ipex: Switch = False,
        use_liger_kernel: Switch = False,
        liger_kernel_config: JsonDict | None = None,
        use_cache: Switch = False,
        torch_empty_cache_steps: Integer | None = None,
        eval_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str = "no",
        eval_steps: Number | None = None,
        eval_delay: Number | None = 0,
        eval_on_start: Switch = False,
        eval_accumulation_steps: Integer | None = None,
        eval_do_concat_batches: Switch = True,
        eval_use_gather_object: Switch = False,
        minimum_eval_times: Integer | None = None,
        prediction_loss_only: Switch = False,
        include_for_metrics: Words | None = ...,
        batch_eval_metrics: Switch = False,
        load_best_model_at_end: Switch | None = False,
        metric_for_best_model: Text | None = None,
        greater_is_better: Switch | None = None,
        logging_dir: Text | None = None,
        logging_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str = "steps",
        logging_steps: Number = 100,
        logging_first_step: Switch = False,
        logging_nan_inf_filter: Switch = False,
        nonfinite: Literal["stop", "skip", "ignore"] | str = "stop",
        report_to: Words | None = None,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool | Text = "no",
        include_tokens_per_second: Switch = False,
        project: Text = "huggingface",
        trackio_space_id: Text | None = None,
        trackio_bucket_id: Text | None = None,
        trackio_static_space_id: Literal[False] | Text | None = None,
        save_strategy: SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] | str = "steps",
        save_steps: Number = 100,
        save_total_limit: Integer | None = None,
        save_interval_minutes: Number | None = None,
        save_async: Switch = True,
        save_on_each_node: Switch = False,
        save_only_model: Switch = False,
        save_safetensors: Switch = True,
        restore_callback_states_from_checkpoint: Switch = False,
        preemption_signals: Words | None = ...,
        enable_jit_checkpoint: Switch = False,
        push_to_hub: Switch = False,
        hub_model_id: Text | None = None,
        hub_strategy: HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] | str = "every_save",
        hub_token: Text | None = None,
        hub_private_repo: Switch | None = False,
        hub_always_push: Switch = False,
        hub_revision: Text | None = None,
        local_rank: Integer = -1,
        sharding: Words | None = "",
        sharding_degree: Integer = -1,
        fsdp_config: Config | None = None,
        deepspeed: dict[str, Any] | Text | None = None,
        accelerator_config: Config | None = None,
        parallelism_config: Any = None,
        ddp_find_unused_parameters: Switch | None = None,
        ddp_bucket_cap_mb: Integer | None = None,
        ddp_broadcast_buffers: Switch | None = None,
        ddp_static_graph: Switch | None = None,
        ddp_timeout: Integer | None = 1800,
        ddp_backend: Text | None = None,
        tpu_num_cores: Integer | None = None,
        mp_parameters: Text = "",
        use_legacy_prediction_loop: Switch = False,
        ray_scope: Literal["last", "all", "avg", "last-5-avg", "last-10-avg"] | str | None = "last",
        do_compress: bool = False,
        strategy: str | None = "dynabert+ptq",
        input_dtype: str | None = "int64",
        prune_embeddings: bool = False,
        onnx_format: bool | None = True,
        width_mult_list: list[str] | None = None,
        weight_quantize_type: str | None = "channel_wise_abs_max",
        activation_quantize_type: str | None = None,
        algo_list: list[str] | None = None,
        batch_num_list: list[int] | None = None,
        batch_size_list: list[int] | None = None,
        round_type: str | None = "round",
        bias_correction: bool | None = False,
        input_infer_model_path: str | None = None,
        use_pact: bool | None = True,
        moving_rate: float | None = 0.9,
        per_gpu_train_batch_size: Integer | None = None,
        per_gpu_eval_batch_size: Integer | None = None,
        dataset_drop_last: Switch | None = None,
        dataset_num_workers: Integer | None = None,
        dataset_prefetch_factor: Integer | None = None,
        fp16_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | str | None = None,
        f16_full_eval: Switch | None = None,
        recompute: Switch | None = None,
        recompute_kwargs: JsonDict | None = None,
        to_static: Switch | None = None,
        torchdynamo: Text | None = None,
        evaluation_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | str | None = None,
        push_to_hub_model_id: Text | None = None,
        push_to_hub_token: Text | None = None,
        sharding_parallel_degree: Integer | None = None,
        xpu_backend: Text | None = None,
        device: object | None = None,
        use_cpu: Switch | None = None,
        no_cuda: Switch | None = None,
        use_mps_device: Switch | None = None,
        adafactor: Switch | None = None,
        group_by_length: Switch | None = None,
        include_inputs_for_metrics: Switch | None = None,
        tpu_metrics_debug: Switch | None = None,
        fsdp: bool | Words | None = None,
        sharded_ddp: bool | Words | None = None,
        fsdp_min_num_params: Integer | None = None,
        fsdp_transformer_layer_cls_to_wrap: Text | None = None,
        num_cycles: Number | None = None,
        lr_end: Number | None = None,
        power: Number | None = None,
        push_to_hub_organization: Text | None = None,
        _n_gpu: int = -1,
        amp_custom_black_list: list[str] | None = None,
        amp_custom_white_list: list[str] | None = None,
        amp_master_grad: bool = False,
        data_parallel_config: str = "",
        data_parallel_degree: int = -1,
        distributed_dataloader: bool = False,
        enable_auto_parallel: bool = False,
        flatten_param_grads: bool = False,
        force_reshard_pp: bool = False,
        hybrid_parallel_topo_order: str | None = None,
        ignore_load_lr_and_optim: bool = False,
        ignore_save_lr_and_optim: bool = False,
        lazy_data_processing: bool = True,
        load_sharded_model: bool = False,
        max_evaluate_steps: int = -1,
        metrics_output_path: str | None = None,
        pipeline_parallel_config: str = "",
        pipeline_parallel_degree: int = 1,
        save_sharded_model: bool = False,
        sep_parallel_degree: int = 1,
        sharding_parallel_config: str = "",
        skip_profile_timer: bool = True,
        tensor_parallel_config: str = "",
        tensor_parallel_degree: int = 1,
        unified_checkpoint: bool = True,
        unified_checkpoint_config: str = "",
        use_expert_parallel: bool = False,
        use_hybrid_parallel: bool = False,
        wandb_api_key: str | None = None,
    ) -> None:
        """Arguments are given by name, in any spelling.

        Args:
            output_dir: Where checkpoints, logs and results go. Required; a Trainer without arguments uses tmp_trainer.
            overwrite_output_dir: For your script: it may start afresh in a directory that holds checkpoints. The Trainer itself deletes nothing; a fresh run among old checkpoints warns and goes on.
            do_train: For your script: train.
            do_eval: For your script: evaluate. Becomes True when eval_strategy is not no.
            do_predict: For your script: predict on the test set.
            do_export: For your script: export the trained model.
            resume_from_checkpoint: A checkpoint's path, or True or latest for the newest one; train() uses it when it gets none. True without a checkpoint starts fresh and says so.
            seed: Seed of the model's and dropout's randomness.
            data_seed: Seed of the order of the data.
            full_determinism: Deterministic algorithms in the framework: two runs are equal to the bit.
            run_name: The name of the run in every logger.
            device_spec: Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device.
            debug: underflow_overflow: on a non-finite value, name the layer and the step.
            profile: Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. A trace and a table of operators go to output_dir/profile.
            log_level: How much the main process says; passive leaves it alone.
            log_level_replica: How much the other processes say.
            log_on_each_node: With several machines: log on each, not on the first alone.
            disable_tqdm: No progress bars.
            skip_memory_metrics: False adds peak-memory figures to the metrics.
            past_index: Feeds this output of the model back as `mems` at the next step; -1 is off.
            per_device_train_batch_size: Samples in one micro-batch on one device, in training.
            per_device_eval_batch_size: Samples in one batch on one device, in evaluation.
            gradient_accumulation_steps: Micro-batches per update; the update equals that of the undivided batch.
            average_tokens_across_devices: With several processes: weigh each one's loss by its number of labelled tokens.
            dataloader_drop_last: Leave out the last batch of an epoch when it is not full.
            dataloader_num_workers: Processes that load data; 0 loads in the main process.
            dataloader_pin_memory: Page-locked host memory, for faster copies to an accelerator; MindSpore copies in its own way.
            dataloader_persistent_workers: Keep the loading processes alive between epochs.
            dataloader_prefetch_factor: Batches that each loading process prepares in advance.
            dataloader_multiprocessing_context: How loading processes are started.
            dataloader_in_order: False yields a batch as soon as any loading process has it ready, so in no fixed order.
            remove_unused_columns: Drop the columns that the model's forward does not accept, and say which.
            label_names: The columns that are labels.
            train_sampling_strategy: The order of the training data; group_by_length makes batches of like lengths.
            length_column_name: The column that holds each sample's length, for group_by_length; measured when it is not there.
            seed_each_sample: Random numbers that the data set draws follow from the sample and the epoch alone, so that they are the same on any number of processes and workers. It costs a reseeding per sample, and samples are fetched one by one.
            ignore_data_skip: After a resume, start the data from the beginning of the epoch.
            auto_find_batch_size: On out-of-memory: smaller micro-batches and more accumulation, with the same global batch.
            learning_rate: The highest learning rate of the schedule.
            weight_decay: Decay of the weights, but not of biases and norm weights.
            adam_beta1: AdamW's decay of the mean.
            adam_beta2: AdamW's decay of the variance.
            adam_epsilon: AdamW's epsilon.
            max_grad_norm: Gradients are scaled down to this norm; 0 turns it off. The norm is logged.
            optim: The optimizer. Every spelling of AdamW is AdamW, except adamw_anyprecision, which is its own; one that needs a package says which.
            optim_args: Further options of the optimizer: "key=value,key=value".
            optim_target_modules: For GaLore and APOLLO optimizers: the modules they work on.
            lr_scheduler_type: How the learning rate moves.
            lr_scheduler_kwargs: Further options of the schedule, as a dict or as JSON.
            warmup_steps: Steps over which the learning rate rises from 0; below 1 it is a ratio of all steps.
            warmup_ratio: The same as a ratio of all steps; warmup_steps wins.
            num_train_epochs: Passes over the data; fractions of an epoch are trained.
            max_steps: Updates in all, when it is not -1; wins over num_train_epochs.
            label_smoothing_factor: Spreads this share of each label over all classes.
            neftune_noise_alpha: Strength of NEFTune's noise on the embeddings.
            fp16: Mixed precision with float16 and a loss scale.
            bf16: Mixed precision with bfloat16.
            fp16_opt_level: For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.
            half_precision_backend: Who does the mixed precision.
            scale_loss: The first loss scale for fp16; steps that overflow are skipped and counted.
            bf16_full_eval: Evaluate with bfloat16 weights.
            fp16_full_eval: Evaluate with float16 weights.
            tf32: TF32 in matrix products on GPUs that have it.
            gradient_checkpointing: Compute activations again in the backward pass: same losses, less memory.
            gradient_checkpointing_kwargs: Further options of gradient_checkpointing, as a dict or as JSON.
            torch_compile: Compile the model with the framework's own graph compiler. On when a backend or a mode is named.
            torch_compile_backend: The compiler's backend; naming one turns torch_compile on.
            torch_compile_mode: The compiler's mode; naming one turns torch_compile on.
            jit_mode_eval: Evaluate on the compiled graph.
            use_ipex: Intel's extension for PyTorch.
            use_liger_kernel: Liger's fused kernels for transformers models.
            liger_kernel_config: Which of Liger's kernels, as a dict or as JSON.
            use_cache: Leave the model's key-value cache on while training.
            torch_empty_cache_steps: Empty the accelerator's memory cache every so many steps.
            eval_strategy: When to evaluate while training.
            eval_steps: Steps between evaluations; below 1 it is a ratio of all steps.
            eval_delay: No evaluation before this epoch, or step, by eval_strategy.
            eval_on_start: Evaluate once before the first step.
            eval_accumulation_steps: Steps that stay on the device before they move to the host.
            eval_do_concat_batches: False hands the outputs to compute_metrics as a list of batches.
            eval_use_gather_object: With several processes: outputs that are not tensors are gathered too, with it or without.
            minimum_eval_times: Lowers eval_steps until there are at least so many; -1 or 0: off.
            prediction_loss_only: Keep the loss alone, no outputs.
            include_for_metrics: What compute_metrics gets besides: inputs, loss.
            batch_eval_metrics: Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept.
            load_best_model_at_end: Keep the model of the best evaluation and load it at the end, whatever save_strategy says.
            metric_for_best_model: The metric that says which evaluation is best.
            greater_is_better: Whether more of it is better.
            logging_dir: Where the writers put their files.
            logging_strategy: When to log.
            logging_steps: Steps between logs; below 1 it is a ratio of all steps.
            logging_first_step: Log the first step too, and evaluate it when evaluation is by steps.
            logging_nan_inf_filter: Leave non-finite losses out of the logged average, and of that alone.
            nonfinite: What a non-finite loss or gradient does: stop the run, skip the update, or nothing.
            report_to: Who gets the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all that ask for no account; none. A service with accounts has to be named.
            include_num_input_tokens_seen: Count the tokens trained on.
            include_tokens_per_second: Add tokens per second to the speed metrics.
            project: The project in writers that have projects.
            trackio_space_id: The space that trackio writes to.
            trackio_bucket_id: The bucket that trackio writes to.
            trackio_static_space_id: The read-only space that trackio makes at the end; False makes none.
            save_strategy: When to save a checkpoint.
            save_steps: Steps between checkpoints; below 1 it is a ratio of all steps.
            save_total_limit: How many checkpoints to keep, the best among them; with 1, the newest and the best.
            save_interval_minutes: Also save when the last checkpoint is this old.
            save_async: Write checkpoints in the background while training goes on.
            save_on_each_node: With several machines: save on each, not on the first alone.
            save_only_model: Checkpoints without optimizer, schedule and random state; no exact resume.
            save_safetensors: Weights as safetensors, which is the only format written.
            restore_callback_states_from_checkpoint: On resume, give the callbacks the state they had in the checkpoint.
            preemption_signals: Signals on which a run finishes its step, saves and leaves; SIGUSR1 and others can be added, [] turns it off.
            enable_jit_checkpoint: True: SIGTERM is one of preemption_signals, as it is by default.
            push_to_hub: Push the model to the Hub each time it is saved.
            hub_model_id: With push_to_hub: the repository.
            hub_strategy: With push_to_hub: what is pushed when.
            hub_token: With push_to_hub: the token. It is in no file and no log.
            hub_private_repo: With push_to_hub: make the repository private.
            hub_always_push: With push_to_hub: push even while the last push is still under way.
            hub_revision: With push_to_hub: the branch to push to.
            local_rank: The process's number on this machine.
            sharding: What the processes share out: stage1 optimizer state, stage2 also gradients, stage3 also parameters; plus offload, auto_wrap.
            sharding_degree: Processes that share one copy; -1 is all of them.
            fsdp_config: Further options of sharding, as a dict, as JSON or as a JSON file.
            deepspeed: DeepSpeed's configuration: a path or a dict.
            accelerator_config: Options of accelerate, as a dict, as JSON or as a JSON file.
            parallelism_config: accelerate's object for several kinds of parallelism.
            ddp_find_unused_parameters: Look for parameters that a step does not use.
            ddp_bucket_cap_mb: Megabytes of gradients sent at once.
            ddp_broadcast_buffers: Keep buffers equal in all processes.
            ddp_static_graph: Every step uses the same parameters.
            ddp_timeout: Seconds to wait for the other processes.
            ddp_backend: How processes talk: gloo, nccl, mpi, ccl, ...
            tpu_num_cores: TPU cores.
            mp_parameters: SageMaker's model parallelism.
            use_legacy_prediction_loop: The evaluation loop of early transformers.
            ray_scope: Which result of a trial Ray Tune compares.
            do_compress: PaddleNLP: compress the model. Refused here.
            strategy: PaddleNLP: for its compression alone.
            input_dtype: PaddleNLP: for its compression alone.
            prune_embeddings: PaddleNLP: for its compression alone.
            onnx_format: PaddleNLP: for its compression alone.
            width_mult_list: PaddleNLP: for its compression alone.
            weight_quantize_type: PaddleNLP: for its compression alone.
            activation_quantize_type: PaddleNLP: for its compression alone.
            algo_list: PaddleNLP: for its compression alone.
            batch_num_list: PaddleNLP: for its compression alone.
            batch_size_list: PaddleNLP: for its compression alone.
            round_type: PaddleNLP: for its compression alone.
            bias_correction: PaddleNLP: for its compression alone.
            input_infer_model_path: PaddleNLP: for its compression alone.
            use_pact: PaddleNLP: for its compression alone.
            moving_rate: PaddleNLP: for its compression alone.
            per_gpu_train_batch_size: The same as per_device_train_batch_size.
            per_gpu_eval_batch_size: The same as per_device_eval_batch_size.
            dataset_drop_last: The same as dataloader_drop_last.
            dataset_num_workers: The same as dataloader_num_workers.
            dataset_prefetch_factor: The same as dataloader_prefetch_factor.
            fp16_backend: The same as half_precision_backend.
            f16_full_eval: The same as fp16_full_eval.
            recompute: The same as gradient_checkpointing.
            recompute_kwargs: The same as gradient_checkpointing_kwargs.
            to_static: The same as torch_compile.
            torchdynamo: The same as torch_compile_backend.
            evaluation_strategy: The same as eval_strategy.
            push_to_hub_model_id: The same as hub_model_id.
            push_to_hub_token: The same as hub_token.
            sharding_parallel_degree: The same as sharding_degree.
            xpu_backend: The same as ddp_backend.
            device: Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the framework's own device.
            use_cpu: True: device="cpu".
            no_cuda: True: device="cpu".
            use_mps_device: True: device="mps".
            adafactor: True: optim="adafactor".
            group_by_length: True: train_sampling_strategy="group_by_length".
            include_inputs_for_metrics: True: inputs in include_for_metrics.
            tpu_metrics_debug: True: tpu_metrics_debug in debug.
            fsdp: full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; plus offload, auto_wrap.
            sharded_ddp: simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; plus offload, auto_wrap.
            fsdp_min_num_params: fsdp_config's min_num_params.
            fsdp_transformer_layer_cls_to_wrap: fsdp_config's transformer_layer_cls_to_wrap.
            num_cycles: lr_scheduler_kwargs's num_cycles.
            lr_end: lr_scheduler_kwargs's lr_end.
            power: lr_scheduler_kwargs's power.
            push_to_hub_organization: The owner in hub_model_id.
            _n_gpu: -1: the number of devices is read off the machine; choose one with device.
            amp_custom_black_list: None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward.
            amp_custom_white_list: None or []: Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward.
            amp_master_grad: False: gradients have the type of their weights; fp16_opt_level='O1' keeps both in float32.
            data_parallel_config: "": the exchange of gradients has no options of Paddle's here.
            data_parallel_degree: -1 or the run's own: it is the number of processes that were launched.
            distributed_dataloader: False: every process makes the batches of its own.
            enable_auto_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            flatten_param_grads: False: gradients stay where the framework has put them.
            force_reshard_pp: False: a checkpoint is one whole model for any number of processes.
            hybrid_parallel_topo_order: None: the model is not cut up; use data parallelism, or sharding to share out its state.
            ignore_load_lr_and_optim: False: load the weights by hand and start a new run.
            ignore_save_lr_and_optim: False: use save_only_model=True.
            lazy_data_processing: True: data sets are read when their samples are needed.
            load_sharded_model: False: a checkpoint is one whole model for any number of processes.
            max_evaluate_steps: -1: an evaluation counts every sample; pass a shorter eval_dataset.
            metrics_output_path: None: save_metrics() writes into output_dir.
            pipeline_parallel_config: "": the model is not cut up; use data parallelism, or sharding to share out its state.
            pipeline_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            save_sharded_model: False: a checkpoint is one whole model for any number of processes.
            sep_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            sharding_parallel_config: "": sharding has no further options on Paddle.
            skip_profile_timer: True: logs have steps_per_second; profile=True shows more.
            tensor_parallel_config: "": the model is not cut up; use data parallelism, or sharding to share out its state.
            tensor_parallel_degree: 1 or -1: the model is not cut up; use data parallelism, or sharding to share out its state.
            unified_checkpoint: True or False: a checkpoint is one whole model for any number of processes.
            unified_checkpoint_config: "": a checkpoint is one whole model for any number of processes.
            use_expert_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            use_hybrid_parallel: False: the model is not cut up; use data parallelism, or sharding to share out its state.
            wandb_api_key: None: a key does not belong among arguments, which are written to files; set WANDB_API_KEY instead.
        """
