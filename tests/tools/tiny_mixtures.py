"""Mixtures of experts for tiny_checkpoint.py, which explains TYPES and FAMILIES."""

LACKS = "lacks"  # of a key that a file does not have

NO_HEAD = {"head_dim": LACKS}
CHOSEN = {"num_experts_per_tok": 2, "output_router_logits": False}
LOCAL = {"num_local_experts": 6, "intermediate_size": 64} | CHOSEN  # the experts' width, under Llama's name
EXPERTS = {"num_experts": 6, "moe_intermediate_size": 64} | CHOSEN
ROUTED = {"n_routed_experts": 8, "moe_intermediate_size": 64, "n_group": 2, "topk_group": 1, "norm_topk_prob": True,
          "routed_scaling_factor": 1.5, "n_shared_experts": 1, "first_k_dense_replace": 1} | CHOSEN
QWEN = EXPERTS | {"sliding_window": None, "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []}


def by_type(full, sliding):
    """RoPE's keys of the two sorts of layers, which these types never had in another style."""
    return {"rope": LACKS, "sliding_window": 24, "rope_parameters": {
        "full_attention": {"rope_type": "default"} | full, "sliding_attention": {"rope_type": "default"} | sliding}}


LATENT = NO_HEAD | ROUTED | {
    "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "attention_bias": False}
INDEXER = {"index_topk": 96, "index_n_heads": 4, "index_head_dim": 32}
YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32, "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 64}

STEP = by_type(
    {"rope_theta": 5e6, "partial_rotary_factor": 0.5}, {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}) | {
    "kinds": "FS", "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 64, "moe_num_experts": 8,
    "moe_top_k": 2, "moe_router_scaling_factor": 1.5, "num_sliding_attention_heads": 6, "rms_norm_eps": 1e-5,
    "share_expert_dim": 96, "swiglu_limits": [0.0, 1.5], "swiglu_limits_shared": [0.0, 1.0]}

MINIMAX_M3 = LOCAL | {
    "dense_intermediate_size": 320, "hidden_act": "swigluoai", "intermediate_size": 64, "rope_theta": 5e6,
    "routed_scaling_factor": 2.0, "shared_intermediate_size": 96, "swiglu_alpha": 1.702, "swiglu_limit": 1.5}

MIMO = {
    "num_hidden_layers": 3, "attention_projection_layout": "fused_qkv", "hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1],
    "v_head_dim": 32, "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 64, "swa_v_head_dim": 40,
    "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "attention_value_scale": 0.612, "sliding_window": 24,
    "attention_bias": False, "rms_norm_eps": LACKS, "layernorm_epsilon": 1e-5, "first_k_dense_replace": LACKS,
    "n_shared_experts": LACKS, "rope_theta": 5e6, "swa_rope_theta": 10000.0, "partial": 0.25}

TYPES = {
    "mixtral": ("MixtralForCausalLM", LOCAL | {"sliding_window": None, "rms_norm_eps": 1e-5, "rope_theta": 1e6}),
    "dbrx": ("DbrxForCausalLM", {
        "rms_norm_eps": LACKS, "hidden_act": LACKS, "intermediate_size": LACKS, "num_key_value_heads": LACKS, "head_dim": LACKS,
        "rope": LACKS, "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 500000},
        "ffn_config": {"ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": 64, "moe_num_experts": 6, "moe_top_k": 2,
                       "moe_normalize_expert_weights": 1.0},
        "names": {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                  "max_position_embeddings": "max_seq_len"}}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", NO_HEAD | QWEN | {
        "norm_topk_prob": False, "shared_expert_intermediate_size": 96, "max_window_layers": 28, "qkv_bias": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", QWEN | {"norm_topk_prob": True, "attention_bias": False}),
    "olmoe": ("OlmoeForCausalLM", NO_HEAD | {
        "num_experts": 6, "intermediate_size": 64, "attention_bias": False, "clip_qkv": 1.5, "norm_topk_prob": False,
        "rms_norm_eps": 1e-5} | CHOSEN),
    "glm4_moe": ("Glm4MoeForCausalLM", ROUTED | {
        "attention_bias": True, "use_qk_norm": True, "rms_norm_eps": 1e-5, "partial": 0.5}),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration", ROUTED | {
        "attention_bias": True, "rms_norm_eps": 1e-5, "partial": 0.5}),
    "dots1": ("Dots1ForCausalLM", ROUTED | {
        "attention_bias": False, "sliding_window": 24, "max_window_layers": 1, "kinds": "FS", "n_group": 1}),
    "solar_open": ("SolarOpenForCausalLM", ROUTED | {
        "first_k_dense_replace": LACKS, "intermediate_size": LACKS, "n_group": 1, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "rope": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", LOCAL | {"rotary_dim": 24, "rope_theta": 5e6, "use_routing_bias": True}),
    "minimax_m3": ("MiniMaxM3ForCausalLM", MINIMAX_M3 | {
        "index_n_heads": 2, "index_head_dim": 32, "index_block_size": 20, "index_topk_blocks": 2, "index_local_blocks": 1,
        "layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"], "partial": 0.5}),
    "minimax_m3_vl": ("MiniMaxM3SparseForConditionalGeneration", MINIMAX_M3 | {
        "moe_layer_freq": [0, 1], "rotary_dim": 24, "sparse_attention_config": {
            "sparse_attention_freq": [1, 1], "sparse_block_size": 8, "sparse_index_dim": 24, "sparse_local_block": 2,
            "sparse_num_index_heads": 2, "sparse_topk_blocks": 3}}),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", NO_HEAD | {
        "moe_k": 2, "moe_num_experts": 6, "moe_num_shared_experts": 2, "moe_intermediate_size": 64, "moe_layer_interval": 1,
        "moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_norm_min": 1e-12, "use_bias": False,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True}),
    "hunyuan_v1_moe": ("HunYuanMoEV1ForCausalLM", {
        "num_experts": 6, "moe_topk": [2, 3], "intermediate_size": 64, "attention_bias": False, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                 "mscale_all_dim": 1.0}}),
    "afmoe": ("AfmoeForCausalLM", EXPERTS | {
        "num_dense_layers": 1, "num_shared_experts": 1, "route_scale": 1.5, "mup_enabled": True, "attention_bias": False,
        "sliding_window": 24, "kinds": "SF", "global_attn_every_n_layers": 2, "rms_norm_eps": 1e-5, "num_hidden_layers": 3}),
    "hy_v3": ("HYV3ForCausalLM", EXPERTS | {
        "num_shared_experts": 1, "router_scaling_factor": 1.5, "first_k_dense_replace": 1, "attention_bias": False,
        "mlp_bias": False, "rms_norm_eps": 1e-5}),
    "granitemoe": ("GraniteMoeForCausalLM", NO_HEAD | LOCAL | {
        "attention_bias": False, "attention_multiplier": 0.05, "embedding_multiplier": 6.0, "logits_scaling": 4.0,
        "residual_multiplier": 0.4}),
    "phimoe": ("PhimoeForCausalLM", NO_HEAD | LOCAL | {
        "attention_bias": True, "lm_head_bias": True, "rms_norm_eps": 1e-5, "router_jitter_noise": 0.2,
        "input_jitter_noise": 0.01, "sliding_window": 24}),
    "gpt_oss": ("GptOssForCausalLM", LOCAL | {
        "attention_bias": True, "sliding_window": 24, "kinds": "SF", "rms_norm_eps": 1e-5, "swiglu_limit": 1.5,
        "rope_theta": 150000.0, "rope": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                         "truncate": False, "original_max_position_embeddings": 64}}),
    "llama4_text": ("Llama4ForCausalLM", LOCAL | {
        "attention_bias": False, "attention_chunk_size": 40, "attn_scale": 0.1, "attn_temperature_tuning": True,
        "floor_scale": 64, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 320, "no_rope_layers": [1, 0],
        "num_experts_per_tok": 1, "use_qk_norm": True, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}),
    "mimo_v2_flash": ("MiMoV2FlashForCausalLM", ROUTED | by_type(
        {"rope_theta": 5e6, "partial_rotary_factor": 0.334}, {"rope_theta": 10000.0, "partial_rotary_factor": 0.334}) | {
        "attention_bias": False, "v_head_dim": 32, "attention_value_scale": 0.707, "kinds": "FS",
        "mlp_layer_types": ["dense", "sparse"], "n_shared_experts": LACKS, "first_k_dense_replace": LACKS, "n_group": 1,
        "routed_scaling_factor": 1.0, "num_key_value_heads": 2}),
    "mimo_v2": ("MiMoV2ForCausalLM", ROUTED | MIMO),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT | {"rope": YARN, "topk_method": "group_limited_greedy", "mlp_bias": True}),
    "minicpm3": ("MiniCPM3ForCausalLM", NO_HEAD | {
        "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
        "attention_bias": False, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "scale_emb": 6, "scale_depth": 1.4,
        "dim_model_base": 64}),
    "youtu": ("YoutuForCausalLM", NO_HEAD | {
        "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
        "v_head_dim": 32, "attention_bias": False, "rope_interleave": True, "rope_theta": 1.6e6, "tie_word_embeddings": True}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT | {"num_nextn_predict_layers": 0, "rope": YARN}),
    "deepseek_v32": ("DeepseekV32ForCausalLM", LATENT | INDEXER | {"num_nextn_predict_layers": 0, "rope": YARN}),
    "deepseek_v4": ("DeepseekV4ForCausalLM", {
        "num_hidden_layers": 3, "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 20}, "compress_rope_theta": 160000.0,
        "intermediate_size": LACKS, "moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "num_hash_layers": 1,
        "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 64, "o_groups": 2, "o_lora_rank": 32,
        "index_topk": 24, "index_n_heads": 4, "index_head_dim": 16, "sliding_window": 24, "hc_mult": 3, "hc_sinkhorn_iters": 5,
        "hc_eps": 1e-6, "swiglu_limit": 1.0, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus",
        "rope": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64}}),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", LATENT | INDEXER | {
        "indexer_types": ["full", "shared"], "mlp_layer_types": ["dense", "sparse"], "rope_theta": 1e6}),
    "hy_v4": ("HYV4ForCausalLM", LATENT | INDEXER | {
        "num_hidden_layers": 3, "num_key_value_heads": LACKS, "n_group": 1, "indexer_types": ["full", "shared", "full"],
        "mlp_layer_types": ["dense", "sparse", "sparse"], "first_k_dense_replace": LACKS, "hc_mult": 3, "hc_magnitude": 1.7,
        "hc_eps": 1e-6, "swiglu_limit": 1.0, "rms_norm_eps": 1e-5, "rope_theta": 1e6}),
    "longcat_flash": ("LongcatFlashForCausalLM", {
        "num_key_value_heads": LACKS, "head_dim": 16, "names": {"intermediate_size": "ffn_hidden_size", "num_hidden_layers": "num_layers"},
        "q_lora_rank": 128, "kv_lora_rank": 96, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32, "attention_bias": False,
        "n_routed_experts": 8, "zero_expert_num": 4, "moe_topk": 3, "expert_ffn_hidden_size": 64, "routed_scaling_factor": 1.5,
        "rms_norm_eps": 1e-5, "rope_theta": 1e7, "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity",
        "router_bias": False, "attention_method": "MLA"}),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", LATENT | {
        "first_k_dense_replace": LACKS, "mlp_layer_types": ["sparse", "dense"], "rms_norm_eps": 1e-5, "rope_theta": 1e6}),
    "mistral4": ("Mistral4ForCausalLM", LATENT | {"rope": YARN | {"llama_4_scaling_beta": 0.3}}),
    "step3p5": ("Step3p5ForCausalLM", STEP), "step3p7": ("Step3p7ForConditionalGeneration", STEP),
    "inkling_mm_model": ("InklingForConditionalGeneration", {
        "num_hidden_layers": 3, "local_layer_ids": [0, 2], "sliding_window_size": 24, "rope": LACKS, "d_rel": 8, "rel_extent": 40,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 32, "dense_mlp_idx": 1,
        "dense_intermediate_size": 320, "intermediate_size": 64, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "n_shared_experts": 2, "route_scale": 2.0, "log_scaling_n_floor": 16, "log_scaling_alpha": 0.3, "sconv_kernel_size": 4,
        "logits_mup_width_multiplier": 2.0}),
    "laguna": ("LagunaForCausalLM", EXPERTS | by_type(
        {"rope_type": "yarn", "rope_theta": 500000.0, "partial_rotary_factor": 0.5, "factor": 8.0, "beta_fast": 64.0,
         "original_max_position_embeddings": 128, "attention_factor": 1.0},
        {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}) | {
        "attention_bias": False, "gating": "per-head", "kinds": "FS", "mlp_layer_types": ["dense", "sparse"],
        "moe_apply_router_weight_on_input": False, "moe_routed_scaling_factor": 2.5, "moe_router_logit_softcapping": 5.0,
        "num_attention_heads_per_layer": [4, 6], "shared_expert_intermediate_size": 96}),
}

