"""Arguments of PaddleFormers 1.2 that PaddleNLP does not have and that have a fixed value here: data for fixed.py.

Its Trainer is made from PaddleNLP's, for models that are divided over many devices: most of its arguments tune how they
exchange their parts. Each is accepted at the value that describes what oneloop does, which is mostly its default.
"""

from typing import Any

_ONE_COPY = "this kind of model parallelism is not supported; use tensor_parallel_size, or sharding"
_SHARDING = "there are no further sharding options on Paddle"
_EXCHANGE = "gradients are exchanged once per update, in its last micro-batch"
_CHECKPOINTS = "checkpoints are oneloop's own: whole, and written in the background"
_EMA = "for an average of the weights, use ema_decay with averaging_steps"
_MODEL = "it is an option of PaddleFormers' models; set it in the model's configuration"
_MUON = "Muon is not available on Paddle; create an optimizer and pass it in optimizers="
_RECOMPUTE = "recompute=True recomputes every block"
_MEMORY = "memory of the optimizer is not tuned; use sharding to partition its state"
_HF = "weights are in Paddle's layout; model.save_pretrained() writes them as PaddleFormers' from_pretrained expects"
_FORMATS = ("flex_checkpoint", "unified_checkpoint", "sharding_io", None)

# Why, the accepted values (the first is what the argument reads as), and the names.
_TABLE: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    (
        _ONE_COPY,
        (1, -1),
        "pipeline_model_parallel_size expert_tensor_model_parallel_size",
    ),
    (
        _ONE_COPY,
        (False,),
        "sequence_parallel fuse_sequence_parallel_allreduce auto_parallel_resume_form_hybrid_parallel "
        "reorder_pipeline_priority use_intermediate_api pp_sharding_comm_overlap tp_async_allreduce "
        "sp_async_reduce_scatter overlap_p2p_comm variable_seq_lengths sp_allreduce_avg_in_gradinent_scale "
        "mp_async_allreduce mp_skip_c_identity mp_fused_linear_param_grad_add pp_sync_param tp_sync_param "
        "sync_grad tp_sync_moment pp_sync_moment replace_with_c_embedding replace_with_parallel_cross_entropy "
        "pp_release_grads clear_every_step_cache non_batch_p2p_comm auto_parallel_sync_shared_params "
        "best_unbalanced_scheduler offload_queue use_dualpipev forward_backward_overlap_scheduler "
        "send_recv_overlap split_backward timer",
    ),
    (
        _ONE_COPY,
        (True,),
        "split_inputs_sequence_dim batch_p2p_comm pp_delay_scale_loss p2p_cache_shape partial_send_recv",
    ),
    (_ONE_COPY, ("",), "sequence_parallel_config"),
    (_ONE_COPY, ("dualchunk_allgather",), "cp_balance_mode"),
    (_ONE_COPY, (None,), "cp_comm_type nccl_comm_group_config"),
    (
        _SHARDING,
        (False,),
        "sharding_comm_group_call_opt split_norm_comm stage1_tensor_fusion tensor_fusion stage1_overlap "
        "stage2_overlap stage1_broadcast_overlap stage1_allgather_overlap fuse_optimizer_states "
        "sd_release_grads sd_sharding_comm_overlap sd_shardingv1_comm_overlap overlap",
    ),
    (_SHARDING, (True,), "stage1_reduce_avg split_param"),
    (_SHARDING, (-1,), "sharding_comm_buffer_size_MB sharding_offload_opt_buffersize_GB"),
    (_SHARDING, ("dp",), "sharding_parallel_mesh_dimension"),
    (_EXCHANGE, (False,), "dp_comm_overlap dp_allreduce_avg_in_gradinent_scale"),
    (_EXCHANGE, (True, False), "gradient_sync_after_accumulate"),
    (_CHECKPOINTS, _FORMATS, "save_checkpoint_format load_checkpoint_format"),
    (_CHECKPOINTS, (True, False), "use_async_save load_via_cpu"),
    (_CHECKPOINTS, (True,), "save_rng_states save_tokenizer"),
    (
        _CHECKPOINTS,
        (False,),
        "load_sharded_model_remap_parameter_name sharded_model_from_ema pdc_download_ckpt load_from_hf "
        "save_sharding_stage1_model_include_freeze_params enable_zero_cost_checkpoint "
        "replicate_saved_into_local save_last_step",
    ),
    (
        _CHECKPOINTS,
        (None,),
        "output_signal_dir resume_from_huggingface_ckpt aoa_config save_hf_total_limit flex_ckpt_comm_method",
    ),
    (_CHECKPOINTS, (0,), "ordered_save_group_size flash_device_save_steps"),
    (_CHECKPOINTS, (1,), "optim_shard_num"),
    (_CHECKPOINTS, (-1,), "save_hf_steps"),
    (_CHECKPOINTS, (3,), "zcc_workers_num"),
    (_CHECKPOINTS, (8,), "save_hf_memory_growth_threshold"),
    (_CHECKPOINTS, (0.6,), "zcc_pipeline_hooks_capacity_usage"),
    (_CHECKPOINTS, (300,), "pdc_download_timeout"),
    (_CHECKPOINTS, ("O0",), "ckpt_quant_stage"),
    (_HF, (False,), "save_to_hf"),
    (_HF, (True,), "convert_from_hf"),
    (_EMA, (None,), "zcc_save_ema_coef zcc_ema_loss_threshold"),
    (_EMA, (1,), "zcc_ema_interval"),
    (_EMA, (True,), "online_merge_ema"),
    (_MODEL, (0,), "num_nextn_predict_layers mtp_num_layers pad_token_id"),
    (_MODEL, (False,), "train_mtp_only mtp_distillation_loss using_sonic_moe"),
    (_MODEL, (True,), "offload_fp8_expert_master_weight"),
    (_MODEL, (0.0,), "moe_router_bias_update_rate"),
    (_MODEL, (0.01,), "dsa_indexer_loss_coeff"),
    (_MODEL, (None,), "fa_version hybrid_parallel_expert_grad_scale"),
    (_MUON, ("split_head",), "muon_qkv_update_mode"),
    (_MUON, (True,), "muon_ffn_split"),
    (_MUON, (0.2,), "muon_extra_scale_factor"),
    (_MUON, (0.95,), "muon_momentum"),
    (_MUON, (3,), "muon_version"),
    (_MUON, (5,), "muon_ns_steps"),
    (_MUON, ("quintic",), "muon_ns_coeff_type"),
    (_MUON, (None,), "muon_ns_coeffs"),
    (
        _RECOMPUTE,
        (None,),
        "recompute_method recompute_modules recompute_num_layers recompute_mtp_granularity "
        "recompute_mtp_method recompute_mtp_modules",
    ),
    (_MEMORY, (False,), "use_lowprecision_moment tensorwise_offload_optimizer release_grads"),
    (_MEMORY, (0,), "pre_alloc_memory"),
    (_MUON, (None, ["embed", "bias", "lm_head", "mlp.gate"]), "muon_exclude_patterns"),
    ("use lr_scheduler_type='cosine_with_min_lr' with lr_scheduler_kwargs={'min_lr': ...}", (0.0,), "min_lr"),
    ("a run without updates is an evaluation; call evaluate()", (False,), "freeze_training"),
    ("no samples are skipped; pass a dataset without them", (None,), "skip_data_intervals"),
    ("use dataloader_prefetch_factor", (2,), "prefetch_factor"),
    ("set HTTPS_PROXY in the environment instead", (None,), "wandb_http_proxy"),
    ("use include_num_input_tokens_seen", (False,), "count_trained_tokens"),
    ("use profile=True", (10,), "profile_step_start"),
    ("use profile=True", (12,), "profile_step_end"),
)

# name -> (why, accepted values)
FIXED: dict[str, tuple[str, tuple[Any, ...]]] = {
    name: (why, values) for why, values, names in _TABLE for name in names.split()
}
# Not attributes of the arguments: scripts may well have attributes of their own with these names.
NO_ATTRIBUTES = ("overlap", "timer")
