# Written by `python -m oneloop.arguments.typing_stub`; change the declarations in oneloop/arguments/, not this file.
# fmt: off
# ruff: noqa: E501
"""What the constructors of the arguments take and what their attributes hold, for editors and type checkers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..enums import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from ..optim.catalog import OptimizerNames
from .accelerator import AcceleratorConfig
from .fields import Group
from .given import Argument, Config, Integer, JsonDict, Number, Text, Words

_DEFAULT: Any

OptimizerNamesValue: TypeAlias = Literal["adamw", "adamw_hf", "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_apex_fused", "adafactor", "adamw_anyprecision", "adamw_torch_4bit", "adamw_torch_8bit", "ademamix", "sgd", "adagrad", "adamw_bnb_8bit", "adamw_8bit", "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "lomo", "adalomo", "grokadamw", "schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "apollo_adamw_layerwise", "stable_adamw", "muon"]

@dataclass(init=False, kw_only=True)
class ArgumentFields(Group):
    output_dir: Argument[str, Text | None] = field(default=_DEFAULT, kw_only=False)
    """Directory for checkpoints, logs and results. A Trainer without arguments uses tmp_trainer. A URL such as s3://bucket/run becomes output_url, and output_dir a local directory in the cache of the user."""
    output_url: str | None = ...
    """Object storage, as a URL that fsspec can open: the contents of output_dir are uploaded there, and a run is resumed from there."""
    overwrite_output_dir: bool = ...
    """For your script: start a new run in a directory with checkpoints. The Trainer itself deletes nothing; a new run in a directory with checkpoints logs a warning."""
    do_train: bool = ...
    """For your script: whether to train."""
    do_eval: bool = ...
    """For your script: whether to evaluate. True if eval_strategy is not 'no'."""
    do_predict: bool = ...
    """For your script: whether to predict on the test set."""
    do_export: bool = ...
    """For your script: whether to export the trained model."""
    resume_from_checkpoint: Argument[str | bool | None, bool | Text | None] = ...
    """Path of a checkpoint, or True or latest for the newest one; the default of train(). True without a checkpoint starts from scratch and logs it."""
    seed: int = ...
    """Random seed of the model and of dropout."""
    data_seed: int | None = ...
    """Random seed of the data order."""
    full_determinism: bool = ...
    """Use the framework's deterministic algorithms: two runs are bit-identical."""
    run_name: Argument[str, Text | None] = ...
    """Name of the run in the writers."""
    device_spec: Argument[str | None, object | None] = ...
    """Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object."""
    debug: Argument[str, Words | None] = ...
    """underflow_overflow: report the layer and step of the first non-finite value."""
    profile: Argument[str, bool | int | str | None] = ...
    """Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. Writes a trace and a table of operators to output_dir/profile."""
    trace_steps: Argument[str, int | str | None] = ...
    """Steps to record for `oneloop diff`, counted from 0, such as 0-2: digests of what every layer computes, of gradients, updates and optimizer state, in output_dir/trace."""
    verify_steps: int = ...
    """Compute the gradients of every N-th update twice and compare their bytes: finds layers that are not deterministic, and hardware that computes wrongly. 0: off."""
    verify_action: str = ...
    """If the gradients differ (verify_steps): stop before the update, or warn. Both record an event."""
    replay_overrides: Argument[list[str] | Any, Words | None] = ...
    """Overridden methods that may be called again where an update is computed more than once (trace_steps, verify_steps): training_step, compute_loss. Name those whose side effects may be doubled, or that have none."""
    log_level: str = ...
    """Log level of the main process; passive keeps the application's level."""
    log_level_replica: str = ...
    """Log level of the other processes."""
    log_on_each_node: bool = ...
    """With several machines: log on each machine instead of only the first."""
    disable_tqdm: Argument[bool, bool | None] = ...
    """Disable progress bars."""
    skip_memory_metrics: bool = ...
    """False adds peak memory to the metrics."""
    past_index: int = ...
    """Index of the model output to pass as `mems` to the next step; -1: off."""
    per_device_train_batch_size: int = ...
    """Training batch size per device (samples per micro-batch)."""
    per_device_eval_batch_size: int = ...
    """Evaluation batch size per device."""
    gradient_accumulation_steps: int = ...
    """Micro-batches per optimizer update; the update equals that of the undivided batch."""
    average_tokens_across_devices: bool = ...
    """With several processes: weight each process's loss by its number of labelled tokens."""
    dataloader_drop_last: bool = ...
    """Drop the last batch of an epoch if it is incomplete."""
    dataloader_num_workers: int = ...
    """DataLoader worker processes; 0 loads in the main process."""
    dataloader_pin_memory: bool = ...
    """Pin host memory for faster copies to an accelerator; MindSpore does its own copying."""
    dataloader_persistent_workers: bool = ...
    """Keep the DataLoader workers alive between epochs."""
    dataloader_prefetch_factor: int | None = ...
    """Batches that each DataLoader worker prefetches."""
    dataloader_multiprocessing_context: str | None = ...
    """Start method of the DataLoader workers."""
    dataloader_in_order: bool = ...
    """False yields batches as soon as any worker has one ready, in no fixed order."""
    remove_unused_columns: bool = ...
    """Drop columns that the model's forward does not accept; their names are logged."""
    label_names: Argument[list[str] | None | Any, Words | None] = ...
    """Names of the label columns."""
    train_sampling_strategy: str = ...
    """Order of the training data; group_by_length batches samples of similar length, batch_rebalance divides those of each update into micro-batches of about equal cost."""
    data_order: str = ...
    """The order of shuffled data: oneloop's, or that of transformers' Trainer with the same seeds, which also draws the random numbers of dropout in its order."""
    length_column_name: str = ...
    """Column with each sample's length, for group_by_length, batch_rebalance and max_tokens_per_batch; lengths are computed if it is missing."""
    max_tokens_per_batch: int | None = ...
    """A training micro-batch has as many samples of similar length as fit into this many tokens, padding included, instead of per_device_train_batch_size samples. Trainer.batch_cost may count something else than tokens."""
    packing: Argument[bool | str, bool | Text] = ...
    """Lay documents (token ids in `input_ids`) into rows of max_length tokens, kept apart from each other: end_to_end (True) cuts them where a row is full, best_fit only those longer than a row. wrapped is end_to_end for documents that may attend to each other: a row is like one document."""
    max_length: int | None = ...
    """Tokens in a row of packed documents."""
    eval_packing: bool | None = ...
    """Whether evaluations pack as well; False gives each document a row of its own."""
    seed_each_sample: bool = ...
    """Seed the dataset's random numbers by sample and epoch, so that they do not depend on the number of processes and workers. Costs one reseeding per sample, and samples are fetched one by one."""
    stream_sharding: str = ...
    """On several processes, what each reads of a stream: all of it, keeping its samples, so that the order is the same for any number of processes; or its own shards (files) only."""
    mixture_weights: Any = ...
    """For a train_dataset that is a dict of datasets: the proportion of each, such as wiki=0.7,code=0.3, a dict or JSON, or a list of [step, weights]. None: by size."""
    mixture_temperature: float = ...
    """For weights by size: the sizes to the power of 1 / temperature; above 1, small datasets get more."""
    mixture_stop: Argument[str | int, Any] = ...
    """When an epoch of a mixture ends: first_exhausted, all_exhausted, or a number of samples."""
    mixture_metrics: str = ...
    """What is logged of each dataset of a Mixture: its loss and tokens, its tokens only, or nothing. Losses cost a second cross entropy of the logits, without gradients."""
    ignore_data_skip: bool = ...
    """On resume, start the data at the beginning of the epoch."""
    auto_find_batch_size: bool = ...
    """On out-of-memory: retry with a smaller micro-batch and more accumulation, same global batch."""
    learning_rate: float = ...
    """Peak learning rate."""
    weight_decay: float = ...
    """Weight decay; not applied to biases and normalization weights."""
    adam_beta1: float = ...
    """Beta1 of AdamW."""
    adam_beta2: float = ...
    """Beta2 of AdamW."""
    adam_epsilon: float = ...
    """Epsilon of AdamW."""
    max_grad_norm: float = ...
    """Maximum gradient norm, for clipping; 0 disables clipping. The norm is logged."""
    optim: Argument[OptimizerNames | Any, OptimizerNames | OptimizerNamesValue] = ...
    """The optimizer. All spellings of AdamW select the same AdamW, except adamw_anyprecision. muon is Muon for matrices of hidden layers and AdamW for the rest. If an optimizer needs a package, the error message names it."""
    optim_args: Argument[str | None, Mapping[str, Any] | Text | None] = ...
    """Additional options of the optimizer: "key=value,key=value"."""
    optim_target_modules: Argument[str | list[str] | None, Words | None] = ...
    """For GaLore, APOLLO and Muon: the modules to optimize with it. Required by the first two; by default, Muon updates all matrices except embeddings and the head."""
    lr_scheduler_type: Argument[SchedulerType | Any, SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"]] = ...
    """Learning rate schedule."""
    lr_scheduler_kwargs: Argument[dict[str, Any] | None | Any, JsonDict | None] = ...
    """Additional options of the schedule, as a dict or JSON."""
    warmup_steps: float = ...
    """Steps of linear warmup from 0; a value below 1 is a ratio of all steps."""
    warmup_ratio: float | None = ...
    """Warmup as a ratio of all steps; overridden by warmup_steps. None is 0."""
    cooldown_steps: int | None = ...
    """Branch a run: from the checkpoint in resume_from_checkpoint on, decay the learning rate from its value there to 0 within this number of steps, which end the run."""
    cooldown_type: str = ...
    """Shape of the decay of cooldown_steps."""
    num_train_epochs: float = ...
    """Number of epochs; may be fractional."""
    max_steps: int = ...
    """Total number of optimizer updates; overrides num_train_epochs. -1: off."""
    ema_decay: float | None = ...
    """Keep an exponential moving average (EMA) of the weights with this decay, such as 0.999; in checkpoints it is average.safetensors."""
    swa_start: float | None = ...
    """Keep the mean of the weights from this step on (stochastic weight averaging, SWA); a value below 1 is a ratio of all steps."""
    averaging_steps: int = ...
    """Steps between two updates of the average (EMA or SWA) of the weights."""
    eval_with_average: bool = ...
    """Evaluate and predict with the average (EMA or SWA) of the weights."""
    save_average: bool = ...
    """Write the average (EMA or SWA) of the weights in save_model, export and pushes to the Hub. Checkpoints always have both."""
    label_smoothing_factor: float = ...
    """Label smoothing: spread this fraction over all classes."""
    chunked_loss: bool | None = ...
    """Compute the loss of a language model from its hidden states and its head in chunks: whole logits never exist. None: where those of a micro-batch would take more than 256 MB, and the model does nothing else with them."""
    chunked_loss_layer: str | None = ...
    """The name of the layer that computes the logits, for chunked_loss with a model that has no method get_output_embeddings."""
    neftune_noise_alpha: float | None = ...
    """Alpha of NEFTune embedding noise."""
    fp16: bool = ...
    """Mixed precision with float16 and loss scaling."""
    bf16: bool = ...
    """Mixed precision with bfloat16."""
    fp16_opt_level: str = ...
    """For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half."""
    half_precision_backend: str = ...
    """Mixed-precision implementation."""
    scale_loss: float = ...
    """Initial loss scale for fp16; steps that overflow are skipped and counted."""
    bf16_full_eval: bool = ...
    """Evaluate with bfloat16 weights."""
    fp16_full_eval: bool = ...
    """Evaluate with float16 weights."""
    tf32: bool | None = ...
    """TF32 matrix multiplication on GPUs that support it."""
    gradient_checkpointing: bool = ...
    """Recompute activations in the backward pass: same losses, less memory."""
    gradient_checkpointing_kwargs: Argument[dict[str, Any] | None | Any, JsonDict | None] = ...
    """Additional options of gradient_checkpointing, as a dict or JSON."""
    torch_compile: bool = ...
    """Compile the model with the framework's graph compiler. Enabled by a backend or a mode."""
    torch_compile_backend: str | None = ...
    """Compiler backend; enables torch_compile."""
    torch_compile_mode: str | None = ...
    """Compiler mode; enables torch_compile."""
    jit_mode_eval: bool = ...
    """Evaluate with the compiled graph."""
    use_ipex: bool = ...
    """Intel Extension for PyTorch."""
    use_liger_kernel: bool = ...
    """Liger kernels for transformers models."""
    liger_kernel_config: Argument[dict[str, Any] | None | Any, JsonDict | None] = ...
    """Which Liger kernels to use, as a dict or JSON."""
    use_cache: bool = ...
    """Keep the model's key-value cache enabled during training."""
    torch_empty_cache_steps: int | None = ...
    """Empty the accelerator's memory cache every this many steps."""
    eval_strategy: Argument[IntervalStrategy | Any, IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False]] = ...
    """When to evaluate during training."""
    eval_steps: float | None = ...
    """Steps between evaluations; a value below 1 is a ratio of all steps."""
    eval_delay: float = ...
    """Epochs or steps (by eval_strategy) before the first evaluation."""
    eval_on_start: bool = ...
    """Evaluate once before the first step."""
    eval_accumulation_steps: int | None = ...
    """Prediction steps to accumulate on the device before moving outputs to the host."""
    eval_do_concat_batches: bool = ...
    """False passes the outputs to compute_metrics as a list of batches."""
    eval_use_gather_object: bool = ...
    """No effect: outputs that are not tensors are always gathered from all processes."""
    minimum_eval_times: int | None = ...
    """Lower eval_steps so that there are at least this many evaluations; -1 or 0: off."""
    prediction_loss_only: bool = ...
    """Return only the loss, no outputs."""
    include_for_metrics: Argument[list[str] | Any, Words | None] = ...
    """Extra inputs of compute_metrics: inputs, loss."""
    batch_eval_metrics: bool = ...
    """Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept."""
    load_best_model_at_end: bool = ...
    """Load the best model at the end of training, with any save_strategy."""
    metric_for_best_model: str | None = ...
    """Metric used to compare models."""
    greater_is_better: bool | None = ...
    """Whether a greater metric_for_best_model is better."""
    logging_dir: Argument[str, Text | None] = ...
    """Directory for the writers' files."""
    logging_strategy: Argument[IntervalStrategy | Any, IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False]] = ...
    """When to log."""
    logging_steps: float = ...
    """Steps between logs; a value below 1 is a ratio of all steps."""
    logging_first_step: bool = ...
    """Also log the first step and, except in transformers scripts, evaluate it with eval_strategy='steps'."""
    logging_nan_inf_filter: bool = ...
    """Exclude non-finite losses from the logged average (only)."""
    nonfinite: str = ...
    """What to do about a non-finite loss or gradient: stop the run, skip the update, or nothing."""
    nonfinite_limit: int = ...
    """Updates in a row that nonfinite='skip' may skip before the run is stopped; 0: any number."""
    loss_spike: str = ...
    """What to do about a loss or gradient norm far above those of recent steps: nothing; warn; or return to the last checkpoint and skip the samples of the spike."""
    loss_spike_threshold: float = ...
    """With loss_spike: the number of robust standard deviations above the median from which a value is a spike."""
    loss_spike_window: int = ...
    """With loss_spike: the number of recent steps that a value is compared with. Before that, none is a spike."""
    loss_spike_skip_steps: int = ...
    """With loss_spike='rollback': steps whose samples are skipped: the spike and those before it."""
    loss_spike_limit: int = ...
    """With loss_spike='rollback': returns since the last checkpoint on schedule before the run is stopped."""
    report_to: Argument[list[str] | Any, Words | None] = ...
    """Writers that receive the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all: every one that needs no account; none. A service with accounts has to be named."""
    include_num_input_tokens_seen: str = ...
    """Count the input tokens seen."""
    include_tokens_per_second: bool = ...
    """Report tokens per second in the speed metrics."""
    log_throughput: bool = ...
    """Add to the logs: tokens per second, those without padding (if include_num_input_tokens_seen is non_padding), MFU, and the share of the time spent waiting for data. The report page has them anyway."""
    device_peak_flops: float | None = ...
    """Peak floating-point operations per second of one device, for the model FLOPs utilization (MFU). By default known for some GPUs in half precision."""
    project: str = ...
    """Project name, for writers that have projects."""
    trackio_space_id: str | None = ...
    """Space that trackio writes to."""
    trackio_bucket_id: str | None = ...
    """Bucket that trackio writes to."""
    trackio_static_space_id: str | bool | None = ...
    """Read-only space that trackio creates at the end; False: none."""
    save_strategy: Argument[SaveStrategy | Any, SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False]] = ...
    """When to save a checkpoint."""
    save_steps: float = ...
    """Steps between checkpoints; a value below 1 is a ratio of all steps."""
    save_total_limit: int | None = ...
    """Maximum number of checkpoints to keep, including the best; with 1, the newest and the best."""
    save_interval_minutes: float | None = ...
    """Also save when the last checkpoint is this many minutes old."""
    snapshot_steps: int | None = ...
    """Steps between snapshots: checkpoints in the memory of the machine, of which the newest is kept. A run whose processes were killed is resumed from it."""
    snapshot_dir: str | None = ...
    """With snapshot_steps: a directory in memory."""
    save_async: bool = ...
    """Write checkpoints in the background during training."""
    save_on_each_node: bool = ...
    """With several machines: save on each machine instead of only the first."""
    save_only_model: bool = ...
    """Save checkpoints without optimizer, scheduler and RNG state; no exact resume."""
    save_safetensors: bool = ...
    """Save weights as safetensors, the only format written."""
    restore_callback_states_from_checkpoint: bool = ...
    """On resume, restore the callbacks' state from the checkpoint."""
    preemption_signals: Argument[list[str] | Any, Words | None] = ...
    """Signals on which a run finishes its step, saves and stops; SIGUSR1 and others can be added, [] disables it."""
    enable_jit_checkpoint: bool = ...
    """True: adds SIGTERM to preemption_signals, where it is by default."""
    push_to_hub: bool = ...
    """Push the model to the Hub each time it is saved."""
    hub_model_id: str | None = ...
    """With push_to_hub: the repository."""
    hub_strategy: Argument[HubStrategy | Any, HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"]] = ...
    """With push_to_hub: what to push, and when."""
    hub_token: str | None = ...
    """With push_to_hub: the token. It is never written to a file or log."""
    hub_private_repo: bool | None = ...
    """With push_to_hub: make a new repository private or public. By default, as its owner's settings say."""
    hub_always_push: bool = ...
    """With push_to_hub: push even if the previous push has not finished."""
    hub_revision: str | None = ...
    """With push_to_hub: the branch to push to."""
    local_rank: int = ...
    """Rank of this process on its machine."""
    sharding: Argument[str, Words | None] = ...
    """What is partitioned across processes: stage1 optimizer state, stage2 also gradients, stage3 also parameters; optionally offload, auto_wrap."""
    sharding_degree: int = ...
    """Number of processes in a sharding group; -1: all."""
    tensor_parallel_size: int = ...
    """Number of processes that divide the weights of each layer (tensor parallelism)."""
    tensor_parallel_plan: Argument[dict[str, Any] | None | Any, Config | None] = ...
    """Which layers are divided, and how: names with * for any part, and colwise, rowwise, ...; a dict, JSON, or a JSON file. transformers models have one."""
    sequence_parallel_size: int = ...
    """Number of processes that divide each sequence of a batch."""
    expert_parallel_size: int = ...
    """Number of processes that divide the experts of a model."""
    fsdp_config: Argument[dict[str, Any] | None | Any, Config | None] = ...
    """Additional sharding options, as a dict, JSON, or a JSON file."""
    deepspeed: Argument[str | dict[str, Any] | None, dict[str, Any] | Text | None] = ...
    """DeepSpeed configuration: a path or a dict."""
    accelerator_config: Argument[AcceleratorConfig | Any, Config | None] = ...
    """Options of accelerate, as a dict, JSON, or a JSON file. Reads back as an AcceleratorConfig."""
    parallelism_config: Any = ...
    """accelerate's ParallelismConfig, or a dict of its sizes (dp_replicate_size, dp_shard_size, tp_size, cp_size, sp_size), which set the arguments for these axes."""
    world_invariant: bool = ...
    """Train with the same bits on any number of processes: an update keeps its micro-batches, each draws random numbers of its own, and gradients are added up in a fixed order."""
    ddp_find_unused_parameters: bool | None = ...
    """Detect parameters that a step does not use."""
    ddp_bucket_cap_mb: int | None = ...
    """Gradient bucket size in megabytes."""
    ddp_broadcast_buffers: bool | None = ...
    """Broadcast buffers to all processes."""
    ddp_static_graph: bool | None = ...
    """Assume that every step uses the same parameters."""
    ddp_timeout: int = ...
    """Timeout of collectives in seconds."""
    ddp_backend: str | None = ...
    """Communication backend: gloo, nccl, mpi, ccl, ..."""
    tpu_num_cores: int | None = ...
    """Number of TPU cores."""
    mp_parameters: str = ...
    """SageMaker model parallelism."""
    use_legacy_prediction_loop: bool = ...
    """The evaluation loop of early transformers releases."""
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
    recompute_kwargs: Argument[dict[str, Any] | None | Any, JsonDict | None] = ...
    """The same as gradient_checkpointing_kwargs."""
    to_static: bool = ...
    """The same as torch_compile."""
    torchdynamo: str | None = ...
    """The same as torch_compile_backend."""
    evaluation_strategy: Argument[IntervalStrategy | Any, IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | None] = ...
    """The same as eval_strategy."""
    push_to_hub_model_id: str | None = ...
    """The same as hub_model_id."""
    push_to_hub_token: str | None = ...
    """The same as hub_token."""
    sharding_parallel_degree: int = ...
    """The same as sharding_degree."""
    sharding_parallel_size: int = ...
    """The same as sharding_degree."""
    xpu_backend: str | None = ...
    """The same as ddp_backend."""
    device: Argument[Any, object | None] = ...
    """Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object."""
    use_cpu: bool = ...
    """True sets device="cpu"."""
    no_cuda: bool = ...
    """True sets device="cpu"."""
    use_mps_device: bool = ...
    """True sets device="mps"."""
    adafactor: bool = ...
    """True sets optim="adafactor"."""
    group_by_length: bool = ...
    """True sets train_sampling_strategy="group_by_length"."""
    dataloader_shuffle: bool = ...
    """False: train_sampling_strategy="sequential"."""
    deterministic_mode: bool = ...
    """True sets full_determinism=True."""
    recompute_granularity: str | None = ...
    """"full": gradient_checkpointing=True."""
    tensor_parallel_degree: int = ...
    """The same as tensor_parallel_size; -1 is ignored."""
    tensor_model_parallel_size: int = ...
    """The same as tensor_parallel_size; -1 is ignored."""
    sep_parallel_degree: int = ...
    """The same as sequence_parallel_size; -1 is ignored."""
    sep_parallel_size: int = ...
    """The same as sequence_parallel_size; -1 is ignored."""
    context_parallel_size: int = ...
    """The same as sequence_parallel_size; -1 is ignored."""
    expert_model_parallel_size: int = ...
    """The same as expert_parallel_size; -1 is ignored."""
    include_inputs_for_metrics: bool = ...
    """True adds it to include_for_metrics."""
    tpu_metrics_debug: bool = ...
    """True adds it to debug."""
    fsdp: Argument[str, bool | Words | None] = ...
    """full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; optionally offload, auto_wrap."""
    sharded_ddp: Argument[str, bool | Words | None] = ...
    """simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; optionally offload, auto_wrap."""
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
    """The owner (organization) in hub_model_id."""
    _n_gpu: int = ...
    """-1: the number of devices is detected; select one with device."""
    amp_custom_black_list: list[str] | None = ...
    """None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward."""
    amp_custom_white_list: list[str] | None = ...
    """None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward."""
    amp_master_grad: bool = ...
    """False: gradients have the dtype of their weights; fp16_opt_level='O1' keeps both in float32."""
    data_parallel_config: str = ...
    """"": Paddle's data-parallel options are not supported."""
    data_parallel_degree: int = ...
    """-1 or this run's value: it is the number of processes that were launched."""
    distributed_dataloader: bool = ...
    """False: each process loads its own batches."""
    enable_auto_parallel: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    flatten_param_grads: bool = ...
    """False: gradients are not flattened."""
    force_reshard_pp: bool = ...
    """False: a checkpoint holds the full model, independent of the number of processes."""
    hybrid_parallel_topo_order: str | None = ...
    """None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    ignore_load_lr_and_optim: bool = ...
    """False: load the weights yourself and start a new run."""
    ignore_save_lr_and_optim: bool = ...
    """False: use save_only_model=True."""
    lazy_data_processing: bool = ...
    """True: samples are read on access."""
    load_sharded_model: bool = ...
    """False: a checkpoint holds the full model, independent of the number of processes."""
    max_evaluate_steps: int = ...
    """-1: an evaluation uses the whole dataset; pass a smaller eval_dataset."""
    metrics_output_path: str | None = ...
    """None: save_metrics() writes into output_dir."""
    pipeline_parallel_config: str = ...
    """"": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    pipeline_parallel_degree: int = ...
    """1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    save_sharded_model: bool = ...
    """False: a checkpoint holds the full model, independent of the number of processes."""
    sharding_parallel_config: str = ...
    """"": there are no further sharding options on Paddle."""
    skip_profile_timer: bool = ...
    """True: logs include steps_per_second; use profile=True for details."""
    tensor_parallel_config: str = ...
    """"": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    unified_checkpoint: bool = ...
    """True or False: a checkpoint holds the full model, independent of the number of processes."""
    unified_checkpoint_config: str = ...
    """"": a checkpoint holds the full model, independent of the number of processes."""
    use_expert_parallel: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    use_hybrid_parallel: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    wandb_api_key: str | None = ...
    """None: arguments are written to files, so they must not contain keys; set WANDB_API_KEY instead."""
    pipeline_model_parallel_size: int = ...
    """1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    expert_tensor_model_parallel_size: int = ...
    """1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    sequence_parallel: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    fuse_sequence_parallel_allreduce: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    auto_parallel_resume_form_hybrid_parallel: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    reorder_pipeline_priority: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    use_intermediate_api: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    pp_sharding_comm_overlap: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    tp_async_allreduce: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    sp_async_reduce_scatter: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    overlap_p2p_comm: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    variable_seq_lengths: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    sp_allreduce_avg_in_gradinent_scale: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    mp_async_allreduce: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    mp_skip_c_identity: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    mp_fused_linear_param_grad_add: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    pp_sync_param: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    tp_sync_param: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    sync_grad: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    tp_sync_moment: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    pp_sync_moment: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    replace_with_c_embedding: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    replace_with_parallel_cross_entropy: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    pp_release_grads: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    clear_every_step_cache: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    non_batch_p2p_comm: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    auto_parallel_sync_shared_params: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    best_unbalanced_scheduler: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    offload_queue: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    use_dualpipev: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    forward_backward_overlap_scheduler: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    send_recv_overlap: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    split_backward: bool = ...
    """False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    split_inputs_sequence_dim: bool = ...
    """True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    batch_p2p_comm: bool = ...
    """True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    pp_delay_scale_loss: bool = ...
    """True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    p2p_cache_shape: bool = ...
    """True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    partial_send_recv: bool = ...
    """True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    sequence_parallel_config: str = ...
    """"": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    cp_balance_mode: str = ...
    """dualchunk_allgather: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    cp_comm_type: str | None = ...
    """None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    nccl_comm_group_config: str | None = ...
    """None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding."""
    sharding_comm_group_call_opt: bool = ...
    """False: there are no further sharding options on Paddle."""
    split_norm_comm: bool = ...
    """False: there are no further sharding options on Paddle."""
    stage1_tensor_fusion: bool = ...
    """False: there are no further sharding options on Paddle."""
    tensor_fusion: bool = ...
    """False: there are no further sharding options on Paddle."""
    stage1_overlap: bool = ...
    """False: there are no further sharding options on Paddle."""
    stage2_overlap: bool = ...
    """False: there are no further sharding options on Paddle."""
    stage1_broadcast_overlap: bool = ...
    """False: there are no further sharding options on Paddle."""
    stage1_allgather_overlap: bool = ...
    """False: there are no further sharding options on Paddle."""
    fuse_optimizer_states: bool = ...
    """False: there are no further sharding options on Paddle."""
    sd_release_grads: bool = ...
    """False: there are no further sharding options on Paddle."""
    sd_sharding_comm_overlap: bool = ...
    """False: there are no further sharding options on Paddle."""
    sd_shardingv1_comm_overlap: bool = ...
    """False: there are no further sharding options on Paddle."""
    stage1_reduce_avg: bool = ...
    """True: there are no further sharding options on Paddle."""
    split_param: bool = ...
    """True: there are no further sharding options on Paddle."""
    sharding_comm_buffer_size_MB: int = ...
    """-1: there are no further sharding options on Paddle."""
    sharding_offload_opt_buffersize_GB: int = ...
    """-1: there are no further sharding options on Paddle."""
    sharding_parallel_mesh_dimension: str = ...
    """dp: there are no further sharding options on Paddle."""
    dp_comm_overlap: bool = ...
    """False: gradients are exchanged once per update, in its last micro-batch."""
    dp_allreduce_avg_in_gradinent_scale: bool = ...
    """False: gradients are exchanged once per update, in its last micro-batch."""
    gradient_sync_after_accumulate: bool = ...
    """True or False: gradients are exchanged once per update, in its last micro-batch."""
    save_checkpoint_format: str | None = ...
    """flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background."""
    load_checkpoint_format: str | None = ...
    """flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background."""
    use_async_save: bool = ...
    """True or False: checkpoints are oneloop's own: whole, and written in the background."""
    load_via_cpu: bool = ...
    """True or False: checkpoints are oneloop's own: whole, and written in the background."""
    save_rng_states: bool = ...
    """True: checkpoints are oneloop's own: whole, and written in the background."""
    save_tokenizer: bool = ...
    """True: checkpoints are oneloop's own: whole, and written in the background."""
    load_sharded_model_remap_parameter_name: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    sharded_model_from_ema: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    pdc_download_ckpt: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    load_from_hf: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    save_sharding_stage1_model_include_freeze_params: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    enable_zero_cost_checkpoint: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    replicate_saved_into_local: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    save_last_step: bool = ...
    """False: checkpoints are oneloop's own: whole, and written in the background."""
    output_signal_dir: str | None = ...
    """None: checkpoints are oneloop's own: whole, and written in the background."""
    resume_from_huggingface_ckpt: str | None = ...
    """None: checkpoints are oneloop's own: whole, and written in the background."""
    aoa_config: str | None = ...
    """None: checkpoints are oneloop's own: whole, and written in the background."""
    save_hf_total_limit: str | None = ...
    """None: checkpoints are oneloop's own: whole, and written in the background."""
    flex_ckpt_comm_method: str | None = ...
    """None: checkpoints are oneloop's own: whole, and written in the background."""
    ordered_save_group_size: int = ...
    """0: checkpoints are oneloop's own: whole, and written in the background."""
    flash_device_save_steps: int = ...
    """0: checkpoints are oneloop's own: whole, and written in the background."""
    optim_shard_num: int = ...
    """1: checkpoints are oneloop's own: whole, and written in the background."""
    save_hf_steps: int = ...
    """-1: checkpoints are oneloop's own: whole, and written in the background."""
    zcc_workers_num: int = ...
    """3: checkpoints are oneloop's own: whole, and written in the background."""
    save_hf_memory_growth_threshold: int = ...
    """8: checkpoints are oneloop's own: whole, and written in the background."""
    zcc_pipeline_hooks_capacity_usage: float = ...
    """0.6: checkpoints are oneloop's own: whole, and written in the background."""
    pdc_download_timeout: int = ...
    """300: checkpoints are oneloop's own: whole, and written in the background."""
    ckpt_quant_stage: str = ...
    """O0: checkpoints are oneloop's own: whole, and written in the background."""
    save_to_hf: bool = ...
    """False: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects."""
    convert_from_hf: bool = ...
    """True: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects."""
    zcc_save_ema_coef: str | None = ...
    """None: for an average of the weights, use ema_decay with averaging_steps."""
    zcc_ema_loss_threshold: str | None = ...
    """None: for an average of the weights, use ema_decay with averaging_steps."""
    zcc_ema_interval: int = ...
    """1: for an average of the weights, use ema_decay with averaging_steps."""
    online_merge_ema: bool = ...
    """True: for an average of the weights, use ema_decay with averaging_steps."""
    num_nextn_predict_layers: int = ...
    """0: it is an option of PaddleFormers' models; set it in the model's configuration."""
    mtp_num_layers: int = ...
    """0: it is an option of PaddleFormers' models; set it in the model's configuration."""
    pad_token_id: int = ...
    """0: it is an option of PaddleFormers' models; set it in the model's configuration."""
    train_mtp_only: bool = ...
    """False: it is an option of PaddleFormers' models; set it in the model's configuration."""
    mtp_distillation_loss: bool = ...
    """False: it is an option of PaddleFormers' models; set it in the model's configuration."""
    using_sonic_moe: bool = ...
    """False: it is an option of PaddleFormers' models; set it in the model's configuration."""
    offload_fp8_expert_master_weight: bool = ...
    """True: it is an option of PaddleFormers' models; set it in the model's configuration."""
    moe_router_bias_update_rate: float = ...
    """0.0: it is an option of PaddleFormers' models; set it in the model's configuration."""
    dsa_indexer_loss_coeff: float = ...
    """0.01: it is an option of PaddleFormers' models; set it in the model's configuration."""
    fa_version: str | None = ...
    """None: it is an option of PaddleFormers' models; set it in the model's configuration."""
    hybrid_parallel_expert_grad_scale: str | None = ...
    """None: it is an option of PaddleFormers' models; set it in the model's configuration."""
    muon_qkv_update_mode: str = ...
    """split_head: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_ffn_split: bool = ...
    """True: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_extra_scale_factor: float = ...
    """0.2: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_momentum: float = ...
    """0.95: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_version: int = ...
    """3: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_ns_steps: int = ...
    """5: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_ns_coeff_type: str = ...
    """quintic: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    muon_ns_coeffs: str | None = ...
    """None: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    recompute_method: str | None = ...
    """None: recompute=True recomputes every block."""
    recompute_modules: str | None = ...
    """None: recompute=True recomputes every block."""
    recompute_num_layers: str | None = ...
    """None: recompute=True recomputes every block."""
    recompute_mtp_granularity: str | None = ...
    """None: recompute=True recomputes every block."""
    recompute_mtp_method: str | None = ...
    """None: recompute=True recomputes every block."""
    recompute_mtp_modules: str | None = ...
    """None: recompute=True recomputes every block."""
    use_lowprecision_moment: bool = ...
    """False: memory of the optimizer is not tuned; use sharding to partition its state."""
    tensorwise_offload_optimizer: bool = ...
    """False: memory of the optimizer is not tuned; use sharding to partition its state."""
    release_grads: bool = ...
    """False: memory of the optimizer is not tuned; use sharding to partition its state."""
    pre_alloc_memory: int = ...
    """0: memory of the optimizer is not tuned; use sharding to partition its state."""
    muon_exclude_patterns: list[str] | None = ...
    """None or ['embed', 'bias', 'lm_head', 'mlp.gate']: Muon is not available on Paddle; create an optimizer and pass it in optimizers=."""
    min_lr: float = ...
    """0.0: use lr_scheduler_type='cosine_with_min_lr' with lr_scheduler_kwargs={'min_lr': ...}."""
    freeze_training: bool = ...
    """False: a run without updates is an evaluation; call evaluate()."""
    skip_data_intervals: str | None = ...
    """None: no samples are skipped; pass a dataset without them."""
    prefetch_factor: int = ...
    """2: use dataloader_prefetch_factor."""
    wandb_http_proxy: str | None = ...
    """None: set HTTPS_PROXY in the environment instead."""
    count_trained_tokens: bool = ...
    """False: use include_num_input_tokens_seen."""
    profile_step_start: int = ...
    """10: use profile=True."""
    profile_step_end: int = ...
    """12: use profile=True."""

    def __init__(
        self,
        output_dir: Text | None = None,
        *,
        output_url: Text | None = None,
        overwrite_output_dir: bool = False,
        do_train: bool = False,
        do_eval: bool = False,
        do_predict: bool = False,
        do_export: bool = False,
        resume_from_checkpoint: bool | Text | None = None,
        seed: Integer = 42,
        data_seed: Integer | None = None,
        full_determinism: bool = False,
        run_name: Text | None = None,
        device_spec: object | None = None,
        debug: Words | None = "",
        profile: bool | int | str | None = "",
        trace_steps: int | str | None = "",
        verify_steps: Integer = 0,
        verify_action: Literal["stop", "warn"] = "stop",
        replay_overrides: Words | None = ...,
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] | None = "passive",
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] | None = "warning",
        log_on_each_node: bool = True,
        disable_tqdm: bool | None = None,
        skip_memory_metrics: bool = True,
        past_index: Integer = -1,
        per_device_train_batch_size: Integer = 8,
        per_device_eval_batch_size: Integer = 8,
        gradient_accumulation_steps: Integer = 1,
        average_tokens_across_devices: bool = True,
        dataloader_drop_last: bool = False,
        dataloader_num_workers: Integer = 0,
        dataloader_pin_memory: bool = True,
        dataloader_persistent_workers: bool = False,
        dataloader_prefetch_factor: Integer | None = None,
        dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None,
        dataloader_in_order: bool = True,
        remove_unused_columns: bool | None = True,
        label_names: Words | None = None,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = "random",
        data_order: Literal["oneloop", "transformers"] = "oneloop",
        length_column_name: Text | None = "length",
        max_tokens_per_batch: Integer | None = None,
        packing: bool | Text = False,
        max_length: Integer | None = None,
        eval_packing: bool | None = None,
        seed_each_sample: bool = False,
        stream_sharding: Literal["samples", "shards"] = "samples",
        mixture_weights: Any = None,
        mixture_temperature: Number = 1.0,
        mixture_stop: Any = "first_exhausted",
        mixture_metrics: Literal["loss", "tokens", "no"] = "loss",
        ignore_data_skip: bool = False,
        auto_find_batch_size: bool = False,
        learning_rate: Number = 5e-05,
        weight_decay: Number = 0.0,
        adam_beta1: Number = 0.9,
        adam_beta2: Number = 0.999,
        adam_epsilon: Number = 1e-08,
        max_grad_norm: Number = 1.0,
        optim: OptimizerNames | OptimizerNamesValue = "adamw_torch",
        optim_args: Mapping[str, Any] | Text | None = None,
        optim_target_modules: Words | None = None,
        lr_scheduler_type: SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] = "linear",
        lr_scheduler_kwargs: JsonDict | None = None,
        warmup_steps: Number = 0,
        warmup_ratio: Number | None = 0.0,
        cooldown_steps: Integer | None = None,
        cooldown_type: Literal["linear", "cosine", "1-sqrt"] = "1-sqrt",
        num_train_epochs: Number = 3.0,
        max_steps: Integer = -1,
        ema_decay: Number | None = None,
        swa_start: Number | None = None,
        averaging_steps: Integer = 1,
        eval_with_average: bool = False,
        save_average: bool = False,
        label_smoothing_factor: Number = 0.0,
        chunked_loss: bool | None = None,
        chunked_loss_layer: Text | None = None,
        neftune_noise_alpha: Number | None = None,
        fp16: bool = False,
        bf16: bool = False,
        fp16_opt_level: Literal["O0", "O1", "O2", "O3"] = "O1",
        half_precision_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] = "auto",
        scale_loss: Number = 32768.0,
        bf16_full_eval: bool = False,
        fp16_full_eval: bool = False,
        tf32: bool | None = None,
        gradient_checkpointing: bool = False,
        gradient_checkpointing_kwargs: JsonDict | None = None,
        torch_compile: bool = False,
        torch_compile_backend: Text | None = None,
        torch_compile_mode: Text | None = None,
        jit_mode_eval: bool = False,
        use_ipex: bool = False,
        use_liger_kernel: bool = False,
        liger_kernel_config: JsonDict | None = None,
        use_cache: bool = False,
        torch_empty_cache_steps: Integer | None = None,
        eval_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] = "no",
        eval_steps: Number | None = None,
        eval_delay: Number | None = 0,
        eval_on_start: bool = False,
        eval_accumulation_steps: Integer | None = None,
        eval_do_concat_batches: bool = True,
        eval_use_gather_object: bool = False,
        minimum_eval_times: Integer | None = None,
        prediction_loss_only: bool = False,
        include_for_metrics: Words | None = ...,
        batch_eval_metrics: bool = False,
        load_best_model_at_end: bool | None = False,
        metric_for_best_model: Text | None = None,
        greater_is_better: bool | None = None,
        logging_dir: Text | None = None,
        logging_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] = "steps",
        logging_steps: Number = 500,
        logging_first_step: bool = False,
        logging_nan_inf_filter: bool = False,
        nonfinite: Literal["stop", "skip", "ignore"] = "stop",
        nonfinite_limit: Integer = 100,
        loss_spike: Literal["off", "warn", "rollback"] = "off",
        loss_spike_threshold: Number = 10.0,
        loss_spike_window: Integer = 100,
        loss_spike_skip_steps: Integer = 1,
        loss_spike_limit: Integer = 3,
        report_to: Words | None = None,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = "no",
        include_tokens_per_second: bool = False,
        log_throughput: bool = False,
        device_peak_flops: Number | None = None,
        project: Text = "huggingface",
        trackio_space_id: Text | None = None,
        trackio_bucket_id: Text | None = None,
        trackio_static_space_id: Literal[False] | Text | None = None,
        save_strategy: SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] = "steps",
        save_steps: Number = 500,
        save_total_limit: Integer | None = None,
        save_interval_minutes: Number | None = None,
        snapshot_steps: Integer | None = None,
        snapshot_dir: Text | None = None,
        save_async: bool = True,
        save_on_each_node: bool = False,
        save_only_model: bool = False,
        save_safetensors: bool = True,
        restore_callback_states_from_checkpoint: bool = False,
        preemption_signals: Words | None = ...,
        enable_jit_checkpoint: bool = False,
        push_to_hub: bool = False,
        hub_model_id: Text | None = None,
        hub_strategy: HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "every_save",
        hub_token: Text | None = None,
        hub_private_repo: bool | None = None,
        hub_always_push: bool = False,
        hub_revision: Text | None = None,
        local_rank: Integer = -1,
        sharding: Words | None = "",
        sharding_degree: Integer = -1,
        tensor_parallel_size: Integer | None = 1,
        tensor_parallel_plan: Config | None = None,
        sequence_parallel_size: Integer | None = 1,
        expert_parallel_size: Integer | None = 1,
        fsdp_config: Config | None = None,
        deepspeed: dict[str, Any] | Text | None = None,
        accelerator_config: Config | None = None,
        parallelism_config: Any = None,
        world_invariant: bool = False,
        ddp_find_unused_parameters: bool | None = None,
        ddp_bucket_cap_mb: Integer | None = None,
        ddp_broadcast_buffers: bool | None = None,
        ddp_static_graph: bool | None = None,
        ddp_timeout: Integer | None = 1800,
        ddp_backend: Text | None = None,
        tpu_num_cores: Integer | None = None,
        mp_parameters: Text = "",
        use_legacy_prediction_loop: bool = False,
        ray_scope: Literal["last", "all", "avg", "last-5-avg", "last-10-avg"] | None = "last",
        per_gpu_train_batch_size: Integer | None = None,
        per_gpu_eval_batch_size: Integer | None = None,
        dataset_drop_last: bool | None = None,
        dataset_num_workers: Integer | None = None,
        dataset_prefetch_factor: Integer | None = None,
        fp16_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | None = None,
        f16_full_eval: bool | None = None,
        recompute: bool | None = None,
        recompute_kwargs: JsonDict | None = None,
        to_static: bool | None = None,
        torchdynamo: Text | None = None,
        evaluation_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | None = None,
        push_to_hub_model_id: Text | None = None,
        push_to_hub_token: Text | None = None,
        sharding_parallel_degree: Integer | None = None,
        sharding_parallel_size: Integer | None = None,
        xpu_backend: Text | None = None,
        device: object | None = None,
        use_cpu: bool | None = None,
        no_cuda: bool | None = None,
        use_mps_device: bool | None = None,
        adafactor: bool | None = None,
        group_by_length: bool | None = None,
        dataloader_shuffle: bool | None = None,
        deterministic_mode: bool | None = None,
        recompute_granularity: Text | None = None,
        tensor_parallel_degree: Integer | None = None,
        tensor_model_parallel_size: Integer | None = None,
        sep_parallel_degree: Integer | None = None,
        sep_parallel_size: Integer | None = None,
        context_parallel_size: Integer | None = None,
        expert_model_parallel_size: Integer | None = None,
        include_inputs_for_metrics: bool | None = None,
        tpu_metrics_debug: bool | None = None,
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
        sharding_parallel_config: str = "",
        skip_profile_timer: bool = True,
        tensor_parallel_config: str = "",
        unified_checkpoint: bool = True,
        unified_checkpoint_config: str = "",
        use_expert_parallel: bool = False,
        use_hybrid_parallel: bool = False,
        wandb_api_key: str | None = None,
        pipeline_model_parallel_size: int = 1,
        expert_tensor_model_parallel_size: int = 1,
        sequence_parallel: bool = False,
        fuse_sequence_parallel_allreduce: bool = False,
        auto_parallel_resume_form_hybrid_parallel: bool = False,
        reorder_pipeline_priority: bool = False,
        use_intermediate_api: bool = False,
        pp_sharding_comm_overlap: bool = False,
        tp_async_allreduce: bool = False,
        sp_async_reduce_scatter: bool = False,
        overlap_p2p_comm: bool = False,
        variable_seq_lengths: bool = False,
        sp_allreduce_avg_in_gradinent_scale: bool = False,
        mp_async_allreduce: bool = False,
        mp_skip_c_identity: bool = False,
        mp_fused_linear_param_grad_add: bool = False,
        pp_sync_param: bool = False,
        tp_sync_param: bool = False,
        sync_grad: bool = False,
        tp_sync_moment: bool = False,
        pp_sync_moment: bool = False,
        replace_with_c_embedding: bool = False,
        replace_with_parallel_cross_entropy: bool = False,
        pp_release_grads: bool = False,
        clear_every_step_cache: bool = False,
        non_batch_p2p_comm: bool = False,
        auto_parallel_sync_shared_params: bool = False,
        best_unbalanced_scheduler: bool = False,
        offload_queue: bool = False,
        use_dualpipev: bool = False,
        forward_backward_overlap_scheduler: bool = False,
        send_recv_overlap: bool = False,
        split_backward: bool = False,
        timer: bool = False,
        split_inputs_sequence_dim: bool = True,
        batch_p2p_comm: bool = True,
        pp_delay_scale_loss: bool = True,
        p2p_cache_shape: bool = True,
        partial_send_recv: bool = True,
        sequence_parallel_config: str = "",
        cp_balance_mode: str = "dualchunk_allgather",
        cp_comm_type: str | None = None,
        nccl_comm_group_config: str | None = None,
        sharding_comm_group_call_opt: bool = False,
        split_norm_comm: bool = False,
        stage1_tensor_fusion: bool = False,
        tensor_fusion: bool = False,
        stage1_overlap: bool = False,
        stage2_overlap: bool = False,
        stage1_broadcast_overlap: bool = False,
        stage1_allgather_overlap: bool = False,
        fuse_optimizer_states: bool = False,
        sd_release_grads: bool = False,
        sd_sharding_comm_overlap: bool = False,
        sd_shardingv1_comm_overlap: bool = False,
        overlap: bool = False,
        stage1_reduce_avg: bool = True,
        split_param: bool = True,
        sharding_comm_buffer_size_MB: int = -1,
        sharding_offload_opt_buffersize_GB: int = -1,
        sharding_parallel_mesh_dimension: str = "dp",
        dp_comm_overlap: bool = False,
        dp_allreduce_avg_in_gradinent_scale: bool = False,
        gradient_sync_after_accumulate: bool = True,
        save_checkpoint_format: str | None = "flex_checkpoint",
        load_checkpoint_format: str | None = "flex_checkpoint",
        use_async_save: bool = True,
        load_via_cpu: bool = True,
        save_rng_states: bool = True,
        save_tokenizer: bool = True,
        load_sharded_model_remap_parameter_name: bool = False,
        sharded_model_from_ema: bool = False,
        pdc_download_ckpt: bool = False,
        load_from_hf: bool = False,
        save_sharding_stage1_model_include_freeze_params: bool = False,
        enable_zero_cost_checkpoint: bool = False,
        replicate_saved_into_local: bool = False,
        save_last_step: bool = False,
        output_signal_dir: str | None = None,
        resume_from_huggingface_ckpt: str | None = None,
        aoa_config: str | None = None,
        save_hf_total_limit: str | None = None,
        flex_ckpt_comm_method: str | None = None,
        ordered_save_group_size: int = 0,
        flash_device_save_steps: int = 0,
        optim_shard_num: int = 1,
        save_hf_steps: int = -1,
        zcc_workers_num: int = 3,
        save_hf_memory_growth_threshold: int = 8,
        zcc_pipeline_hooks_capacity_usage: float = 0.6,
        pdc_download_timeout: int = 300,
        ckpt_quant_stage: str = "O0",
        save_to_hf: bool = False,
        convert_from_hf: bool = True,
        zcc_save_ema_coef: str | None = None,
        zcc_ema_loss_threshold: str | None = None,
        zcc_ema_interval: int = 1,
        online_merge_ema: bool = True,
        num_nextn_predict_layers: int = 0,
        mtp_num_layers: int = 0,
        pad_token_id: int = 0,
        train_mtp_only: bool = False,
        mtp_distillation_loss: bool = False,
        using_sonic_moe: bool = False,
        offload_fp8_expert_master_weight: bool = True,
        moe_router_bias_update_rate: float = 0.0,
        dsa_indexer_loss_coeff: float = 0.01,
        fa_version: str | None = None,
        hybrid_parallel_expert_grad_scale: str | None = None,
        muon_qkv_update_mode: str = "split_head",
        muon_ffn_split: bool = True,
        muon_extra_scale_factor: float = 0.2,
        muon_momentum: float = 0.95,
        muon_version: int = 3,
        muon_ns_steps: int = 5,
        muon_ns_coeff_type: str = "quintic",
        muon_ns_coeffs: str | None = None,
        recompute_method: str | None = None,
        recompute_modules: str | None = None,
        recompute_num_layers: str | None = None,
        recompute_mtp_granularity: str | None = None,
        recompute_mtp_method: str | None = None,
        recompute_mtp_modules: str | None = None,
        use_lowprecision_moment: bool = False,
        tensorwise_offload_optimizer: bool = False,
        release_grads: bool = False,
        pre_alloc_memory: int = 0,
        muon_exclude_patterns: list[str] | None = None,
        min_lr: float = 0.0,
        freeze_training: bool = False,
        skip_data_intervals: str | None = None,
        prefetch_factor: int = 2,
        wandb_http_proxy: str | None = None,
        count_trained_tokens: bool = False,
        profile_step_start: int = 10,
        profile_step_end: int = 12,
    ) -> None:
        """Arguments are passed by name, in any spelling.

        Args:
            output_dir: Directory for checkpoints, logs and results. A Trainer without arguments uses tmp_trainer. A URL such as s3://bucket/run becomes output_url, and output_dir a local directory in the cache of the user.
            output_url: Object storage, as a URL that fsspec can open: the contents of output_dir are uploaded there, and a run is resumed from there.
            overwrite_output_dir: For your script: start a new run in a directory with checkpoints. The Trainer itself deletes nothing; a new run in a directory with checkpoints logs a warning.
            do_train: For your script: whether to train.
            do_eval: For your script: whether to evaluate. True if eval_strategy is not 'no'.
            do_predict: For your script: whether to predict on the test set.
            do_export: For your script: whether to export the trained model.
            resume_from_checkpoint: Path of a checkpoint, or True or latest for the newest one; the default of train(). True without a checkpoint starts from scratch and logs it.
            seed: Random seed of the model and of dropout.
            data_seed: Random seed of the data order.
            full_determinism: Use the framework's deterministic algorithms: two runs are bit-identical.
            run_name: Name of the run in the writers.
            device_spec: Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.
            debug: underflow_overflow: report the layer and step of the first non-finite value.
            profile: Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. Writes a trace and a table of operators to output_dir/profile.
            trace_steps: Steps to record for `oneloop diff`, counted from 0, such as 0-2: digests of what every layer computes, of gradients, updates and optimizer state, in output_dir/trace.
            verify_steps: Compute the gradients of every N-th update twice and compare their bytes: finds layers that are not deterministic, and hardware that computes wrongly. 0: off.
            verify_action: If the gradients differ (verify_steps): stop before the update, or warn. Both record an event.
            replay_overrides: Overridden methods that may be called again where an update is computed more than once (trace_steps, verify_steps): training_step, compute_loss. Name those whose side effects may be doubled, or that have none.
            log_level: Log level of the main process; passive keeps the application's level.
            log_level_replica: Log level of the other processes.
            log_on_each_node: With several machines: log on each machine instead of only the first.
            disable_tqdm: Disable progress bars.
            skip_memory_metrics: False adds peak memory to the metrics.
            past_index: Index of the model output to pass as `mems` to the next step; -1: off.
            per_device_train_batch_size: Training batch size per device (samples per micro-batch).
            per_device_eval_batch_size: Evaluation batch size per device.
            gradient_accumulation_steps: Micro-batches per optimizer update; the update equals that of the undivided batch.
            average_tokens_across_devices: With several processes: weight each process's loss by its number of labelled tokens.
            dataloader_drop_last: Drop the last batch of an epoch if it is incomplete.
            dataloader_num_workers: DataLoader worker processes; 0 loads in the main process.
            dataloader_pin_memory: Pin host memory for faster copies to an accelerator; MindSpore does its own copying.
            dataloader_persistent_workers: Keep the DataLoader workers alive between epochs.
            dataloader_prefetch_factor: Batches that each DataLoader worker prefetches.
            dataloader_multiprocessing_context: Start method of the DataLoader workers.
            dataloader_in_order: False yields batches as soon as any worker has one ready, in no fixed order.
            remove_unused_columns: Drop columns that the model's forward does not accept; their names are logged.
            label_names: Names of the label columns.
            train_sampling_strategy: Order of the training data; group_by_length batches samples of similar length, batch_rebalance divides those of each update into micro-batches of about equal cost.
            data_order: The order of shuffled data: oneloop's, or that of transformers' Trainer with the same seeds, which also draws the random numbers of dropout in its order.
            length_column_name: Column with each sample's length, for group_by_length, batch_rebalance and max_tokens_per_batch; lengths are computed if it is missing.
            max_tokens_per_batch: A training micro-batch has as many samples of similar length as fit into this many tokens, padding included, instead of per_device_train_batch_size samples. Trainer.batch_cost may count something else than tokens.
            packing: Lay documents (token ids in `input_ids`) into rows of max_length tokens, kept apart from each other: end_to_end (True) cuts them where a row is full, best_fit only those longer than a row. wrapped is end_to_end for documents that may attend to each other: a row is like one document.
            max_length: Tokens in a row of packed documents.
            eval_packing: Whether evaluations pack as well; False gives each document a row of its own.
            seed_each_sample: Seed the dataset's random numbers by sample and epoch, so that they do not depend on the number of processes and workers. Costs one reseeding per sample, and samples are fetched one by one.
            stream_sharding: On several processes, what each reads of a stream: all of it, keeping its samples, so that the order is the same for any number of processes; or its own shards (files) only.
            mixture_weights: For a train_dataset that is a dict of datasets: the proportion of each, such as wiki=0.7,code=0.3, a dict or JSON, or a list of [step, weights]. None: by size.
            mixture_temperature: For weights by size: the sizes to the power of 1 / temperature; above 1, small datasets get more.
            mixture_stop: When an epoch of a mixture ends: first_exhausted, all_exhausted, or a number of samples.
            mixture_metrics: What is logged of each dataset of a Mixture: its loss and tokens, its tokens only, or nothing. Losses cost a second cross entropy of the logits, without gradients.
            ignore_data_skip: On resume, start the data at the beginning of the epoch.
            auto_find_batch_size: On out-of-memory: retry with a smaller micro-batch and more accumulation, same global batch.
            learning_rate: Peak learning rate.
            weight_decay: Weight decay; not applied to biases and normalization weights.
            adam_beta1: Beta1 of AdamW.
            adam_beta2: Beta2 of AdamW.
            adam_epsilon: Epsilon of AdamW.
            max_grad_norm: Maximum gradient norm, for clipping; 0 disables clipping. The norm is logged.
            optim: The optimizer. All spellings of AdamW select the same AdamW, except adamw_anyprecision. muon is Muon for matrices of hidden layers and AdamW for the rest. If an optimizer needs a package, the error message names it.
            optim_args: Additional options of the optimizer: "key=value,key=value".
            optim_target_modules: For GaLore, APOLLO and Muon: the modules to optimize with it. Required by the first two; by default, Muon updates all matrices except embeddings and the head.
            lr_scheduler_type: Learning rate schedule.
            lr_scheduler_kwargs: Additional options of the schedule, as a dict or JSON.
            warmup_steps: Steps of linear warmup from 0; a value below 1 is a ratio of all steps.
            warmup_ratio: Warmup as a ratio of all steps; overridden by warmup_steps. None is 0.
            cooldown_steps: Branch a run: from the checkpoint in resume_from_checkpoint on, decay the learning rate from its value there to 0 within this number of steps, which end the run.
            cooldown_type: Shape of the decay of cooldown_steps.
            num_train_epochs: Number of epochs; may be fractional.
            max_steps: Total number of optimizer updates; overrides num_train_epochs. -1: off.
            ema_decay: Keep an exponential moving average (EMA) of the weights with this decay, such as 0.999; in checkpoints it is average.safetensors.
            swa_start: Keep the mean of the weights from this step on (stochastic weight averaging, SWA); a value below 1 is a ratio of all steps.
            averaging_steps: Steps between two updates of the average (EMA or SWA) of the weights.
            eval_with_average: Evaluate and predict with the average (EMA or SWA) of the weights.
            save_average: Write the average (EMA or SWA) of the weights in save_model, export and pushes to the Hub. Checkpoints always have both.
            label_smoothing_factor: Label smoothing: spread this fraction over all classes.
            chunked_loss: Compute the loss of a language model from its hidden states and its head in chunks: whole logits never exist. None: where those of a micro-batch would take more than 256 MB, and the model does nothing else with them.
            chunked_loss_layer: The name of the layer that computes the logits, for chunked_loss with a model that has no method get_output_embeddings.
            neftune_noise_alpha: Alpha of NEFTune embedding noise.
            fp16: Mixed precision with float16 and loss scaling.
            bf16: Mixed precision with bfloat16.
            fp16_opt_level: For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.
            half_precision_backend: Mixed-precision implementation.
            scale_loss: Initial loss scale for fp16; steps that overflow are skipped and counted.
            bf16_full_eval: Evaluate with bfloat16 weights.
            fp16_full_eval: Evaluate with float16 weights.
            tf32: TF32 matrix multiplication on GPUs that support it.
            gradient_checkpointing: Recompute activations in the backward pass: same losses, less memory.
            gradient_checkpointing_kwargs: Additional options of gradient_checkpointing, as a dict or JSON.
            torch_compile: Compile the model with the framework's graph compiler. Enabled by a backend or a mode.
            torch_compile_backend: Compiler backend; enables torch_compile.
            torch_compile_mode: Compiler mode; enables torch_compile.
            jit_mode_eval: Evaluate with the compiled graph.
            use_ipex: Intel Extension for PyTorch.
            use_liger_kernel: Liger kernels for transformers models.
            liger_kernel_config: Which Liger kernels to use, as a dict or JSON.
            use_cache: Keep the model's key-value cache enabled during training.
            torch_empty_cache_steps: Empty the accelerator's memory cache every this many steps.
            eval_strategy: When to evaluate during training.
            eval_steps: Steps between evaluations; a value below 1 is a ratio of all steps.
            eval_delay: Epochs or steps (by eval_strategy) before the first evaluation.
            eval_on_start: Evaluate once before the first step.
            eval_accumulation_steps: Prediction steps to accumulate on the device before moving outputs to the host.
            eval_do_concat_batches: False passes the outputs to compute_metrics as a list of batches.
            eval_use_gather_object: No effect: outputs that are not tensors are always gathered from all processes.
            minimum_eval_times: Lower eval_steps so that there are at least this many evaluations; -1 or 0: off.
            prediction_loss_only: Return only the loss, no outputs.
            include_for_metrics: Extra inputs of compute_metrics: inputs, loss.
            batch_eval_metrics: Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept.
            load_best_model_at_end: Load the best model at the end of training, with any save_strategy.
            metric_for_best_model: Metric used to compare models.
            greater_is_better: Whether a greater metric_for_best_model is better.
            logging_dir: Directory for the writers' files.
            logging_strategy: When to log.
            logging_steps: Steps between logs; a value below 1 is a ratio of all steps.
            logging_first_step: Also log the first step and, except in transformers scripts, evaluate it with eval_strategy='steps'.
            logging_nan_inf_filter: Exclude non-finite losses from the logged average (only).
            nonfinite: What to do about a non-finite loss or gradient: stop the run, skip the update, or nothing.
            nonfinite_limit: Updates in a row that nonfinite='skip' may skip before the run is stopped; 0: any number.
            loss_spike: What to do about a loss or gradient norm far above those of recent steps: nothing; warn; or return to the last checkpoint and skip the samples of the spike.
            loss_spike_threshold: With loss_spike: the number of robust standard deviations above the median from which a value is a spike.
            loss_spike_window: With loss_spike: the number of recent steps that a value is compared with. Before that, none is a spike.
            loss_spike_skip_steps: With loss_spike='rollback': steps whose samples are skipped: the spike and those before it.
            loss_spike_limit: With loss_spike='rollback': returns since the last checkpoint on schedule before the run is stopped.
            report_to: Writers that receive the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all: every one that needs no account; none. A service with accounts has to be named.
            include_num_input_tokens_seen: Count the input tokens seen.
            include_tokens_per_second: Report tokens per second in the speed metrics.
            log_throughput: Add to the logs: tokens per second, those without padding (if include_num_input_tokens_seen is non_padding), MFU, and the share of the time spent waiting for data. The report page has them anyway.
            device_peak_flops: Peak floating-point operations per second of one device, for the model FLOPs utilization (MFU). By default known for some GPUs in half precision.
            project: Project name, for writers that have projects.
            trackio_space_id: Space that trackio writes to.
            trackio_bucket_id: Bucket that trackio writes to.
            trackio_static_space_id: Read-only space that trackio creates at the end; False: none.
            save_strategy: When to save a checkpoint.
            save_steps: Steps between checkpoints; a value below 1 is a ratio of all steps.
            save_total_limit: Maximum number of checkpoints to keep, including the best; with 1, the newest and the best.
            save_interval_minutes: Also save when the last checkpoint is this many minutes old.
            snapshot_steps: Steps between snapshots: checkpoints in the memory of the machine, of which the newest is kept. A run whose processes were killed is resumed from it.
            snapshot_dir: With snapshot_steps: a directory in memory.
            save_async: Write checkpoints in the background during training.
            save_on_each_node: With several machines: save on each machine instead of only the first.
            save_only_model: Save checkpoints without optimizer, scheduler and RNG state; no exact resume.
            save_safetensors: Save weights as safetensors, the only format written.
            restore_callback_states_from_checkpoint: On resume, restore the callbacks' state from the checkpoint.
            preemption_signals: Signals on which a run finishes its step, saves and stops; SIGUSR1 and others can be added, [] disables it.
            enable_jit_checkpoint: True: adds SIGTERM to preemption_signals, where it is by default.
            push_to_hub: Push the model to the Hub each time it is saved.
            hub_model_id: With push_to_hub: the repository.
            hub_strategy: With push_to_hub: what to push, and when.
            hub_token: With push_to_hub: the token. It is never written to a file or log.
            hub_private_repo: With push_to_hub: make a new repository private or public. By default, as its owner's settings say.
            hub_always_push: With push_to_hub: push even if the previous push has not finished.
            hub_revision: With push_to_hub: the branch to push to.
            local_rank: Rank of this process on its machine.
            sharding: What is partitioned across processes: stage1 optimizer state, stage2 also gradients, stage3 also parameters; optionally offload, auto_wrap.
            sharding_degree: Number of processes in a sharding group; -1: all.
            tensor_parallel_size: Number of processes that divide the weights of each layer (tensor parallelism).
            tensor_parallel_plan: Which layers are divided, and how: names with * for any part, and colwise, rowwise, ...; a dict, JSON, or a JSON file. transformers models have one.
            sequence_parallel_size: Number of processes that divide each sequence of a batch.
            expert_parallel_size: Number of processes that divide the experts of a model.
            fsdp_config: Additional sharding options, as a dict, JSON, or a JSON file.
            deepspeed: DeepSpeed configuration: a path or a dict.
            accelerator_config: Options of accelerate, as a dict, JSON, or a JSON file. Reads back as an AcceleratorConfig.
            parallelism_config: accelerate's ParallelismConfig, or a dict of its sizes (dp_replicate_size, dp_shard_size, tp_size, cp_size, sp_size), which set the arguments for these axes.
            world_invariant: Train with the same bits on any number of processes: an update keeps its micro-batches, each draws random numbers of its own, and gradients are added up in a fixed order.
            ddp_find_unused_parameters: Detect parameters that a step does not use.
            ddp_bucket_cap_mb: Gradient bucket size in megabytes.
            ddp_broadcast_buffers: Broadcast buffers to all processes.
            ddp_static_graph: Assume that every step uses the same parameters.
            ddp_timeout: Timeout of collectives in seconds.
            ddp_backend: Communication backend: gloo, nccl, mpi, ccl, ...
            tpu_num_cores: Number of TPU cores.
            mp_parameters: SageMaker model parallelism.
            use_legacy_prediction_loop: The evaluation loop of early transformers releases.
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
            sharding_parallel_size: The same as sharding_degree.
            xpu_backend: The same as ddp_backend.
            device: Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.
            use_cpu: True sets device="cpu".
            no_cuda: True sets device="cpu".
            use_mps_device: True sets device="mps".
            adafactor: True sets optim="adafactor".
            group_by_length: True sets train_sampling_strategy="group_by_length".
            dataloader_shuffle: False: train_sampling_strategy="sequential".
            deterministic_mode: True sets full_determinism=True.
            recompute_granularity: "full": gradient_checkpointing=True.
            tensor_parallel_degree: The same as tensor_parallel_size; -1 is ignored.
            tensor_model_parallel_size: The same as tensor_parallel_size; -1 is ignored.
            sep_parallel_degree: The same as sequence_parallel_size; -1 is ignored.
            sep_parallel_size: The same as sequence_parallel_size; -1 is ignored.
            context_parallel_size: The same as sequence_parallel_size; -1 is ignored.
            expert_model_parallel_size: The same as expert_parallel_size; -1 is ignored.
            include_inputs_for_metrics: True adds it to include_for_metrics.
            tpu_metrics_debug: True adds it to debug.
            fsdp: full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; optionally offload, auto_wrap.
            sharded_ddp: simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; optionally offload, auto_wrap.
            fsdp_min_num_params: fsdp_config's min_num_params.
            fsdp_transformer_layer_cls_to_wrap: fsdp_config's transformer_layer_cls_to_wrap.
            num_cycles: lr_scheduler_kwargs's num_cycles.
            lr_end: lr_scheduler_kwargs's lr_end.
            power: lr_scheduler_kwargs's power.
            push_to_hub_organization: The owner (organization) in hub_model_id.
            _n_gpu: -1: the number of devices is detected; select one with device.
            amp_custom_black_list: None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward.
            amp_custom_white_list: None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward.
            amp_master_grad: False: gradients have the dtype of their weights; fp16_opt_level='O1' keeps both in float32.
            data_parallel_config: "": Paddle's data-parallel options are not supported.
            data_parallel_degree: -1 or this run's value: it is the number of processes that were launched.
            distributed_dataloader: False: each process loads its own batches.
            enable_auto_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            flatten_param_grads: False: gradients are not flattened.
            force_reshard_pp: False: a checkpoint holds the full model, independent of the number of processes.
            hybrid_parallel_topo_order: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            ignore_load_lr_and_optim: False: load the weights yourself and start a new run.
            ignore_save_lr_and_optim: False: use save_only_model=True.
            lazy_data_processing: True: samples are read on access.
            load_sharded_model: False: a checkpoint holds the full model, independent of the number of processes.
            max_evaluate_steps: -1: an evaluation uses the whole dataset; pass a smaller eval_dataset.
            metrics_output_path: None: save_metrics() writes into output_dir.
            pipeline_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pipeline_parallel_degree: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            save_sharded_model: False: a checkpoint holds the full model, independent of the number of processes.
            sharding_parallel_config: "": there are no further sharding options on Paddle.
            skip_profile_timer: True: logs include steps_per_second; use profile=True for details.
            tensor_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            unified_checkpoint: True or False: a checkpoint holds the full model, independent of the number of processes.
            unified_checkpoint_config: "": a checkpoint holds the full model, independent of the number of processes.
            use_expert_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_hybrid_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            wandb_api_key: None: arguments are written to files, so they must not contain keys; set WANDB_API_KEY instead.
            pipeline_model_parallel_size: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            expert_tensor_model_parallel_size: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sequence_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            fuse_sequence_parallel_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            auto_parallel_resume_form_hybrid_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            reorder_pipeline_priority: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_intermediate_api: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sharding_comm_overlap: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_async_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sp_async_reduce_scatter: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            overlap_p2p_comm: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            variable_seq_lengths: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sp_allreduce_avg_in_gradinent_scale: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_async_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_skip_c_identity: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_fused_linear_param_grad_add: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sync_param: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_sync_param: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sync_grad: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_sync_moment: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sync_moment: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            replace_with_c_embedding: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            replace_with_parallel_cross_entropy: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_release_grads: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            clear_every_step_cache: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            non_batch_p2p_comm: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            auto_parallel_sync_shared_params: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            best_unbalanced_scheduler: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            offload_queue: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_dualpipev: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            forward_backward_overlap_scheduler: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            send_recv_overlap: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            split_backward: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            timer: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            split_inputs_sequence_dim: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            batch_p2p_comm: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_delay_scale_loss: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            p2p_cache_shape: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            partial_send_recv: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sequence_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            cp_balance_mode: dualchunk_allgather: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            cp_comm_type: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            nccl_comm_group_config: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sharding_comm_group_call_opt: False: there are no further sharding options on Paddle.
            split_norm_comm: False: there are no further sharding options on Paddle.
            stage1_tensor_fusion: False: there are no further sharding options on Paddle.
            tensor_fusion: False: there are no further sharding options on Paddle.
            stage1_overlap: False: there are no further sharding options on Paddle.
            stage2_overlap: False: there are no further sharding options on Paddle.
            stage1_broadcast_overlap: False: there are no further sharding options on Paddle.
            stage1_allgather_overlap: False: there are no further sharding options on Paddle.
            fuse_optimizer_states: False: there are no further sharding options on Paddle.
            sd_release_grads: False: there are no further sharding options on Paddle.
            sd_sharding_comm_overlap: False: there are no further sharding options on Paddle.
            sd_shardingv1_comm_overlap: False: there are no further sharding options on Paddle.
            overlap: False: there are no further sharding options on Paddle.
            stage1_reduce_avg: True: there are no further sharding options on Paddle.
            split_param: True: there are no further sharding options on Paddle.
            sharding_comm_buffer_size_MB: -1: there are no further sharding options on Paddle.
            sharding_offload_opt_buffersize_GB: -1: there are no further sharding options on Paddle.
            sharding_parallel_mesh_dimension: dp: there are no further sharding options on Paddle.
            dp_comm_overlap: False: gradients are exchanged once per update, in its last micro-batch.
            dp_allreduce_avg_in_gradinent_scale: False: gradients are exchanged once per update, in its last micro-batch.
            gradient_sync_after_accumulate: True or False: gradients are exchanged once per update, in its last micro-batch.
            save_checkpoint_format: flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background.
            load_checkpoint_format: flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background.
            use_async_save: True or False: checkpoints are oneloop's own: whole, and written in the background.
            load_via_cpu: True or False: checkpoints are oneloop's own: whole, and written in the background.
            save_rng_states: True: checkpoints are oneloop's own: whole, and written in the background.
            save_tokenizer: True: checkpoints are oneloop's own: whole, and written in the background.
            load_sharded_model_remap_parameter_name: False: checkpoints are oneloop's own: whole, and written in the background.
            sharded_model_from_ema: False: checkpoints are oneloop's own: whole, and written in the background.
            pdc_download_ckpt: False: checkpoints are oneloop's own: whole, and written in the background.
            load_from_hf: False: checkpoints are oneloop's own: whole, and written in the background.
            save_sharding_stage1_model_include_freeze_params: False: checkpoints are oneloop's own: whole, and written in the background.
            enable_zero_cost_checkpoint: False: checkpoints are oneloop's own: whole, and written in the background.
            replicate_saved_into_local: False: checkpoints are oneloop's own: whole, and written in the background.
            save_last_step: False: checkpoints are oneloop's own: whole, and written in the background.
            output_signal_dir: None: checkpoints are oneloop's own: whole, and written in the background.
            resume_from_huggingface_ckpt: None: checkpoints are oneloop's own: whole, and written in the background.
            aoa_config: None: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_total_limit: None: checkpoints are oneloop's own: whole, and written in the background.
            flex_ckpt_comm_method: None: checkpoints are oneloop's own: whole, and written in the background.
            ordered_save_group_size: 0: checkpoints are oneloop's own: whole, and written in the background.
            flash_device_save_steps: 0: checkpoints are oneloop's own: whole, and written in the background.
            optim_shard_num: 1: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_steps: -1: checkpoints are oneloop's own: whole, and written in the background.
            zcc_workers_num: 3: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_memory_growth_threshold: 8: checkpoints are oneloop's own: whole, and written in the background.
            zcc_pipeline_hooks_capacity_usage: 0.6: checkpoints are oneloop's own: whole, and written in the background.
            pdc_download_timeout: 300: checkpoints are oneloop's own: whole, and written in the background.
            ckpt_quant_stage: O0: checkpoints are oneloop's own: whole, and written in the background.
            save_to_hf: False: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects.
            convert_from_hf: True: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects.
            zcc_save_ema_coef: None: for an average of the weights, use ema_decay with averaging_steps.
            zcc_ema_loss_threshold: None: for an average of the weights, use ema_decay with averaging_steps.
            zcc_ema_interval: 1: for an average of the weights, use ema_decay with averaging_steps.
            online_merge_ema: True: for an average of the weights, use ema_decay with averaging_steps.
            num_nextn_predict_layers: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            mtp_num_layers: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            pad_token_id: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            train_mtp_only: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            mtp_distillation_loss: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            using_sonic_moe: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            offload_fp8_expert_master_weight: True: it is an option of PaddleFormers' models; set it in the model's configuration.
            moe_router_bias_update_rate: 0.0: it is an option of PaddleFormers' models; set it in the model's configuration.
            dsa_indexer_loss_coeff: 0.01: it is an option of PaddleFormers' models; set it in the model's configuration.
            fa_version: None: it is an option of PaddleFormers' models; set it in the model's configuration.
            hybrid_parallel_expert_grad_scale: None: it is an option of PaddleFormers' models; set it in the model's configuration.
            muon_qkv_update_mode: split_head: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ffn_split: True: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_extra_scale_factor: 0.2: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_momentum: 0.95: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_version: 3: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_steps: 5: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_coeff_type: quintic: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_coeffs: None: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            recompute_method: None: recompute=True recomputes every block.
            recompute_modules: None: recompute=True recomputes every block.
            recompute_num_layers: None: recompute=True recomputes every block.
            recompute_mtp_granularity: None: recompute=True recomputes every block.
            recompute_mtp_method: None: recompute=True recomputes every block.
            recompute_mtp_modules: None: recompute=True recomputes every block.
            use_lowprecision_moment: False: memory of the optimizer is not tuned; use sharding to partition its state.
            tensorwise_offload_optimizer: False: memory of the optimizer is not tuned; use sharding to partition its state.
            release_grads: False: memory of the optimizer is not tuned; use sharding to partition its state.
            pre_alloc_memory: 0: memory of the optimizer is not tuned; use sharding to partition its state.
            muon_exclude_patterns: None or ['embed', 'bias', 'lm_head', 'mlp.gate']: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            min_lr: 0.0: use lr_scheduler_type='cosine_with_min_lr' with lr_scheduler_kwargs={'min_lr': ...}.
            freeze_training: False: a run without updates is an evaluation; call evaluate().
            skip_data_intervals: None: no samples are skipped; pass a dataset without them.
            prefetch_factor: 2: use dataloader_prefetch_factor.
            wandb_http_proxy: None: set HTTPS_PROXY in the environment instead.
            count_trained_tokens: False: use include_num_input_tokens_seen.
            profile_step_start: 10: use profile=True.
            profile_step_end: 12: use profile=True.
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
    """With predict_with_generate: maximum length of the output."""
    generation_num_beams: int | None = ...
    """With predict_with_generate: number of beams."""
    generation_config: Any = ...
    """With predict_with_generate: a GenerationConfig, or a model's name or path to load it from."""

    def __init__(
        self,
        output_dir: Text | None = None,
        *,
        output_url: Text | None = None,
        overwrite_output_dir: bool = False,
        do_train: bool = False,
        do_eval: bool = False,
        do_predict: bool = False,
        do_export: bool = False,
        resume_from_checkpoint: bool | Text | None = None,
        seed: Integer = 42,
        data_seed: Integer | None = None,
        full_determinism: bool = False,
        run_name: Text | None = None,
        device_spec: object | None = None,
        debug: Words | None = "",
        profile: bool | int | str | None = "",
        trace_steps: int | str | None = "",
        verify_steps: Integer = 0,
        verify_action: Literal["stop", "warn"] = "stop",
        replay_overrides: Words | None = ...,
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] | None = "passive",
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] | None = "warning",
        log_on_each_node: bool = True,
        disable_tqdm: bool | None = None,
        skip_memory_metrics: bool = True,
        past_index: Integer = -1,
        per_device_train_batch_size: Integer = 8,
        per_device_eval_batch_size: Integer = 8,
        gradient_accumulation_steps: Integer = 1,
        average_tokens_across_devices: bool = True,
        dataloader_drop_last: bool = False,
        dataloader_num_workers: Integer = 0,
        dataloader_pin_memory: bool = True,
        dataloader_persistent_workers: bool = False,
        dataloader_prefetch_factor: Integer | None = None,
        dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None,
        dataloader_in_order: bool = True,
        remove_unused_columns: bool | None = True,
        label_names: Words | None = None,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = "random",
        data_order: Literal["oneloop", "transformers"] = "oneloop",
        length_column_name: Text | None = "length",
        max_tokens_per_batch: Integer | None = None,
        packing: bool | Text = False,
        max_length: Integer | None = None,
        eval_packing: bool | None = None,
        seed_each_sample: bool = False,
        stream_sharding: Literal["samples", "shards"] = "samples",
        mixture_weights: Any = None,
        mixture_temperature: Number = 1.0,
        mixture_stop: Any = "first_exhausted",
        mixture_metrics: Literal["loss", "tokens", "no"] = "loss",
        ignore_data_skip: bool = False,
        auto_find_batch_size: bool = False,
        learning_rate: Number = 5e-05,
        weight_decay: Number = 0.0,
        adam_beta1: Number = 0.9,
        adam_beta2: Number = 0.999,
        adam_epsilon: Number = 1e-08,
        max_grad_norm: Number = 1.0,
        optim: OptimizerNames | OptimizerNamesValue = "adamw_torch",
        optim_args: Mapping[str, Any] | Text | None = None,
        optim_target_modules: Words | None = None,
        lr_scheduler_type: SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] = "linear",
        lr_scheduler_kwargs: JsonDict | None = None,
        warmup_steps: Number = 0,
        warmup_ratio: Number | None = 0.0,
        cooldown_steps: Integer | None = None,
        cooldown_type: Literal["linear", "cosine", "1-sqrt"] = "1-sqrt",
        num_train_epochs: Number = 3.0,
        max_steps: Integer = -1,
        ema_decay: Number | None = None,
        swa_start: Number | None = None,
        averaging_steps: Integer = 1,
        eval_with_average: bool = False,
        save_average: bool = False,
        label_smoothing_factor: Number = 0.0,
        chunked_loss: bool | None = None,
        chunked_loss_layer: Text | None = None,
        neftune_noise_alpha: Number | None = None,
        fp16: bool = False,
        bf16: bool = False,
        fp16_opt_level: Literal["O0", "O1", "O2", "O3"] = "O1",
        half_precision_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] = "auto",
        scale_loss: Number = 32768.0,
        bf16_full_eval: bool = False,
        fp16_full_eval: bool = False,
        tf32: bool | None = None,
        gradient_checkpointing: bool = False,
        gradient_checkpointing_kwargs: JsonDict | None = None,
        torch_compile: bool = False,
        torch_compile_backend: Text | None = None,
        torch_compile_mode: Text | None = None,
        jit_mode_eval: bool = False,
        use_ipex: bool = False,
        use_liger_kernel: bool = False,
        liger_kernel_config: JsonDict | None = None,
        use_cache: bool = False,
        torch_empty_cache_steps: Integer | None = None,
        eval_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] = "no",
        eval_steps: Number | None = None,
        eval_delay: Number | None = 0,
        eval_on_start: bool = False,
        eval_accumulation_steps: Integer | None = None,
        eval_do_concat_batches: bool = True,
        eval_use_gather_object: bool = False,
        minimum_eval_times: Integer | None = None,
        prediction_loss_only: bool = False,
        include_for_metrics: Words | None = ...,
        batch_eval_metrics: bool = False,
        load_best_model_at_end: bool | None = False,
        metric_for_best_model: Text | None = None,
        greater_is_better: bool | None = None,
        logging_dir: Text | None = None,
        logging_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] = "steps",
        logging_steps: Number = 500,
        logging_first_step: bool = False,
        logging_nan_inf_filter: bool = False,
        nonfinite: Literal["stop", "skip", "ignore"] = "stop",
        nonfinite_limit: Integer = 100,
        loss_spike: Literal["off", "warn", "rollback"] = "off",
        loss_spike_threshold: Number = 10.0,
        loss_spike_window: Integer = 100,
        loss_spike_skip_steps: Integer = 1,
        loss_spike_limit: Integer = 3,
        report_to: Words | None = None,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = "no",
        include_tokens_per_second: bool = False,
        log_throughput: bool = False,
        device_peak_flops: Number | None = None,
        project: Text = "huggingface",
        trackio_space_id: Text | None = None,
        trackio_bucket_id: Text | None = None,
        trackio_static_space_id: Literal[False] | Text | None = None,
        save_strategy: SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] = "steps",
        save_steps: Number = 500,
        save_total_limit: Integer | None = None,
        save_interval_minutes: Number | None = None,
        snapshot_steps: Integer | None = None,
        snapshot_dir: Text | None = None,
        save_async: bool = True,
        save_on_each_node: bool = False,
        save_only_model: bool = False,
        save_safetensors: bool = True,
        restore_callback_states_from_checkpoint: bool = False,
        preemption_signals: Words | None = ...,
        enable_jit_checkpoint: bool = False,
        push_to_hub: bool = False,
        hub_model_id: Text | None = None,
        hub_strategy: HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "every_save",
        hub_token: Text | None = None,
        hub_private_repo: bool | None = None,
        hub_always_push: bool = False,
        hub_revision: Text | None = None,
        local_rank: Integer = -1,
        sharding: Words | None = "",
        sharding_degree: Integer = -1,
        tensor_parallel_size: Integer | None = 1,
        tensor_parallel_plan: Config | None = None,
        sequence_parallel_size: Integer | None = 1,
        expert_parallel_size: Integer | None = 1,
        fsdp_config: Config | None = None,
        deepspeed: dict[str, Any] | Text | None = None,
        accelerator_config: Config | None = None,
        parallelism_config: Any = None,
        world_invariant: bool = False,
        ddp_find_unused_parameters: bool | None = None,
        ddp_bucket_cap_mb: Integer | None = None,
        ddp_broadcast_buffers: bool | None = None,
        ddp_static_graph: bool | None = None,
        ddp_timeout: Integer | None = 1800,
        ddp_backend: Text | None = None,
        tpu_num_cores: Integer | None = None,
        mp_parameters: Text = "",
        use_legacy_prediction_loop: bool = False,
        ray_scope: Literal["last", "all", "avg", "last-5-avg", "last-10-avg"] | None = "last",
        sortish_sampler: bool = False,
        predict_with_generate: bool = False,
        generation_max_length: Integer | None = None,
        generation_num_beams: Integer | None = None,
        generation_config: Any = None,
        per_gpu_train_batch_size: Integer | None = None,
        per_gpu_eval_batch_size: Integer | None = None,
        dataset_drop_last: bool | None = None,
        dataset_num_workers: Integer | None = None,
        dataset_prefetch_factor: Integer | None = None,
        fp16_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | None = None,
        f16_full_eval: bool | None = None,
        recompute: bool | None = None,
        recompute_kwargs: JsonDict | None = None,
        to_static: bool | None = None,
        torchdynamo: Text | None = None,
        evaluation_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | None = None,
        push_to_hub_model_id: Text | None = None,
        push_to_hub_token: Text | None = None,
        sharding_parallel_degree: Integer | None = None,
        sharding_parallel_size: Integer | None = None,
        xpu_backend: Text | None = None,
        device: object | None = None,
        use_cpu: bool | None = None,
        no_cuda: bool | None = None,
        use_mps_device: bool | None = None,
        adafactor: bool | None = None,
        group_by_length: bool | None = None,
        dataloader_shuffle: bool | None = None,
        deterministic_mode: bool | None = None,
        recompute_granularity: Text | None = None,
        tensor_parallel_degree: Integer | None = None,
        tensor_model_parallel_size: Integer | None = None,
        sep_parallel_degree: Integer | None = None,
        sep_parallel_size: Integer | None = None,
        context_parallel_size: Integer | None = None,
        expert_model_parallel_size: Integer | None = None,
        include_inputs_for_metrics: bool | None = None,
        tpu_metrics_debug: bool | None = None,
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
        sharding_parallel_config: str = "",
        skip_profile_timer: bool = True,
        tensor_parallel_config: str = "",
        unified_checkpoint: bool = True,
        unified_checkpoint_config: str = "",
        use_expert_parallel: bool = False,
        use_hybrid_parallel: bool = False,
        wandb_api_key: str | None = None,
        pipeline_model_parallel_size: int = 1,
        expert_tensor_model_parallel_size: int = 1,
        sequence_parallel: bool = False,
        fuse_sequence_parallel_allreduce: bool = False,
        auto_parallel_resume_form_hybrid_parallel: bool = False,
        reorder_pipeline_priority: bool = False,
        use_intermediate_api: bool = False,
        pp_sharding_comm_overlap: bool = False,
        tp_async_allreduce: bool = False,
        sp_async_reduce_scatter: bool = False,
        overlap_p2p_comm: bool = False,
        variable_seq_lengths: bool = False,
        sp_allreduce_avg_in_gradinent_scale: bool = False,
        mp_async_allreduce: bool = False,
        mp_skip_c_identity: bool = False,
        mp_fused_linear_param_grad_add: bool = False,
        pp_sync_param: bool = False,
        tp_sync_param: bool = False,
        sync_grad: bool = False,
        tp_sync_moment: bool = False,
        pp_sync_moment: bool = False,
        replace_with_c_embedding: bool = False,
        replace_with_parallel_cross_entropy: bool = False,
        pp_release_grads: bool = False,
        clear_every_step_cache: bool = False,
        non_batch_p2p_comm: bool = False,
        auto_parallel_sync_shared_params: bool = False,
        best_unbalanced_scheduler: bool = False,
        offload_queue: bool = False,
        use_dualpipev: bool = False,
        forward_backward_overlap_scheduler: bool = False,
        send_recv_overlap: bool = False,
        split_backward: bool = False,
        timer: bool = False,
        split_inputs_sequence_dim: bool = True,
        batch_p2p_comm: bool = True,
        pp_delay_scale_loss: bool = True,
        p2p_cache_shape: bool = True,
        partial_send_recv: bool = True,
        sequence_parallel_config: str = "",
        cp_balance_mode: str = "dualchunk_allgather",
        cp_comm_type: str | None = None,
        nccl_comm_group_config: str | None = None,
        sharding_comm_group_call_opt: bool = False,
        split_norm_comm: bool = False,
        stage1_tensor_fusion: bool = False,
        tensor_fusion: bool = False,
        stage1_overlap: bool = False,
        stage2_overlap: bool = False,
        stage1_broadcast_overlap: bool = False,
        stage1_allgather_overlap: bool = False,
        fuse_optimizer_states: bool = False,
        sd_release_grads: bool = False,
        sd_sharding_comm_overlap: bool = False,
        sd_shardingv1_comm_overlap: bool = False,
        overlap: bool = False,
        stage1_reduce_avg: bool = True,
        split_param: bool = True,
        sharding_comm_buffer_size_MB: int = -1,
        sharding_offload_opt_buffersize_GB: int = -1,
        sharding_parallel_mesh_dimension: str = "dp",
        dp_comm_overlap: bool = False,
        dp_allreduce_avg_in_gradinent_scale: bool = False,
        gradient_sync_after_accumulate: bool = True,
        save_checkpoint_format: str | None = "flex_checkpoint",
        load_checkpoint_format: str | None = "flex_checkpoint",
        use_async_save: bool = True,
        load_via_cpu: bool = True,
        save_rng_states: bool = True,
        save_tokenizer: bool = True,
        load_sharded_model_remap_parameter_name: bool = False,
        sharded_model_from_ema: bool = False,
        pdc_download_ckpt: bool = False,
        load_from_hf: bool = False,
        save_sharding_stage1_model_include_freeze_params: bool = False,
        enable_zero_cost_checkpoint: bool = False,
        replicate_saved_into_local: bool = False,
        save_last_step: bool = False,
        output_signal_dir: str | None = None,
        resume_from_huggingface_ckpt: str | None = None,
        aoa_config: str | None = None,
        save_hf_total_limit: str | None = None,
        flex_ckpt_comm_method: str | None = None,
        ordered_save_group_size: int = 0,
        flash_device_save_steps: int = 0,
        optim_shard_num: int = 1,
        save_hf_steps: int = -1,
        zcc_workers_num: int = 3,
        save_hf_memory_growth_threshold: int = 8,
        zcc_pipeline_hooks_capacity_usage: float = 0.6,
        pdc_download_timeout: int = 300,
        ckpt_quant_stage: str = "O0",
        save_to_hf: bool = False,
        convert_from_hf: bool = True,
        zcc_save_ema_coef: str | None = None,
        zcc_ema_loss_threshold: str | None = None,
        zcc_ema_interval: int = 1,
        online_merge_ema: bool = True,
        num_nextn_predict_layers: int = 0,
        mtp_num_layers: int = 0,
        pad_token_id: int = 0,
        train_mtp_only: bool = False,
        mtp_distillation_loss: bool = False,
        using_sonic_moe: bool = False,
        offload_fp8_expert_master_weight: bool = True,
        moe_router_bias_update_rate: float = 0.0,
        dsa_indexer_loss_coeff: float = 0.01,
        fa_version: str | None = None,
        hybrid_parallel_expert_grad_scale: str | None = None,
        muon_qkv_update_mode: str = "split_head",
        muon_ffn_split: bool = True,
        muon_extra_scale_factor: float = 0.2,
        muon_momentum: float = 0.95,
        muon_version: int = 3,
        muon_ns_steps: int = 5,
        muon_ns_coeff_type: str = "quintic",
        muon_ns_coeffs: str | None = None,
        recompute_method: str | None = None,
        recompute_modules: str | None = None,
        recompute_num_layers: str | None = None,
        recompute_mtp_granularity: str | None = None,
        recompute_mtp_method: str | None = None,
        recompute_mtp_modules: str | None = None,
        use_lowprecision_moment: bool = False,
        tensorwise_offload_optimizer: bool = False,
        release_grads: bool = False,
        pre_alloc_memory: int = 0,
        muon_exclude_patterns: list[str] | None = None,
        min_lr: float = 0.0,
        freeze_training: bool = False,
        skip_data_intervals: str | None = None,
        prefetch_factor: int = 2,
        wandb_http_proxy: str | None = None,
        count_trained_tokens: bool = False,
        profile_step_start: int = 10,
        profile_step_end: int = 12,
    ) -> None:
        """Arguments are passed by name, in any spelling.

        Args:
            output_dir: Directory for checkpoints, logs and results. A Trainer without arguments uses tmp_trainer. A URL such as s3://bucket/run becomes output_url, and output_dir a local directory in the cache of the user.
            output_url: Object storage, as a URL that fsspec can open: the contents of output_dir are uploaded there, and a run is resumed from there.
            overwrite_output_dir: For your script: start a new run in a directory with checkpoints. The Trainer itself deletes nothing; a new run in a directory with checkpoints logs a warning.
            do_train: For your script: whether to train.
            do_eval: For your script: whether to evaluate. True if eval_strategy is not 'no'.
            do_predict: For your script: whether to predict on the test set.
            do_export: For your script: whether to export the trained model.
            resume_from_checkpoint: Path of a checkpoint, or True or latest for the newest one; the default of train(). True without a checkpoint starts from scratch and logs it.
            seed: Random seed of the model and of dropout.
            data_seed: Random seed of the data order.
            full_determinism: Use the framework's deterministic algorithms: two runs are bit-identical.
            run_name: Name of the run in the writers.
            device_spec: Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.
            debug: underflow_overflow: report the layer and step of the first non-finite value.
            profile: Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. Writes a trace and a table of operators to output_dir/profile.
            trace_steps: Steps to record for `oneloop diff`, counted from 0, such as 0-2: digests of what every layer computes, of gradients, updates and optimizer state, in output_dir/trace.
            verify_steps: Compute the gradients of every N-th update twice and compare their bytes: finds layers that are not deterministic, and hardware that computes wrongly. 0: off.
            verify_action: If the gradients differ (verify_steps): stop before the update, or warn. Both record an event.
            replay_overrides: Overridden methods that may be called again where an update is computed more than once (trace_steps, verify_steps): training_step, compute_loss. Name those whose side effects may be doubled, or that have none.
            log_level: Log level of the main process; passive keeps the application's level.
            log_level_replica: Log level of the other processes.
            log_on_each_node: With several machines: log on each machine instead of only the first.
            disable_tqdm: Disable progress bars.
            skip_memory_metrics: False adds peak memory to the metrics.
            past_index: Index of the model output to pass as `mems` to the next step; -1: off.
            per_device_train_batch_size: Training batch size per device (samples per micro-batch).
            per_device_eval_batch_size: Evaluation batch size per device.
            gradient_accumulation_steps: Micro-batches per optimizer update; the update equals that of the undivided batch.
            average_tokens_across_devices: With several processes: weight each process's loss by its number of labelled tokens.
            dataloader_drop_last: Drop the last batch of an epoch if it is incomplete.
            dataloader_num_workers: DataLoader worker processes; 0 loads in the main process.
            dataloader_pin_memory: Pin host memory for faster copies to an accelerator; MindSpore does its own copying.
            dataloader_persistent_workers: Keep the DataLoader workers alive between epochs.
            dataloader_prefetch_factor: Batches that each DataLoader worker prefetches.
            dataloader_multiprocessing_context: Start method of the DataLoader workers.
            dataloader_in_order: False yields batches as soon as any worker has one ready, in no fixed order.
            remove_unused_columns: Drop columns that the model's forward does not accept; their names are logged.
            label_names: Names of the label columns.
            train_sampling_strategy: Order of the training data; group_by_length batches samples of similar length, batch_rebalance divides those of each update into micro-batches of about equal cost.
            data_order: The order of shuffled data: oneloop's, or that of transformers' Trainer with the same seeds, which also draws the random numbers of dropout in its order.
            length_column_name: Column with each sample's length, for group_by_length, batch_rebalance and max_tokens_per_batch; lengths are computed if it is missing.
            max_tokens_per_batch: A training micro-batch has as many samples of similar length as fit into this many tokens, padding included, instead of per_device_train_batch_size samples. Trainer.batch_cost may count something else than tokens.
            packing: Lay documents (token ids in `input_ids`) into rows of max_length tokens, kept apart from each other: end_to_end (True) cuts them where a row is full, best_fit only those longer than a row. wrapped is end_to_end for documents that may attend to each other: a row is like one document.
            max_length: Tokens in a row of packed documents.
            eval_packing: Whether evaluations pack as well; False gives each document a row of its own.
            seed_each_sample: Seed the dataset's random numbers by sample and epoch, so that they do not depend on the number of processes and workers. Costs one reseeding per sample, and samples are fetched one by one.
            stream_sharding: On several processes, what each reads of a stream: all of it, keeping its samples, so that the order is the same for any number of processes; or its own shards (files) only.
            mixture_weights: For a train_dataset that is a dict of datasets: the proportion of each, such as wiki=0.7,code=0.3, a dict or JSON, or a list of [step, weights]. None: by size.
            mixture_temperature: For weights by size: the sizes to the power of 1 / temperature; above 1, small datasets get more.
            mixture_stop: When an epoch of a mixture ends: first_exhausted, all_exhausted, or a number of samples.
            mixture_metrics: What is logged of each dataset of a Mixture: its loss and tokens, its tokens only, or nothing. Losses cost a second cross entropy of the logits, without gradients.
            ignore_data_skip: On resume, start the data at the beginning of the epoch.
            auto_find_batch_size: On out-of-memory: retry with a smaller micro-batch and more accumulation, same global batch.
            learning_rate: Peak learning rate.
            weight_decay: Weight decay; not applied to biases and normalization weights.
            adam_beta1: Beta1 of AdamW.
            adam_beta2: Beta2 of AdamW.
            adam_epsilon: Epsilon of AdamW.
            max_grad_norm: Maximum gradient norm, for clipping; 0 disables clipping. The norm is logged.
            optim: The optimizer. All spellings of AdamW select the same AdamW, except adamw_anyprecision. muon is Muon for matrices of hidden layers and AdamW for the rest. If an optimizer needs a package, the error message names it.
            optim_args: Additional options of the optimizer: "key=value,key=value".
            optim_target_modules: For GaLore, APOLLO and Muon: the modules to optimize with it. Required by the first two; by default, Muon updates all matrices except embeddings and the head.
            lr_scheduler_type: Learning rate schedule.
            lr_scheduler_kwargs: Additional options of the schedule, as a dict or JSON.
            warmup_steps: Steps of linear warmup from 0; a value below 1 is a ratio of all steps.
            warmup_ratio: Warmup as a ratio of all steps; overridden by warmup_steps. None is 0.
            cooldown_steps: Branch a run: from the checkpoint in resume_from_checkpoint on, decay the learning rate from its value there to 0 within this number of steps, which end the run.
            cooldown_type: Shape of the decay of cooldown_steps.
            num_train_epochs: Number of epochs; may be fractional.
            max_steps: Total number of optimizer updates; overrides num_train_epochs. -1: off.
            ema_decay: Keep an exponential moving average (EMA) of the weights with this decay, such as 0.999; in checkpoints it is average.safetensors.
            swa_start: Keep the mean of the weights from this step on (stochastic weight averaging, SWA); a value below 1 is a ratio of all steps.
            averaging_steps: Steps between two updates of the average (EMA or SWA) of the weights.
            eval_with_average: Evaluate and predict with the average (EMA or SWA) of the weights.
            save_average: Write the average (EMA or SWA) of the weights in save_model, export and pushes to the Hub. Checkpoints always have both.
            label_smoothing_factor: Label smoothing: spread this fraction over all classes.
            chunked_loss: Compute the loss of a language model from its hidden states and its head in chunks: whole logits never exist. None: where those of a micro-batch would take more than 256 MB, and the model does nothing else with them.
            chunked_loss_layer: The name of the layer that computes the logits, for chunked_loss with a model that has no method get_output_embeddings.
            neftune_noise_alpha: Alpha of NEFTune embedding noise.
            fp16: Mixed precision with float16 and loss scaling.
            bf16: Mixed precision with bfloat16.
            fp16_opt_level: For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.
            half_precision_backend: Mixed-precision implementation.
            scale_loss: Initial loss scale for fp16; steps that overflow are skipped and counted.
            bf16_full_eval: Evaluate with bfloat16 weights.
            fp16_full_eval: Evaluate with float16 weights.
            tf32: TF32 matrix multiplication on GPUs that support it.
            gradient_checkpointing: Recompute activations in the backward pass: same losses, less memory.
            gradient_checkpointing_kwargs: Additional options of gradient_checkpointing, as a dict or JSON.
            torch_compile: Compile the model with the framework's graph compiler. Enabled by a backend or a mode.
            torch_compile_backend: Compiler backend; enables torch_compile.
            torch_compile_mode: Compiler mode; enables torch_compile.
            jit_mode_eval: Evaluate with the compiled graph.
            use_ipex: Intel Extension for PyTorch.
            use_liger_kernel: Liger kernels for transformers models.
            liger_kernel_config: Which Liger kernels to use, as a dict or JSON.
            use_cache: Keep the model's key-value cache enabled during training.
            torch_empty_cache_steps: Empty the accelerator's memory cache every this many steps.
            eval_strategy: When to evaluate during training.
            eval_steps: Steps between evaluations; a value below 1 is a ratio of all steps.
            eval_delay: Epochs or steps (by eval_strategy) before the first evaluation.
            eval_on_start: Evaluate once before the first step.
            eval_accumulation_steps: Prediction steps to accumulate on the device before moving outputs to the host.
            eval_do_concat_batches: False passes the outputs to compute_metrics as a list of batches.
            eval_use_gather_object: No effect: outputs that are not tensors are always gathered from all processes.
            minimum_eval_times: Lower eval_steps so that there are at least this many evaluations; -1 or 0: off.
            prediction_loss_only: Return only the loss, no outputs.
            include_for_metrics: Extra inputs of compute_metrics: inputs, loss.
            batch_eval_metrics: Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept.
            load_best_model_at_end: Load the best model at the end of training, with any save_strategy.
            metric_for_best_model: Metric used to compare models.
            greater_is_better: Whether a greater metric_for_best_model is better.
            logging_dir: Directory for the writers' files.
            logging_strategy: When to log.
            logging_steps: Steps between logs; a value below 1 is a ratio of all steps.
            logging_first_step: Also log the first step and, except in transformers scripts, evaluate it with eval_strategy='steps'.
            logging_nan_inf_filter: Exclude non-finite losses from the logged average (only).
            nonfinite: What to do about a non-finite loss or gradient: stop the run, skip the update, or nothing.
            nonfinite_limit: Updates in a row that nonfinite='skip' may skip before the run is stopped; 0: any number.
            loss_spike: What to do about a loss or gradient norm far above those of recent steps: nothing; warn; or return to the last checkpoint and skip the samples of the spike.
            loss_spike_threshold: With loss_spike: the number of robust standard deviations above the median from which a value is a spike.
            loss_spike_window: With loss_spike: the number of recent steps that a value is compared with. Before that, none is a spike.
            loss_spike_skip_steps: With loss_spike='rollback': steps whose samples are skipped: the spike and those before it.
            loss_spike_limit: With loss_spike='rollback': returns since the last checkpoint on schedule before the run is stopped.
            report_to: Writers that receive the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all: every one that needs no account; none. A service with accounts has to be named.
            include_num_input_tokens_seen: Count the input tokens seen.
            include_tokens_per_second: Report tokens per second in the speed metrics.
            log_throughput: Add to the logs: tokens per second, those without padding (if include_num_input_tokens_seen is non_padding), MFU, and the share of the time spent waiting for data. The report page has them anyway.
            device_peak_flops: Peak floating-point operations per second of one device, for the model FLOPs utilization (MFU). By default known for some GPUs in half precision.
            project: Project name, for writers that have projects.
            trackio_space_id: Space that trackio writes to.
            trackio_bucket_id: Bucket that trackio writes to.
            trackio_static_space_id: Read-only space that trackio creates at the end; False: none.
            save_strategy: When to save a checkpoint.
            save_steps: Steps between checkpoints; a value below 1 is a ratio of all steps.
            save_total_limit: Maximum number of checkpoints to keep, including the best; with 1, the newest and the best.
            save_interval_minutes: Also save when the last checkpoint is this many minutes old.
            snapshot_steps: Steps between snapshots: checkpoints in the memory of the machine, of which the newest is kept. A run whose processes were killed is resumed from it.
            snapshot_dir: With snapshot_steps: a directory in memory.
            save_async: Write checkpoints in the background during training.
            save_on_each_node: With several machines: save on each machine instead of only the first.
            save_only_model: Save checkpoints without optimizer, scheduler and RNG state; no exact resume.
            save_safetensors: Save weights as safetensors, the only format written.
            restore_callback_states_from_checkpoint: On resume, restore the callbacks' state from the checkpoint.
            preemption_signals: Signals on which a run finishes its step, saves and stops; SIGUSR1 and others can be added, [] disables it.
            enable_jit_checkpoint: True: adds SIGTERM to preemption_signals, where it is by default.
            push_to_hub: Push the model to the Hub each time it is saved.
            hub_model_id: With push_to_hub: the repository.
            hub_strategy: With push_to_hub: what to push, and when.
            hub_token: With push_to_hub: the token. It is never written to a file or log.
            hub_private_repo: With push_to_hub: make a new repository private or public. By default, as its owner's settings say.
            hub_always_push: With push_to_hub: push even if the previous push has not finished.
            hub_revision: With push_to_hub: the branch to push to.
            local_rank: Rank of this process on its machine.
            sharding: What is partitioned across processes: stage1 optimizer state, stage2 also gradients, stage3 also parameters; optionally offload, auto_wrap.
            sharding_degree: Number of processes in a sharding group; -1: all.
            tensor_parallel_size: Number of processes that divide the weights of each layer (tensor parallelism).
            tensor_parallel_plan: Which layers are divided, and how: names with * for any part, and colwise, rowwise, ...; a dict, JSON, or a JSON file. transformers models have one.
            sequence_parallel_size: Number of processes that divide each sequence of a batch.
            expert_parallel_size: Number of processes that divide the experts of a model.
            fsdp_config: Additional sharding options, as a dict, JSON, or a JSON file.
            deepspeed: DeepSpeed configuration: a path or a dict.
            accelerator_config: Options of accelerate, as a dict, JSON, or a JSON file. Reads back as an AcceleratorConfig.
            parallelism_config: accelerate's ParallelismConfig, or a dict of its sizes (dp_replicate_size, dp_shard_size, tp_size, cp_size, sp_size), which set the arguments for these axes.
            world_invariant: Train with the same bits on any number of processes: an update keeps its micro-batches, each draws random numbers of its own, and gradients are added up in a fixed order.
            ddp_find_unused_parameters: Detect parameters that a step does not use.
            ddp_bucket_cap_mb: Gradient bucket size in megabytes.
            ddp_broadcast_buffers: Broadcast buffers to all processes.
            ddp_static_graph: Assume that every step uses the same parameters.
            ddp_timeout: Timeout of collectives in seconds.
            ddp_backend: Communication backend: gloo, nccl, mpi, ccl, ...
            tpu_num_cores: Number of TPU cores.
            mp_parameters: SageMaker model parallelism.
            use_legacy_prediction_loop: The evaluation loop of early transformers releases.
            ray_scope: Which result of a trial Ray Tune compares.
            sortish_sampler: Training data sorted by length within shuffled chunks.
            predict_with_generate: Evaluate and predict with generate(), for metrics such as BLEU.
            generation_max_length: With predict_with_generate: maximum length of the output.
            generation_num_beams: With predict_with_generate: number of beams.
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
            sharding_parallel_size: The same as sharding_degree.
            xpu_backend: The same as ddp_backend.
            device: Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.
            use_cpu: True sets device="cpu".
            no_cuda: True sets device="cpu".
            use_mps_device: True sets device="mps".
            adafactor: True sets optim="adafactor".
            group_by_length: True sets train_sampling_strategy="group_by_length".
            dataloader_shuffle: False: train_sampling_strategy="sequential".
            deterministic_mode: True sets full_determinism=True.
            recompute_granularity: "full": gradient_checkpointing=True.
            tensor_parallel_degree: The same as tensor_parallel_size; -1 is ignored.
            tensor_model_parallel_size: The same as tensor_parallel_size; -1 is ignored.
            sep_parallel_degree: The same as sequence_parallel_size; -1 is ignored.
            sep_parallel_size: The same as sequence_parallel_size; -1 is ignored.
            context_parallel_size: The same as sequence_parallel_size; -1 is ignored.
            expert_model_parallel_size: The same as expert_parallel_size; -1 is ignored.
            include_inputs_for_metrics: True adds it to include_for_metrics.
            tpu_metrics_debug: True adds it to debug.
            fsdp: full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; optionally offload, auto_wrap.
            sharded_ddp: simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; optionally offload, auto_wrap.
            fsdp_min_num_params: fsdp_config's min_num_params.
            fsdp_transformer_layer_cls_to_wrap: fsdp_config's transformer_layer_cls_to_wrap.
            num_cycles: lr_scheduler_kwargs's num_cycles.
            lr_end: lr_scheduler_kwargs's lr_end.
            power: lr_scheduler_kwargs's power.
            push_to_hub_organization: The owner (organization) in hub_model_id.
            _n_gpu: -1: the number of devices is detected; select one with device.
            amp_custom_black_list: None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward.
            amp_custom_white_list: None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward.
            amp_master_grad: False: gradients have the dtype of their weights; fp16_opt_level='O1' keeps both in float32.
            data_parallel_config: "": Paddle's data-parallel options are not supported.
            data_parallel_degree: -1 or this run's value: it is the number of processes that were launched.
            distributed_dataloader: False: each process loads its own batches.
            enable_auto_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            flatten_param_grads: False: gradients are not flattened.
            force_reshard_pp: False: a checkpoint holds the full model, independent of the number of processes.
            hybrid_parallel_topo_order: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            ignore_load_lr_and_optim: False: load the weights yourself and start a new run.
            ignore_save_lr_and_optim: False: use save_only_model=True.
            lazy_data_processing: True: samples are read on access.
            load_sharded_model: False: a checkpoint holds the full model, independent of the number of processes.
            max_evaluate_steps: -1: an evaluation uses the whole dataset; pass a smaller eval_dataset.
            metrics_output_path: None: save_metrics() writes into output_dir.
            pipeline_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pipeline_parallel_degree: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            save_sharded_model: False: a checkpoint holds the full model, independent of the number of processes.
            sharding_parallel_config: "": there are no further sharding options on Paddle.
            skip_profile_timer: True: logs include steps_per_second; use profile=True for details.
            tensor_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            unified_checkpoint: True or False: a checkpoint holds the full model, independent of the number of processes.
            unified_checkpoint_config: "": a checkpoint holds the full model, independent of the number of processes.
            use_expert_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_hybrid_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            wandb_api_key: None: arguments are written to files, so they must not contain keys; set WANDB_API_KEY instead.
            pipeline_model_parallel_size: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            expert_tensor_model_parallel_size: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sequence_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            fuse_sequence_parallel_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            auto_parallel_resume_form_hybrid_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            reorder_pipeline_priority: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_intermediate_api: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sharding_comm_overlap: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_async_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sp_async_reduce_scatter: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            overlap_p2p_comm: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            variable_seq_lengths: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sp_allreduce_avg_in_gradinent_scale: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_async_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_skip_c_identity: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_fused_linear_param_grad_add: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sync_param: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_sync_param: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sync_grad: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_sync_moment: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sync_moment: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            replace_with_c_embedding: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            replace_with_parallel_cross_entropy: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_release_grads: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            clear_every_step_cache: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            non_batch_p2p_comm: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            auto_parallel_sync_shared_params: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            best_unbalanced_scheduler: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            offload_queue: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_dualpipev: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            forward_backward_overlap_scheduler: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            send_recv_overlap: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            split_backward: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            timer: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            split_inputs_sequence_dim: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            batch_p2p_comm: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_delay_scale_loss: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            p2p_cache_shape: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            partial_send_recv: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sequence_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            cp_balance_mode: dualchunk_allgather: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            cp_comm_type: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            nccl_comm_group_config: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sharding_comm_group_call_opt: False: there are no further sharding options on Paddle.
            split_norm_comm: False: there are no further sharding options on Paddle.
            stage1_tensor_fusion: False: there are no further sharding options on Paddle.
            tensor_fusion: False: there are no further sharding options on Paddle.
            stage1_overlap: False: there are no further sharding options on Paddle.
            stage2_overlap: False: there are no further sharding options on Paddle.
            stage1_broadcast_overlap: False: there are no further sharding options on Paddle.
            stage1_allgather_overlap: False: there are no further sharding options on Paddle.
            fuse_optimizer_states: False: there are no further sharding options on Paddle.
            sd_release_grads: False: there are no further sharding options on Paddle.
            sd_sharding_comm_overlap: False: there are no further sharding options on Paddle.
            sd_shardingv1_comm_overlap: False: there are no further sharding options on Paddle.
            overlap: False: there are no further sharding options on Paddle.
            stage1_reduce_avg: True: there are no further sharding options on Paddle.
            split_param: True: there are no further sharding options on Paddle.
            sharding_comm_buffer_size_MB: -1: there are no further sharding options on Paddle.
            sharding_offload_opt_buffersize_GB: -1: there are no further sharding options on Paddle.
            sharding_parallel_mesh_dimension: dp: there are no further sharding options on Paddle.
            dp_comm_overlap: False: gradients are exchanged once per update, in its last micro-batch.
            dp_allreduce_avg_in_gradinent_scale: False: gradients are exchanged once per update, in its last micro-batch.
            gradient_sync_after_accumulate: True or False: gradients are exchanged once per update, in its last micro-batch.
            save_checkpoint_format: flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background.
            load_checkpoint_format: flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background.
            use_async_save: True or False: checkpoints are oneloop's own: whole, and written in the background.
            load_via_cpu: True or False: checkpoints are oneloop's own: whole, and written in the background.
            save_rng_states: True: checkpoints are oneloop's own: whole, and written in the background.
            save_tokenizer: True: checkpoints are oneloop's own: whole, and written in the background.
            load_sharded_model_remap_parameter_name: False: checkpoints are oneloop's own: whole, and written in the background.
            sharded_model_from_ema: False: checkpoints are oneloop's own: whole, and written in the background.
            pdc_download_ckpt: False: checkpoints are oneloop's own: whole, and written in the background.
            load_from_hf: False: checkpoints are oneloop's own: whole, and written in the background.
            save_sharding_stage1_model_include_freeze_params: False: checkpoints are oneloop's own: whole, and written in the background.
            enable_zero_cost_checkpoint: False: checkpoints are oneloop's own: whole, and written in the background.
            replicate_saved_into_local: False: checkpoints are oneloop's own: whole, and written in the background.
            save_last_step: False: checkpoints are oneloop's own: whole, and written in the background.
            output_signal_dir: None: checkpoints are oneloop's own: whole, and written in the background.
            resume_from_huggingface_ckpt: None: checkpoints are oneloop's own: whole, and written in the background.
            aoa_config: None: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_total_limit: None: checkpoints are oneloop's own: whole, and written in the background.
            flex_ckpt_comm_method: None: checkpoints are oneloop's own: whole, and written in the background.
            ordered_save_group_size: 0: checkpoints are oneloop's own: whole, and written in the background.
            flash_device_save_steps: 0: checkpoints are oneloop's own: whole, and written in the background.
            optim_shard_num: 1: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_steps: -1: checkpoints are oneloop's own: whole, and written in the background.
            zcc_workers_num: 3: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_memory_growth_threshold: 8: checkpoints are oneloop's own: whole, and written in the background.
            zcc_pipeline_hooks_capacity_usage: 0.6: checkpoints are oneloop's own: whole, and written in the background.
            pdc_download_timeout: 300: checkpoints are oneloop's own: whole, and written in the background.
            ckpt_quant_stage: O0: checkpoints are oneloop's own: whole, and written in the background.
            save_to_hf: False: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects.
            convert_from_hf: True: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects.
            zcc_save_ema_coef: None: for an average of the weights, use ema_decay with averaging_steps.
            zcc_ema_loss_threshold: None: for an average of the weights, use ema_decay with averaging_steps.
            zcc_ema_interval: 1: for an average of the weights, use ema_decay with averaging_steps.
            online_merge_ema: True: for an average of the weights, use ema_decay with averaging_steps.
            num_nextn_predict_layers: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            mtp_num_layers: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            pad_token_id: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            train_mtp_only: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            mtp_distillation_loss: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            using_sonic_moe: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            offload_fp8_expert_master_weight: True: it is an option of PaddleFormers' models; set it in the model's configuration.
            moe_router_bias_update_rate: 0.0: it is an option of PaddleFormers' models; set it in the model's configuration.
            dsa_indexer_loss_coeff: 0.01: it is an option of PaddleFormers' models; set it in the model's configuration.
            fa_version: None: it is an option of PaddleFormers' models; set it in the model's configuration.
            hybrid_parallel_expert_grad_scale: None: it is an option of PaddleFormers' models; set it in the model's configuration.
            muon_qkv_update_mode: split_head: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ffn_split: True: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_extra_scale_factor: 0.2: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_momentum: 0.95: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_version: 3: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_steps: 5: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_coeff_type: quintic: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_coeffs: None: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            recompute_method: None: recompute=True recomputes every block.
            recompute_modules: None: recompute=True recomputes every block.
            recompute_num_layers: None: recompute=True recomputes every block.
            recompute_mtp_granularity: None: recompute=True recomputes every block.
            recompute_mtp_method: None: recompute=True recomputes every block.
            recompute_mtp_modules: None: recompute=True recomputes every block.
            use_lowprecision_moment: False: memory of the optimizer is not tuned; use sharding to partition its state.
            tensorwise_offload_optimizer: False: memory of the optimizer is not tuned; use sharding to partition its state.
            release_grads: False: memory of the optimizer is not tuned; use sharding to partition its state.
            pre_alloc_memory: 0: memory of the optimizer is not tuned; use sharding to partition its state.
            muon_exclude_patterns: None or ['embed', 'bias', 'lm_head', 'mlp.gate']: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            min_lr: 0.0: use lr_scheduler_type='cosine_with_min_lr' with lr_scheduler_kwargs={'min_lr': ...}.
            freeze_training: False: a run without updates is an evaluation; call evaluate().
            skip_data_intervals: None: no samples are skipped; pass a dataset without them.
            prefetch_factor: 2: use dataloader_prefetch_factor.
            wandb_http_proxy: None: set HTTPS_PROXY in the environment instead.
            count_trained_tokens: False: use include_num_input_tokens_seen.
            profile_step_start: 10: use profile=True.
            profile_step_end: 12: use profile=True.
        """