FAMILIES = {
    "mimo_v2_split": ("mimo_v2", {"attention_projection_layout": LACKS, "hybrid_layer_pattern": LACKS, "hybrid_block_size": 2,
                                  "moe_layer_freq": 2, "add_full_attention_sink_bias": True, "attention_bias": True}),
    "gemma4_moe": ("gemma4_text", {"enable_moe_block": True, "moe_intermediate_size": 64, "num_experts": 6,
                                   "top_k_experts": 2}),
    "glm4_moe_plain": ("glm4_moe", {"use_qk_norm": False, "n_shared_experts": 2, "norm_topk_prob": False, "n_group": 1}),
    "deepseek_v2_lite": ("deepseek_v2", {"topk_method": "greedy", "n_group": None, "topk_group": None, "q_lora_rank": None}),
    "deepseek_v3_halves": ("deepseek_v3", {"rope_interleave": False, "attention_bias": True, "first_k_dense_replace": 2}),
    "mixtral_modules": ("mixtral", {}), "mixtral_stacked": ("mixtral", {}), "qwen3_moe_stacked": ("qwen3_moe", {}),
    "minimax_m2_modules": ("minimax_m2", {}), "hy_v3_modules": ("hy_v3", {}), "laguna_modules": ("laguna", {}),
    "step3p5_apart": ("step3p5", {}),
    **{f"{kind}_stacked": (kind, {}) for kind in ("minimax_m2", "phimoe", "ernie4_5_moe", "granitemoe", "hy_v3", "laguna",
                                                  "mimo_v2_flash", "step3p7")},
    "mixtral_apart": ("mixtral", {}), "gpt_oss_apart": ("gpt_oss", {}), "granitemoe_apart": ("granitemoe", {}),
    # Attention's output is wider than the product of q, k and v.
    "mimo_v2_flash_wide": ("mimo_v2_flash", {"v_head_dim": 128, "num_key_value_heads": 1}),
    "deepseek_v4_128": ("deepseek_v4", {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}}),
    "longcat_flash_yarn": ("longcat_flash", {
        "attention_bias": True, "zero_expert_num": 0, "hidden_act": "gelu", "rope": YARN}),
    "dbrx_apart": ("dbrx", {"attn_config": None, "ffn_config": {
        "ffn_hidden_size": 64, "moe_num_experts": 6, "moe_top_k": 2, "moe_normalize_expert_weights": None}}),
    "laguna_elements": ("laguna", {"gating": "per-element", "moe_router_logit_softcapping": 0.0}),
}