@dataclass(init=False, kw_only=True)
class CompressionFields(ArgumentFields):
    warmup_ratio: float | None = ...
    """Warmup as a ratio of all steps; overridden by warmup_steps. None is 0."""
    logging_steps: float = ...
    """Steps between logs; a value below 1 is a ratio of all steps."""
    save_steps: float = ...
    """Steps between checkpoints; a value below 1 is a ratio of all steps."""
    do_compress: bool = ...
    """PaddleNLP: compress the model. Not supported."""
    strategy: str | None = ...
    """PaddleNLP: used only for model compression."""
    input_dtype: str | None = ...
    """PaddleNLP: used only for model compression."""
    prune_embeddings: bool = ...
    """PaddleNLP: used only for model compression."""
    onnx_format: bool | None = ...
    """PaddleNLP: used only for model compression."""
    width_mult_list: list[str] | None = ...
    """PaddleNLP: used only for model compression."""
    weight_quantize_type: str | None = ...
    """PaddleNLP: used only for model compression."""
    activation_quantize_type: str | None = ...
    """PaddleNLP: used only for model compression."""
    algo_list: list[str] | None = ...
    """PaddleNLP: used only for model compression."""
    batch_num_list: list[int] | None = ...
    """PaddleNLP: used only for model compression."""
    batch_size_list: list[int] | None = ...
    """PaddleNLP: used only for model compression."""
    round_type: str | None = ...
    """PaddleNLP: used only for model compression."""
    bias_correction: bool | None = ...
    """PaddleNLP: used only for model compression."""
    input_infer_model_path: str | None = ...
    """PaddleNLP: used only for model compression."""
    use_pact: bool | None = ...
    """PaddleNLP: used only for model compression."""
    moving_rate: float | None = ...
    """PaddleNLP: used only for model compression."""

    def __init__(
        self,
        output_dir: Text | None = None,
        *,
        output_url: Text | None = None,
        overwrite_output_dir: bool = False,
        do_train: bool = False,
        do_eval: bool = False,
        do_predict: bool = False,
        do_export: bool = False,
        resume_from_checkpoint: bool | Text | None = None,
        seed: Integer = 42,
        data_seed: Integer | None = None,
        full_determinism: bool = False,
        run_name: Text | None = None,
        device_spec: object | None = None,
        debug: Words | None = "",
        profile: bool | int | str | None = "",
        trace_steps: int | str | None = "",
        verify_steps: Integer = 0,
        verify_action: Literal["stop", "warn"] = "stop",
        replay_overrides: Words | None = ...,
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] | None = "passive",
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] | None = "warning",
        log_on_each_node: bool = True,
        disable_tqdm: bool | None = None,
        skip_memory_metrics: bool = True,
        past_index: Integer = -1,
        per_device_train_batch_size: Integer = 8,
        per_device_eval_batch_size: Integer = 8,
        gradient_accumulation_steps: Integer = 1,
        average_tokens_across_devices: bool = True,
        dataloader_drop_last: bool = False,
        dataloader_num_workers: Integer = 0,
        dataloader_pin_memory: bool = True,
        dataloader_persistent_workers: bool = False,
        dataloader_prefetch_factor: Integer | None = None,
        dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None,
        dataloader_in_order: bool = True,
        remove_unused_columns: bool | None = True,
        label_names: Words | None = None,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = "random",
        data_order: Literal["oneloop", "transformers"] = "oneloop",
        length_column_name: Text | None = "length",
        max_tokens_per_batch: Integer | None = None,
        packing: bool | Text = False,
        max_length: Integer | None = None,
        eval_packing: bool | None = None,
        seed_each_sample: bool = False,
        stream_sharding: Literal["samples", "shards"] = "samples",
        mixture_weights: Any = None,
        mixture_temperature: Number = 1.0,
        mixture_stop: Any = "first_exhausted",
        mixture_metrics: Literal["loss", "tokens", "no"] = "loss",
        ignore_data_skip: bool = False,
        auto_find_batch_size: bool = False,
        learning_rate: Number = 5e-05,
        weight_decay: Number = 0.0,
        adam_beta1: Number = 0.9,
        adam_beta2: Number = 0.999,
        adam_epsilon: Number = 1e-08,
        max_grad_norm: Number = 1.0,
        optim: OptimizerNames | OptimizerNamesValue = "adamw_torch",
        optim_args: Mapping[str, Any] | Text | None = None,
        optim_target_modules: Words | None = None,
        lr_scheduler_type: SchedulerType | Literal["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"] = "linear",
        lr_scheduler_kwargs: JsonDict | None = None,
        warmup_steps: Number = 0,
        warmup_ratio: Number | None = 0.1,
        cooldown_steps: Integer | None = None,
        cooldown_type: Literal["linear", "cosine", "1-sqrt"] = "1-sqrt",
        num_train_epochs: Number = 3.0,
        max_steps: Integer = -1,
        ema_decay: Number | None = None,
        swa_start: Number | None = None,
        averaging_steps: Integer = 1,
        eval_with_average: bool = False,
        save_average: bool = False,
        label_smoothing_factor: Number = 0.0,
        chunked_loss: bool | None = None,
        chunked_loss_layer: Text | None = None,
        neftune_noise_alpha: Number | None = None,
        fp16: bool = False,
        bf16: bool = False,
        fp16_opt_level: Literal["O0", "O1", "O2", "O3"] = "O1",
        half_precision_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] = "auto",
        scale_loss: Number = 32768.0,
        bf16_full_eval: bool = False,
        fp16_full_eval: bool = False,
        tf32: bool | None = None,
        gradient_checkpointing: bool = False,
        gradient_checkpointing_kwargs: JsonDict | None = None,
        torch_compile: bool = False,
        torch_compile_backend: Text | None = None,
        torch_compile_mode: Text | None = None,
        jit_mode_eval: bool = False,
        use_ipex: bool = False,
        use_liger_kernel: bool = False,
        liger_kernel_config: JsonDict | None = None,
        use_cache: bool = False,
        torch_empty_cache_steps: Integer | None = None,
        eval_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] = "no",
        eval_steps: Number | None = None,
        eval_delay: Number | None = 0,
        eval_on_start: bool = False,
        eval_accumulation_steps: Integer | None = None,
        eval_do_concat_batches: bool = True,
        eval_use_gather_object: bool = False,
        minimum_eval_times: Integer | None = None,
        prediction_loss_only: bool = False,
        include_for_metrics: Words | None = ...,
        batch_eval_metrics: bool = False,
        load_best_model_at_end: bool | None = False,
        metric_for_best_model: Text | None = None,
        greater_is_better: bool | None = None,
        logging_dir: Text | None = None,
        logging_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] = "steps",
        logging_steps: Number = 100,
        logging_first_step: bool = False,
        logging_nan_inf_filter: bool = False,
        nonfinite: Literal["stop", "skip", "ignore"] = "stop",
        nonfinite_limit: Integer = 100,
        loss_spike: Literal["off", "warn", "rollback"] = "off",
        loss_spike_threshold: Number = 10.0,
        loss_spike_window: Integer = 100,
        loss_spike_skip_steps: Integer = 1,
        loss_spike_limit: Integer = 3,
        report_to: Words | None = None,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = "no",
        include_tokens_per_second: bool = False,
        log_throughput: bool = False,
        device_peak_flops: Number | None = None,
        project: Text = "huggingface",
        trackio_space_id: Text | None = None,
        trackio_bucket_id: Text | None = None,
        trackio_static_space_id: Literal[False] | Text | None = None,
        save_strategy: SaveStrategy | Literal["no", "steps", "epoch", "best"] | Literal[False] = "steps",
        save_steps: Number = 100,
        save_total_limit: Integer | None = None,
        save_interval_minutes: Number | None = None,
        snapshot_steps: Integer | None = None,
        snapshot_dir: Text | None = None,
        save_async: bool = True,
        save_on_each_node: bool = False,
        save_only_model: bool = False,
        save_safetensors: bool = True,
        restore_callback_states_from_checkpoint: bool = False,
        preemption_signals: Words | None = ...,
        enable_jit_checkpoint: bool = False,
        push_to_hub: bool = False,
        hub_model_id: Text | None = None,
        hub_strategy: HubStrategy | Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "every_save",
        hub_token: Text | None = None,
        hub_private_repo: bool | None = None,
        hub_always_push: bool = False,
        hub_revision: Text | None = None,
        local_rank: Integer = -1,
        sharding: Words | None = "",
        sharding_degree: Integer = -1,
        tensor_parallel_size: Integer | None = 1,
        tensor_parallel_plan: Config | None = None,
        sequence_parallel_size: Integer | None = 1,
        expert_parallel_size: Integer | None = 1,
        fsdp_config: Config | None = None,
        deepspeed: dict[str, Any] | Text | None = None,
        accelerator_config: Config | None = None,
        parallelism_config: Any = None,
        world_invariant: bool = False,
        ddp_find_unused_parameters: bool | None = None,
        ddp_bucket_cap_mb: Integer | None = None,
        ddp_broadcast_buffers: bool | None = None,
        ddp_static_graph: bool | None = None,
        ddp_timeout: Integer | None = 1800,
        ddp_backend: Text | None = None,
        tpu_num_cores: Integer | None = None,
        mp_parameters: Text = "",
        use_legacy_prediction_loop: bool = False,
        ray_scope: Literal["last", "all", "avg", "last-5-avg", "last-10-avg"] | None = "last",
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
        dataset_drop_last: bool | None = None,
        dataset_num_workers: Integer | None = None,
        dataset_prefetch_factor: Integer | None = None,
        fp16_backend: Literal["auto", "cuda_amp", "apex", "cpu_amp"] | None = None,
        f16_full_eval: bool | None = None,
        recompute: bool | None = None,
        recompute_kwargs: JsonDict | None = None,
        to_static: bool | None = None,
        torchdynamo: Text | None = None,
        evaluation_strategy: IntervalStrategy | Literal["no", "steps", "epoch"] | Literal[False] | None = None,
        push_to_hub_model_id: Text | None = None,
        push_to_hub_token: Text | None = None,
        sharding_parallel_degree: Integer | None = None,
        sharding_parallel_size: Integer | None = None,
        xpu_backend: Text | None = None,
        device: object | None = None,
        use_cpu: bool | None = None,
        no_cuda: bool | None = None,
        use_mps_device: bool | None = None,
        adafactor: bool | None = None,
        group_by_length: bool | None = None,
        dataloader_shuffle: bool | None = None,
        deterministic_mode: bool | None = None,
        recompute_granularity: Text | None = None,
        tensor_parallel_degree: Integer | None = None,
        tensor_model_parallel_size: Integer | None = None,
        sep_parallel_degree: Integer | None = None,
        sep_parallel_size: Integer | None = None,
        context_parallel_size: Integer | None = None,
        expert_model_parallel_size: Integer | None = None,
        include_inputs_for_metrics: bool | None = None,
        tpu_metrics_debug: bool | None = None,
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
        sharding_parallel_config: str = "",
        skip_profile_timer: bool = True,
        tensor_parallel_config: str = "",
        unified_checkpoint: bool = True,
        unified_checkpoint_config: str = "",
        use_expert_parallel: bool = False,
        use_hybrid_parallel: bool = False,
        wandb_api_key: str | None = None,
        pipeline_model_parallel_size: int = 1,
        expert_tensor_model_parallel_size: int = 1,
        sequence_parallel: bool = False,
        fuse_sequence_parallel_allreduce: bool = False,
        auto_parallel_resume_form_hybrid_parallel: bool = False,
        reorder_pipeline_priority: bool = False,
        use_intermediate_api: bool = False,
        pp_sharding_comm_overlap: bool = False,
        tp_async_allreduce: bool = False,
        sp_async_reduce_scatter: bool = False,
        overlap_p2p_comm: bool = False,
        variable_seq_lengths: bool = False,
        sp_allreduce_avg_in_gradinent_scale: bool = False,
        mp_async_allreduce: bool = False,
        mp_skip_c_identity: bool = False,
        mp_fused_linear_param_grad_add: bool = False,
        pp_sync_param: bool = False,
        tp_sync_param: bool = False,
        sync_grad: bool = False,
        tp_sync_moment: bool = False,
        pp_sync_moment: bool = False,
        replace_with_c_embedding: bool = False,
        replace_with_parallel_cross_entropy: bool = False,
        pp_release_grads: bool = False,
        clear_every_step_cache: bool = False,
        non_batch_p2p_comm: bool = False,
        auto_parallel_sync_shared_params: bool = False,
        best_unbalanced_scheduler: bool = False,
        offload_queue: bool = False,
        use_dualpipev: bool = False,
        forward_backward_overlap_scheduler: bool = False,
        send_recv_overlap: bool = False,
        split_backward: bool = False,
        timer: bool = False,
        split_inputs_sequence_dim: bool = True,
        batch_p2p_comm: bool = True,
        pp_delay_scale_loss: bool = True,
        p2p_cache_shape: bool = True,
        partial_send_recv: bool = True,
        sequence_parallel_config: str = "",
        cp_balance_mode: str = "dualchunk_allgather",
        cp_comm_type: str | None = None,
        nccl_comm_group_config: str | None = None,
        sharding_comm_group_call_opt: bool = False,
        split_norm_comm: bool = False,
        stage1_tensor_fusion: bool = False,
        tensor_fusion: bool = False,
        stage1_overlap: bool = False,
        stage2_overlap: bool = False,
        stage1_broadcast_overlap: bool = False,
        stage1_allgather_overlap: bool = False,
        fuse_optimizer_states: bool = False,
        sd_release_grads: bool = False,
        sd_sharding_comm_overlap: bool = False,
        sd_shardingv1_comm_overlap: bool = False,
        overlap: bool = False,
        stage1_reduce_avg: bool = True,
        split_param: bool = True,
        sharding_comm_buffer_size_MB: int = -1,
        sharding_offload_opt_buffersize_GB: int = -1,
        sharding_parallel_mesh_dimension: str = "dp",
        dp_comm_overlap: bool = False,
        dp_allreduce_avg_in_gradinent_scale: bool = False,
        gradient_sync_after_accumulate: bool = True,
        save_checkpoint_format: str | None = "flex_checkpoint",
        load_checkpoint_format: str | None = "flex_checkpoint",
        use_async_save: bool = True,
        load_via_cpu: bool = True,
        save_rng_states: bool = True,
        save_tokenizer: bool = True,
        load_sharded_model_remap_parameter_name: bool = False,
        sharded_model_from_ema: bool = False,
        pdc_download_ckpt: bool = False,
        load_from_hf: bool = False,
        save_sharding_stage1_model_include_freeze_params: bool = False,
        enable_zero_cost_checkpoint: bool = False,
        replicate_saved_into_local: bool = False,
        save_last_step: bool = False,
        output_signal_dir: str | None = None,
        resume_from_huggingface_ckpt: str | None = None,
        aoa_config: str | None = None,
        save_hf_total_limit: str | None = None,
        flex_ckpt_comm_method: str | None = None,
        ordered_save_group_size: int = 0,
        flash_device_save_steps: int = 0,
        optim_shard_num: int = 1,
        save_hf_steps: int = -1,
        zcc_workers_num: int = 3,
        save_hf_memory_growth_threshold: int = 8,
        zcc_pipeline_hooks_capacity_usage: float = 0.6,
        pdc_download_timeout: int = 300,
        ckpt_quant_stage: str = "O0",
        save_to_hf: bool = False,
        convert_from_hf: bool = True,
        zcc_save_ema_coef: str | None = None,
        zcc_ema_loss_threshold: str | None = None,
        zcc_ema_interval: int = 1,
        online_merge_ema: bool = True,
        num_nextn_predict_layers: int = 0,
        mtp_num_layers: int = 0,
        pad_token_id: int = 0,
        train_mtp_only: bool = False,
        mtp_distillation_loss: bool = False,
        using_sonic_moe: bool = False,
        offload_fp8_expert_master_weight: bool = True,
        moe_router_bias_update_rate: float = 0.0,
        dsa_indexer_loss_coeff: float = 0.01,
        fa_version: str | None = None,
        hybrid_parallel_expert_grad_scale: str | None = None,
        muon_qkv_update_mode: str = "split_head",
        muon_ffn_split: bool = True,
        muon_extra_scale_factor: float = 0.2,
        muon_momentum: float = 0.95,
        muon_version: int = 3,
        muon_ns_steps: int = 5,
        muon_ns_coeff_type: str = "quintic",
        muon_ns_coeffs: str | None = None,
        recompute_method: str | None = None,
        recompute_modules: str | None = None,
        recompute_num_layers: str | None = None,
        recompute_mtp_granularity: str | None = None,
        recompute_mtp_method: str | None = None,
        recompute_mtp_modules: str | None = None,
        use_lowprecision_moment: bool = False,
        tensorwise_offload_optimizer: bool = False,
        release_grads: bool = False,
        pre_alloc_memory: int = 0,
        muon_exclude_patterns: list[str] | None = None,
        min_lr: float = 0.0,
        freeze_training: bool = False,
        skip_data_intervals: str | None = None,
        prefetch_factor: int = 2,
        wandb_http_proxy: str | None = None,
        count_trained_tokens: bool = False,
        profile_step_start: int = 10,
        profile_step_end: int = 12,
    ) -> None:
        """Arguments are passed by name, in any spelling.

        Args:
            output_dir: Directory for checkpoints, logs and results. A Trainer without arguments uses tmp_trainer. A URL such as s3://bucket/run becomes output_url, and output_dir a local directory in the cache of the user.
            output_url: Object storage, as a URL that fsspec can open: the contents of output_dir are uploaded there, and a run is resumed from there.
            overwrite_output_dir: For your script: start a new run in a directory with checkpoints. The Trainer itself deletes nothing; a new run in a directory with checkpoints logs a warning.
            do_train: For your script: whether to train.
            do_eval: For your script: whether to evaluate. True if eval_strategy is not 'no'.
            do_predict: For your script: whether to predict on the test set.
            do_export: For your script: whether to export the trained model.
            resume_from_checkpoint: Path of a checkpoint, or True or latest for the newest one; the default of train(). True without a checkpoint starts from scratch and logs it.
            seed: Random seed of the model and of dropout.
            data_seed: Random seed of the data order.
            full_determinism: Use the framework's deterministic algorithms: two runs are bit-identical.
            run_name: Name of the run in the writers.
            device_spec: Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.
            debug: underflow_overflow: report the layer and step of the first non-finite value.
            profile: Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. Writes a trace and a table of operators to output_dir/profile.
            trace_steps: Steps to record for `oneloop diff`, counted from 0, such as 0-2: digests of what every layer computes, of gradients, updates and optimizer state, in output_dir/trace.
            verify_steps: Compute the gradients of every N-th update twice and compare their bytes: finds layers that are not deterministic, and hardware that computes wrongly. 0: off.
            verify_action: If the gradients differ (verify_steps): stop before the update, or warn. Both record an event.
            replay_overrides: Overridden methods that may be called again where an update is computed more than once (trace_steps, verify_steps): training_step, compute_loss. Name those whose side effects may be doubled, or that have none.
            log_level: Log level of the main process; passive keeps the application's level.
            log_level_replica: Log level of the other processes.
            log_on_each_node: With several machines: log on each machine instead of only the first.
            disable_tqdm: Disable progress bars.
            skip_memory_metrics: False adds peak memory to the metrics.
            past_index: Index of the model output to pass as `mems` to the next step; -1: off.
            per_device_train_batch_size: Training batch size per device (samples per micro-batch).
            per_device_eval_batch_size: Evaluation batch size per device.
            gradient_accumulation_steps: Micro-batches per optimizer update; the update equals that of the undivided batch.
            average_tokens_across_devices: With several processes: weight each process's loss by its number of labelled tokens.
            dataloader_drop_last: Drop the last batch of an epoch if it is incomplete.
            dataloader_num_workers: DataLoader worker processes; 0 loads in the main process.
            dataloader_pin_memory: Pin host memory for faster copies to an accelerator; MindSpore does its own copying.
            dataloader_persistent_workers: Keep the DataLoader workers alive between epochs.
            dataloader_prefetch_factor: Batches that each DataLoader worker prefetches.
            dataloader_multiprocessing_context: Start method of the DataLoader workers.
            dataloader_in_order: False yields batches as soon as any worker has one ready, in no fixed order.
            remove_unused_columns: Drop columns that the model's forward does not accept; their names are logged.
            label_names: Names of the label columns.
            train_sampling_strategy: Order of the training data; group_by_length batches samples of similar length, batch_rebalance divides those of each update into micro-batches of about equal cost.
            data_order: The order of shuffled data: oneloop's, or that of transformers' Trainer with the same seeds, which also draws the random numbers of dropout in its order.
            length_column_name: Column with each sample's length, for group_by_length, batch_rebalance and max_tokens_per_batch; lengths are computed if it is missing.
            max_tokens_per_batch: A training micro-batch has as many samples of similar length as fit into this many tokens, padding included, instead of per_device_train_batch_size samples. Trainer.batch_cost may count something else than tokens.
            packing: Lay documents (token ids in `input_ids`) into rows of max_length tokens, kept apart from each other: end_to_end (True) cuts them where a row is full, best_fit only those longer than a row. wrapped is end_to_end for documents that may attend to each other: a row is like one document.
            max_length: Tokens in a row of packed documents.
            eval_packing: Whether evaluations pack as well; False gives each document a row of its own.
            seed_each_sample: Seed the dataset's random numbers by sample and epoch, so that they do not depend on the number of processes and workers. Costs one reseeding per sample, and samples are fetched one by one.
            stream_sharding: On several processes, what each reads of a stream: all of it, keeping its samples, so that the order is the same for any number of processes; or its own shards (files) only.
            mixture_weights: For a train_dataset that is a dict of datasets: the proportion of each, such as wiki=0.7,code=0.3, a dict or JSON, or a list of [step, weights]. None: by size.
            mixture_temperature: For weights by size: the sizes to the power of 1 / temperature; above 1, small datasets get more.
            mixture_stop: When an epoch of a mixture ends: first_exhausted, all_exhausted, or a number of samples.
            mixture_metrics: What is logged of each dataset of a Mixture: its loss and tokens, its tokens only, or nothing. Losses cost a second cross entropy of the logits, without gradients.
            ignore_data_skip: On resume, start the data at the beginning of the epoch.
            auto_find_batch_size: On out-of-memory: retry with a smaller micro-batch and more accumulation, same global batch.
            learning_rate: Peak learning rate.
            weight_decay: Weight decay; not applied to biases and normalization weights.
            adam_beta1: Beta1 of AdamW.
            adam_beta2: Beta2 of AdamW.
            adam_epsilon: Epsilon of AdamW.
            max_grad_norm: Maximum gradient norm, for clipping; 0 disables clipping. The norm is logged.
            optim: The optimizer. All spellings of AdamW select the same AdamW, except adamw_anyprecision. muon is Muon for matrices of hidden layers and AdamW for the rest. If an optimizer needs a package, the error message names it.
            optim_args: Additional options of the optimizer: "key=value,key=value".
            optim_target_modules: For GaLore, APOLLO and Muon: the modules to optimize with it. Required by the first two; by default, Muon updates all matrices except embeddings and the head.
            lr_scheduler_type: Learning rate schedule.
            lr_scheduler_kwargs: Additional options of the schedule, as a dict or JSON.
            warmup_steps: Steps of linear warmup from 0; a value below 1 is a ratio of all steps.
            warmup_ratio: Warmup as a ratio of all steps; overridden by warmup_steps. None is 0.
            cooldown_steps: Branch a run: from the checkpoint in resume_from_checkpoint on, decay the learning rate from its value there to 0 within this number of steps, which end the run.
            cooldown_type: Shape of the decay of cooldown_steps.
            num_train_epochs: Number of epochs; may be fractional.
            max_steps: Total number of optimizer updates; overrides num_train_epochs. -1: off.
            ema_decay: Keep an exponential moving average (EMA) of the weights with this decay, such as 0.999; in checkpoints it is average.safetensors.
            swa_start: Keep the mean of the weights from this step on (stochastic weight averaging, SWA); a value below 1 is a ratio of all steps.
            averaging_steps: Steps between two updates of the average (EMA or SWA) of the weights.
            eval_with_average: Evaluate and predict with the average (EMA or SWA) of the weights.
            save_average: Write the average (EMA or SWA) of the weights in save_model, export and pushes to the Hub. Checkpoints always have both.
            label_smoothing_factor: Label smoothing: spread this fraction over all classes.
            chunked_loss: Compute the loss of a language model from its hidden states and its head in chunks: whole logits never exist. None: where those of a micro-batch would take more than 256 MB, and the model does nothing else with them.
            chunked_loss_layer: The name of the layer that computes the logits, for chunked_loss with a model that has no method get_output_embeddings.
            neftune_noise_alpha: Alpha of NEFTune embedding noise.
            fp16: Mixed precision with float16 and loss scaling.
            bf16: Mixed precision with bfloat16.
            fp16_opt_level: For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.
            half_precision_backend: Mixed-precision implementation.
            scale_loss: Initial loss scale for fp16; steps that overflow are skipped and counted.
            bf16_full_eval: Evaluate with bfloat16 weights.
            fp16_full_eval: Evaluate with float16 weights.
            tf32: TF32 matrix multiplication on GPUs that support it.
            gradient_checkpointing: Recompute activations in the backward pass: same losses, less memory.
            gradient_checkpointing_kwargs: Additional options of gradient_checkpointing, as a dict or JSON.
            torch_compile: Compile the model with the framework's graph compiler. Enabled by a backend or a mode.
            torch_compile_backend: Compiler backend; enables torch_compile.
            torch_compile_mode: Compiler mode; enables torch_compile.
            jit_mode_eval: Evaluate with the compiled graph.
            use_ipex: Intel Extension for PyTorch.
            use_liger_kernel: Liger kernels for transformers models.
            liger_kernel_config: Which Liger kernels to use, as a dict or JSON.
            use_cache: Keep the model's key-value cache enabled during training.
            torch_empty_cache_steps: Empty the accelerator's memory cache every this many steps.
            eval_strategy: When to evaluate during training.
            eval_steps: Steps between evaluations; a value below 1 is a ratio of all steps.
            eval_delay: Epochs or steps (by eval_strategy) before the first evaluation.
            eval_on_start: Evaluate once before the first step.
            eval_accumulation_steps: Prediction steps to accumulate on the device before moving outputs to the host.
            eval_do_concat_batches: False passes the outputs to compute_metrics as a list of batches.
            eval_use_gather_object: No effect: outputs that are not tensors are always gathered from all processes.
            minimum_eval_times: Lower eval_steps so that there are at least this many evaluations; -1 or 0: off.
            prediction_loss_only: Return only the loss, no outputs.
            include_for_metrics: Extra inputs of compute_metrics: inputs, loss.
            batch_eval_metrics: Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept.
            load_best_model_at_end: Load the best model at the end of training, with any save_strategy.
            metric_for_best_model: Metric used to compare models.
            greater_is_better: Whether a greater metric_for_best_model is better.
            logging_dir: Directory for the writers' files.
            logging_strategy: When to log.
            logging_steps: Steps between logs; a value below 1 is a ratio of all steps.
            logging_first_step: Also log the first step and, except in transformers scripts, evaluate it with eval_strategy='steps'.
            logging_nan_inf_filter: Exclude non-finite losses from the logged average (only).
            nonfinite: What to do about a non-finite loss or gradient: stop the run, skip the update, or nothing.
            nonfinite_limit: Updates in a row that nonfinite='skip' may skip before the run is stopped; 0: any number.
            loss_spike: What to do about a loss or gradient norm far above those of recent steps: nothing; warn; or return to the last checkpoint and skip the samples of the spike.
            loss_spike_threshold: With loss_spike: the number of robust standard deviations above the median from which a value is a spike.
            loss_spike_window: With loss_spike: the number of recent steps that a value is compared with. Before that, none is a spike.
            loss_spike_skip_steps: With loss_spike='rollback': steps whose samples are skipped: the spike and those before it.
            loss_spike_limit: With loss_spike='rollback': returns since the last checkpoint on schedule before the run is stopped.
            report_to: Writers that receive the logs: tensorboard, visualdl, wandb, mlflow, comet_ml, clearml, neptune, azure_ml, swanlab, trackio, codecarbon, dagshub, flyte, dvclive, kubeflow; all: every one that needs no account; none. A service with accounts has to be named.
            include_num_input_tokens_seen: Count the input tokens seen.
            include_tokens_per_second: Report tokens per second in the speed metrics.
            log_throughput: Add to the logs: tokens per second, those without padding (if include_num_input_tokens_seen is non_padding), MFU, and the share of the time spent waiting for data. The report page has them anyway.
            device_peak_flops: Peak floating-point operations per second of one device, for the model FLOPs utilization (MFU). By default known for some GPUs in half precision.
            project: Project name, for writers that have projects.
            trackio_space_id: Space that trackio writes to.
            trackio_bucket_id: Bucket that trackio writes to.
            trackio_static_space_id: Read-only space that trackio creates at the end; False: none.
            save_strategy: When to save a checkpoint.
            save_steps: Steps between checkpoints; a value below 1 is a ratio of all steps.
            save_total_limit: Maximum number of checkpoints to keep, including the best; with 1, the newest and the best.
            save_interval_minutes: Also save when the last checkpoint is this many minutes old.
            snapshot_steps: Steps between snapshots: checkpoints in the memory of the machine, of which the newest is kept. A run whose processes were killed is resumed from it.
            snapshot_dir: With snapshot_steps: a directory in memory.
            save_async: Write checkpoints in the background during training.
            save_on_each_node: With several machines: save on each machine instead of only the first.
            save_only_model: Save checkpoints without optimizer, scheduler and RNG state; no exact resume.
            save_safetensors: Save weights as safetensors, the only format written.
            restore_callback_states_from_checkpoint: On resume, restore the callbacks' state from the checkpoint.
            preemption_signals: Signals on which a run finishes its step, saves and stops; SIGUSR1 and others can be added, [] disables it.
            enable_jit_checkpoint: True: adds SIGTERM to preemption_signals, where it is by default.
            push_to_hub: Push the model to the Hub each time it is saved.
            hub_model_id: With push_to_hub: the repository.
            hub_strategy: With push_to_hub: what to push, and when.
            hub_token: With push_to_hub: the token. It is never written to a file or log.
            hub_private_repo: With push_to_hub: make a new repository private or public. By default, as its owner's settings say.
            hub_always_push: With push_to_hub: push even if the previous push has not finished.
            hub_revision: With push_to_hub: the branch to push to.
            local_rank: Rank of this process on its machine.
            sharding: What is partitioned across processes: stage1 optimizer state, stage2 also gradients, stage3 also parameters; optionally offload, auto_wrap.
            sharding_degree: Number of processes in a sharding group; -1: all.
            tensor_parallel_size: Number of processes that divide the weights of each layer (tensor parallelism).
            tensor_parallel_plan: Which layers are divided, and how: names with * for any part, and colwise, rowwise, ...; a dict, JSON, or a JSON file. transformers models have one.
            sequence_parallel_size: Number of processes that divide each sequence of a batch.
            expert_parallel_size: Number of processes that divide the experts of a model.
            fsdp_config: Additional sharding options, as a dict, JSON, or a JSON file.
            deepspeed: DeepSpeed configuration: a path or a dict.
            accelerator_config: Options of accelerate, as a dict, JSON, or a JSON file. Reads back as an AcceleratorConfig.
            parallelism_config: accelerate's ParallelismConfig, or a dict of its sizes (dp_replicate_size, dp_shard_size, tp_size, cp_size, sp_size), which set the arguments for these axes.
            world_invariant: Train with the same bits on any number of processes: an update keeps its micro-batches, each draws random numbers of its own, and gradients are added up in a fixed order.
            ddp_find_unused_parameters: Detect parameters that a step does not use.
            ddp_bucket_cap_mb: Gradient bucket size in megabytes.
            ddp_broadcast_buffers: Broadcast buffers to all processes.
            ddp_static_graph: Assume that every step uses the same parameters.
            ddp_timeout: Timeout of collectives in seconds.
            ddp_backend: Communication backend: gloo, nccl, mpi, ccl, ...
            tpu_num_cores: Number of TPU cores.
            mp_parameters: SageMaker model parallelism.
            use_legacy_prediction_loop: The evaluation loop of early transformers releases.
            ray_scope: Which result of a trial Ray Tune compares.
            do_compress: PaddleNLP: compress the model. Not supported.
            strategy: PaddleNLP: used only for model compression.
            input_dtype: PaddleNLP: used only for model compression.
            prune_embeddings: PaddleNLP: used only for model compression.
            onnx_format: PaddleNLP: used only for model compression.
            width_mult_list: PaddleNLP: used only for model compression.
            weight_quantize_type: PaddleNLP: used only for model compression.
            activation_quantize_type: PaddleNLP: used only for model compression.
            algo_list: PaddleNLP: used only for model compression.
            batch_num_list: PaddleNLP: used only for model compression.
            batch_size_list: PaddleNLP: used only for model compression.
            round_type: PaddleNLP: used only for model compression.
            bias_correction: PaddleNLP: used only for model compression.
            input_infer_model_path: PaddleNLP: used only for model compression.
            use_pact: PaddleNLP: used only for model compression.
            moving_rate: PaddleNLP: used only for model compression.
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
            sharding_parallel_size: The same as sharding_degree.
            xpu_backend: The same as ddp_backend.
            device: Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.
            use_cpu: True sets device="cpu".
            no_cuda: True sets device="cpu".
            use_mps_device: True sets device="mps".
            adafactor: True sets optim="adafactor".
            group_by_length: True sets train_sampling_strategy="group_by_length".
            dataloader_shuffle: False: train_sampling_strategy="sequential".
            deterministic_mode: True sets full_determinism=True.
            recompute_granularity: "full": gradient_checkpointing=True.
            tensor_parallel_degree: The same as tensor_parallel_size; -1 is ignored.
            tensor_model_parallel_size: The same as tensor_parallel_size; -1 is ignored.
            sep_parallel_degree: The same as sequence_parallel_size; -1 is ignored.
            sep_parallel_size: The same as sequence_parallel_size; -1 is ignored.
            context_parallel_size: The same as sequence_parallel_size; -1 is ignored.
            expert_model_parallel_size: The same as expert_parallel_size; -1 is ignored.
            include_inputs_for_metrics: True adds it to include_for_metrics.
            tpu_metrics_debug: True adds it to debug.
            fsdp: full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; optionally offload, auto_wrap.
            sharded_ddp: simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; optionally offload, auto_wrap.
            fsdp_min_num_params: fsdp_config's min_num_params.
            fsdp_transformer_layer_cls_to_wrap: fsdp_config's transformer_layer_cls_to_wrap.
            num_cycles: lr_scheduler_kwargs's num_cycles.
            lr_end: lr_scheduler_kwargs's lr_end.
            power: lr_scheduler_kwargs's power.
            push_to_hub_organization: The owner (organization) in hub_model_id.
            _n_gpu: -1: the number of devices is detected; select one with device.
            amp_custom_black_list: None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward.
            amp_custom_white_list: None or []: Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward.
            amp_master_grad: False: gradients have the dtype of their weights; fp16_opt_level='O1' keeps both in float32.
            data_parallel_config: "": Paddle's data-parallel options are not supported.
            data_parallel_degree: -1 or this run's value: it is the number of processes that were launched.
            distributed_dataloader: False: each process loads its own batches.
            enable_auto_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            flatten_param_grads: False: gradients are not flattened.
            force_reshard_pp: False: a checkpoint holds the full model, independent of the number of processes.
            hybrid_parallel_topo_order: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            ignore_load_lr_and_optim: False: load the weights yourself and start a new run.
            ignore_save_lr_and_optim: False: use save_only_model=True.
            lazy_data_processing: True: samples are read on access.
            load_sharded_model: False: a checkpoint holds the full model, independent of the number of processes.
            max_evaluate_steps: -1: an evaluation uses the whole dataset; pass a smaller eval_dataset.
            metrics_output_path: None: save_metrics() writes into output_dir.
            pipeline_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pipeline_parallel_degree: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            save_sharded_model: False: a checkpoint holds the full model, independent of the number of processes.
            sharding_parallel_config: "": there are no further sharding options on Paddle.
            skip_profile_timer: True: logs include steps_per_second; use profile=True for details.
            tensor_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            unified_checkpoint: True or False: a checkpoint holds the full model, independent of the number of processes.
            unified_checkpoint_config: "": a checkpoint holds the full model, independent of the number of processes.
            use_expert_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_hybrid_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            wandb_api_key: None: arguments are written to files, so they must not contain keys; set WANDB_API_KEY instead.
            pipeline_model_parallel_size: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            expert_tensor_model_parallel_size: 1 or -1: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sequence_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            fuse_sequence_parallel_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            auto_parallel_resume_form_hybrid_parallel: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            reorder_pipeline_priority: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_intermediate_api: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sharding_comm_overlap: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_async_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sp_async_reduce_scatter: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            overlap_p2p_comm: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            variable_seq_lengths: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sp_allreduce_avg_in_gradinent_scale: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_async_allreduce: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_skip_c_identity: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            mp_fused_linear_param_grad_add: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sync_param: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_sync_param: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sync_grad: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            tp_sync_moment: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_sync_moment: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            replace_with_c_embedding: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            replace_with_parallel_cross_entropy: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_release_grads: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            clear_every_step_cache: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            non_batch_p2p_comm: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            auto_parallel_sync_shared_params: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            best_unbalanced_scheduler: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            offload_queue: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            use_dualpipev: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            forward_backward_overlap_scheduler: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            send_recv_overlap: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            split_backward: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            timer: False: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            split_inputs_sequence_dim: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            batch_p2p_comm: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            pp_delay_scale_loss: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            p2p_cache_shape: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            partial_send_recv: True: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sequence_parallel_config: "": this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            cp_balance_mode: dualchunk_allgather: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            cp_comm_type: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            nccl_comm_group_config: None: this kind of model parallelism is not supported; use tensor_parallel_size, or sharding.
            sharding_comm_group_call_opt: False: there are no further sharding options on Paddle.
            split_norm_comm: False: there are no further sharding options on Paddle.
            stage1_tensor_fusion: False: there are no further sharding options on Paddle.
            tensor_fusion: False: there are no further sharding options on Paddle.
            stage1_overlap: False: there are no further sharding options on Paddle.
            stage2_overlap: False: there are no further sharding options on Paddle.
            stage1_broadcast_overlap: False: there are no further sharding options on Paddle.
            stage1_allgather_overlap: False: there are no further sharding options on Paddle.
            fuse_optimizer_states: False: there are no further sharding options on Paddle.
            sd_release_grads: False: there are no further sharding options on Paddle.
            sd_sharding_comm_overlap: False: there are no further sharding options on Paddle.
            sd_shardingv1_comm_overlap: False: there are no further sharding options on Paddle.
            overlap: False: there are no further sharding options on Paddle.
            stage1_reduce_avg: True: there are no further sharding options on Paddle.
            split_param: True: there are no further sharding options on Paddle.
            sharding_comm_buffer_size_MB: -1: there are no further sharding options on Paddle.
            sharding_offload_opt_buffersize_GB: -1: there are no further sharding options on Paddle.
            sharding_parallel_mesh_dimension: dp: there are no further sharding options on Paddle.
            dp_comm_overlap: False: gradients are exchanged once per update, in its last micro-batch.
            dp_allreduce_avg_in_gradinent_scale: False: gradients are exchanged once per update, in its last micro-batch.
            gradient_sync_after_accumulate: True or False: gradients are exchanged once per update, in its last micro-batch.
            save_checkpoint_format: flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background.
            load_checkpoint_format: flex_checkpoint or unified_checkpoint or sharding_io or None: checkpoints are oneloop's own: whole, and written in the background.
            use_async_save: True or False: checkpoints are oneloop's own: whole, and written in the background.
            load_via_cpu: True or False: checkpoints are oneloop's own: whole, and written in the background.
            save_rng_states: True: checkpoints are oneloop's own: whole, and written in the background.
            save_tokenizer: True: checkpoints are oneloop's own: whole, and written in the background.
            load_sharded_model_remap_parameter_name: False: checkpoints are oneloop's own: whole, and written in the background.
            sharded_model_from_ema: False: checkpoints are oneloop's own: whole, and written in the background.
            pdc_download_ckpt: False: checkpoints are oneloop's own: whole, and written in the background.
            load_from_hf: False: checkpoints are oneloop's own: whole, and written in the background.
            save_sharding_stage1_model_include_freeze_params: False: checkpoints are oneloop's own: whole, and written in the background.
            enable_zero_cost_checkpoint: False: checkpoints are oneloop's own: whole, and written in the background.
            replicate_saved_into_local: False: checkpoints are oneloop's own: whole, and written in the background.
            save_last_step: False: checkpoints are oneloop's own: whole, and written in the background.
            output_signal_dir: None: checkpoints are oneloop's own: whole, and written in the background.
            resume_from_huggingface_ckpt: None: checkpoints are oneloop's own: whole, and written in the background.
            aoa_config: None: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_total_limit: None: checkpoints are oneloop's own: whole, and written in the background.
            flex_ckpt_comm_method: None: checkpoints are oneloop's own: whole, and written in the background.
            ordered_save_group_size: 0: checkpoints are oneloop's own: whole, and written in the background.
            flash_device_save_steps: 0: checkpoints are oneloop's own: whole, and written in the background.
            optim_shard_num: 1: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_steps: -1: checkpoints are oneloop's own: whole, and written in the background.
            zcc_workers_num: 3: checkpoints are oneloop's own: whole, and written in the background.
            save_hf_memory_growth_threshold: 8: checkpoints are oneloop's own: whole, and written in the background.
            zcc_pipeline_hooks_capacity_usage: 0.6: checkpoints are oneloop's own: whole, and written in the background.
            pdc_download_timeout: 300: checkpoints are oneloop's own: whole, and written in the background.
            ckpt_quant_stage: O0: checkpoints are oneloop's own: whole, and written in the background.
            save_to_hf: False: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects.
            convert_from_hf: True: weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects.
            zcc_save_ema_coef: None: for an average of the weights, use ema_decay with averaging_steps.
            zcc_ema_loss_threshold: None: for an average of the weights, use ema_decay with averaging_steps.
            zcc_ema_interval: 1: for an average of the weights, use ema_decay with averaging_steps.
            online_merge_ema: True: for an average of the weights, use ema_decay with averaging_steps.
            num_nextn_predict_layers: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            mtp_num_layers: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            pad_token_id: 0: it is an option of PaddleFormers' models; set it in the model's configuration.
            train_mtp_only: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            mtp_distillation_loss: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            using_sonic_moe: False: it is an option of PaddleFormers' models; set it in the model's configuration.
            offload_fp8_expert_master_weight: True: it is an option of PaddleFormers' models; set it in the model's configuration.
            moe_router_bias_update_rate: 0.0: it is an option of PaddleFormers' models; set it in the model's configuration.
            dsa_indexer_loss_coeff: 0.01: it is an option of PaddleFormers' models; set it in the model's configuration.
            fa_version: None: it is an option of PaddleFormers' models; set it in the model's configuration.
            hybrid_parallel_expert_grad_scale: None: it is an option of PaddleFormers' models; set it in the model's configuration.
            muon_qkv_update_mode: split_head: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ffn_split: True: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_extra_scale_factor: 0.2: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_momentum: 0.95: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_version: 3: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_steps: 5: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_coeff_type: quintic: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            muon_ns_coeffs: None: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            recompute_method: None: recompute=True recomputes every block.
            recompute_modules: None: recompute=True recomputes every block.
            recompute_num_layers: None: recompute=True recomputes every block.
            recompute_mtp_granularity: None: recompute=True recomputes every block.
            recompute_mtp_method: None: recompute=True recomputes every block.
            recompute_mtp_modules: None: recompute=True recomputes every block.
            use_lowprecision_moment: False: memory of the optimizer is not tuned; use sharding to partition its state.
            tensorwise_offload_optimizer: False: memory of the optimizer is not tuned; use sharding to partition its state.
            release_grads: False: memory of the optimizer is not tuned; use sharding to partition its state.
            pre_alloc_memory: 0: memory of the optimizer is not tuned; use sharding to partition its state.
            muon_exclude_patterns: None or ['embed', 'bias', 'lm_head', 'mlp.gate']: Muon is not available on Paddle; create an optimizer and pass it in optimizers=.
            min_lr: 0.0: use lr_scheduler_type='cosine_with_min_lr' with lr_scheduler_kwargs={'min_lr': ...}.
            freeze_training: False: a run without updates is an evaluation; call evaluate().
            skip_data_intervals: None: no samples are skipped; pass a dataset without them.
            prefetch_factor: 2: use dataloader_prefetch_factor.
            wandb_http_proxy: None: set HTTPS_PROXY in the environment instead.
            count_trained_tokens: False: use include_num_input_tokens_seen.
            profile_step_start: 10: use profile=True.
            profile_step_end: 12: use profile=True.
        """