# Experts in formats, beside bf16.
QUANTISED = (("qwen3_moe", "w4a16_g32"), ("mixtral", "nvfp4"), ("qwen2_moe", "mixed"), ("glm4_moe", "fp8_channel"),
             ("minimax_m2", "w4a16_g32_asym"), ("ernie4_5_moe", "int8_channel"), ("laguna", "mxfp4"),
             ("mixtral_apart", "fp8_channel"), ("mixtral_modules", "nvfp4"), ("gpt_oss_apart", "w4a16_g32"), ("granitemoe_apart", "nvfp4"),
             ("qwen3_moe_stacked", "w4a16_g32"), ("mixtral_stacked", "w4a16_g32_asym"), ("granitemoe", "fp8_channel"),
             ("granitemoe_stacked", "nvfp4"), ("laguna_stacked", "mxfp4"), ("step3p5", "w8a16_channel"), ("hy_v3_stacked", "fp8_channel"),
             ("hy_v3_modules", "gptq4_g64"), ("qwen3_moe", "exl3"), ("laguna_modules", "w4a16_g32"), ("step3p5_apart", "w4a16_g32"),
             ("dbrx", "w4a16_g32"), ("youtu", "fp8_block"), ("dbrx_apart", "mlx4"),
             ("longcat_flash", "w4a16_g32"), ("longcat_flash", "nvfp4"), ("longcat_flash", "fp8_block"),
             ("deepseek_v4", "fp8native_fp4"),
             ("mimo_v2", "fp8native_mimo"))
