"""Models with layers that carry a state for tiny_checkpoint.py, which explains TYPES and FAMILIES."""

from tiny_mixtures import EXPERTS, INDEXER, LACKS, LATENT, NO_HEAD, ROUTED

PLAIN = {"rms_norm_eps": LACKS, "rope": LACKS}
HALF = "linear_attention", "full_attention", "linear_attention"


def layers(*types):
    return {"layer_types": list(types), "num_hidden_layers": len(types)}


DELTA = layers(*HALF) | {
    "attention_bias": False, "attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 24,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 32, "partial": 0.25, "rope_theta": 1e7}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 96}
NO_ATTENTION = NO_HEAD | PLAIN | {"num_attention_heads": LACKS, "num_key_value_heads": LACKS, "max_position_embeddings": LACKS,
                                  "attention_dropout": LACKS, "layer_norm_epsilon": 1e-5, "conv_kernel": 4, "expand": 2, "use_bias": False,
                                  "use_conv_bias": True, "num_hidden_layers": 3}
MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 24, "mamba_d_conv": 4, "mamba_expand": 2,
         "mamba_chunk_size": 64, "mamba_conv_bias": True, "mamba_proj_bias": False, "rms_norm_eps": 1e-5}
MAMBA1 = {"mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 32, "mamba_expand": 2,
          "mamba_proj_bias": False}
CONV = NO_HEAD | PLAIN | layers("conv", "full_attention", "conv") | {
    "norm_eps": 1e-5, "conv_L_cache": 3, "conv_bias": False, "tie_word_embeddings": True}
del CONV["rope"]
FACTORS = {"attention_in_multiplier": 1.3, "attention_out_multiplier": 0.94, "embedding_multiplier": 5.6, "key_multiplier": 0.39,
           "lm_head_multiplier": 0.5, "mlp_multipliers": [0.88, 0.55], "ssm_in_multiplier": 1.25,
           "ssm_multipliers": [0.35, 0.25, 0.5, 0.7, 0.45], "ssm_out_multiplier": 0.48}

KIMI = NO_HEAD | {
    "rope": LACKS, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "mla_use_nope": True, "first_k_dense_replace": 1, "moe_intermediate_size": 64, "num_experts": 6,
    "num_experts_per_token": 2, "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": True,
    "moe_layer_freq": 1, "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-5, "num_hidden_layers": 4, "linear_attn_config": {
        "full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 32, "num_heads": 3, "short_conv_kernel_size": 4}}

QWEN4 = DELTA | SHARED | {
    "intermediate_size": LACKS, "hc_count": 3, "hc_lowrank": 40, "indexer_n_heads": 12, "indexer_kv_heads": 1, "indexer_head_dim": 32,
    "indexer_compress_ratio": 8, "indexer_budget": 48, "output_gate_type": "sigmoid", "ple_layer_ids": [1, 3], "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 61, "split_ngram_parts": 4,
    "make_ngram_vocab_size_divisible_by": 16, "seed": 1234, "eos_token_id": 7}

MINIMAX = {"num_local_experts": 6, "num_experts_per_tok": 2, "rms_norm_eps": 1e-2, "rope_theta": 1e6, "sliding_window": None,
           "num_hidden_layers": 4}
BY_MAKERS = MINIMAX | {
    "attn_type_list": [0, 1, 0, 1], "postnorm": True, "rotary_dim": 24, "shared_intermediate_size": 0,
    "layernorm_full_attention_alpha": 3.5, "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_alpha": 2.5,
    "layernorm_linear_attention_beta": 1.5, "layernorm_mlp_alpha": 3.0, "layernorm_mlp_beta": 0.75}

BAILING = ROUTED | {
    "n_routed_experts": LACKS, "n_shared_experts": LACKS, "num_experts": 8, "num_shared_experts": 1, "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "layer_group_size": 3,
    "group_norm_size": 2, "linear_silu": False, "num_nextn_predict_layers": 0, "rope_theta": 6e5, "num_hidden_layers": 4,
    "partial": 0.5}

TYPES = {
    "kimi_linear": ("KimiLinearForCausalLM", KIMI),
    "kimi_k3": ("KimiK3ForConditionalGeneration", KIMI | {
        "q_lora_rank": 64, "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 6.0,
        "attn_res_block_size": 3, "mla_use_output_gate": True, "routed_expert_hidden_size": 96, "latent_moe_use_norm": True,
        "num_shared_experts": 2, "linear_attn_config": KIMI["linear_attn_config"] | {
            "gate_lower_bound": -5.0, "use_full_rank_gate": True}}),
    "glm5_next": ("Glm5NextForConditionalGeneration", LATENT | INDEXER | {
        "rope": LACKS, "qk_rope_head_dim": 0, "num_hidden_layers": 5, "first_k_dense_replace": LACKS, "layer_types": [
            "linear_attention", "deepseek_sparse_attention", "indexed_attention", "linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"], "indexer_types": ["full", "full", "shared", "full", "full"],
        "index_kpool": 12, "index_kpool_always_select_tail": True, "linear_head_dim": 32, "linear_num_heads": 3,
        "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0, "hc_mult": 3, "hc_sinkhorn_iters": 5, "hc_eps": 1e-6,
        "swiglu_limit": 1.0, "rms_norm_eps": 1e-5}),
    "qwen3_next": ("Qwen3NextForCausalLM", DELTA | SHARED | layers(*HALF, "linear_attention") | {
        "decoder_sparse_step": 1, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", DELTA),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", DELTA | SHARED | {"intermediate_size": LACKS}),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", DELTA | SHARED | {"intermediate_size": LACKS}),
    "lara_mini": ("LaraMiniForCausalLM", DELTA | SHARED | layers(
        "linear_attention", "sliding_attention", "full_attention") | {
        "intermediate_size": LACKS, "attn_output_gate": LACKS, "full_attention_interval": LACKS, "partial": LACKS, "rope_theta": 1e4,
        "sliding_window": 24, "norm_topk_prob": True, "tie_word_embeddings": True}),
    "qwen4_exp_text": ("Qwen4ExpForCausalLM", QWEN4),
    "qwen4_exp": ("Qwen4ExpForConditionalGeneration", QWEN4),
    "mamba2": ("Mamba2ForCausalLM", NO_ATTENTION | {
        "intermediate_size": LACKS, "num_heads": 6, "head_dim": 64, "n_groups": 2, "state_size": 24, "chunk_size": 64}),
    "mamba": ("MambaForCausalLM", NO_ATTENTION | {"intermediate_size": LACKS, "state_size": 16, "time_step_rank": "auto"}),
    "falcon_mamba": ("FalconMambaForCausalLM", NO_ATTENTION | {
        "intermediate_size": 384, "state_size": 16, "time_step_rank": 32, "mixer_rms_eps": 1e-6}),
    "falcon_h1": ("FalconH1ForCausalLM", MAMBA | FACTORS | {
        "mamba_d_ssm": 192, "mamba_n_heads": 6, "mamba_d_head": 32, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "mamba_n_groups": 2, "attention_bias": False, "mlp_bias": False, "projectors_bias": False, "rope_theta": 1e11}),
    "bamba": ("BambaForCausalLM", NO_HEAD | MAMBA | {
        "mamba_n_groups": 2, "attention_bias": False, "mlp_bias": False, "attn_layer_indices": [1], "num_hidden_layers": 3}),
    "minimax": ("MiniMaxForCausalLM", MINIMAX | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"], "full_attn_alpha_factor": 3.5,
        "full_attn_beta_factor": 1.0, "linear_attn_alpha_factor": 2.5, "linear_attn_beta_factor": 1.5, "mlp_alpha_factor": 3.0,
        "mlp_beta_factor": 0.75, "block_size": 64}),
    "minimax_text_01": ("MiniMaxText01ForCausalLM", BY_MAKERS),
    "minimax_m1": ("MiniMaxM1ForCausalLM", BY_MAKERS | {"num_hidden_layers": 2, "attn_type_list": [1, 0]}),
    "bailing_moe_linear": ("BailingMoeLinearV2ForCausalLM", BAILING),
    "bailing_hybrid": ("BailingMoeV2_5ForCausalLM", BAILING | {
        "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 24,
        "v_head_dim": 32, "rope_interleave": True}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", {
        "hidden_act": LACKS, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "max_position_embeddings": LACKS,
        "intermediate_size": 640, "num_key_value_heads": 1, "attention_bias": False, "attention_window_size": 24, "conv1d_width": 4,
        "logits_soft_cap": 30.0, "lru_width": 192, "block_types": ["recurrent", "recurrent", "attention"], "num_hidden_layers": 4,
        "partial": 0.5}),
    "nemotron_h": ("NemotronHForCausalLM", NO_ATTENTION | ROUTED | {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48, "max_position_embeddings": 2048, "attention_bias": False,
        "hybrid_override_pattern": "ME*-M", "num_hidden_layers": 5, "mamba_num_heads": 6, "mamba_head_dim": 32, "n_groups": 2,
        "ssm_state_size": 24, "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2", "hidden_act": LACKS, "mlp_bias": False,
        "n_group": 1, "moe_shared_expert_intermediate_size": 96, "first_k_dense_replace": LACKS, "time_step_min": 0.001}),
    "jamba": ("JambaForCausalLM", NO_HEAD | MAMBA1 | {
        "rope": LACKS, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 4}),
    "lfm2": ("Lfm2ForCausalLM", CONV | {
        "block_auto_adjust_ff_dim": True, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "rope_theta": 1e6}),
    "lfm2_moe": ("Lfm2MoeForCausalLM", CONV | EXPERTS | {
        "num_dense_layers": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "use_expert_bias": True, "rope_theta": 1e6}),
    "lfm2_vl": ("Lfm2VlForConditionalGeneration", CONV | {
        "block_auto_adjust_ff_dim": True, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "rope_theta": 1e6}),
}

FAMILIES = {
    "granitemoehybrid_mamba": ("granitemoehybrid", MAMBA | layers("mamba", "attention", "mamba")),
    "granitemoehybrid_moe": ("granitemoehybrid", MAMBA | layers("mamba", "attention", "mamba") | {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "position_embedding_type": "nope"}),
    "qwen3_5_sigmoid": ("qwen3_5_text", {"output_gate_type": "sigmoid"}),
    "qwen3_5_equal_heads": ("qwen3_5_text", {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3}),
    "mamba2_bias": ("mamba2", {"use_bias": True, "n_groups": 1, "time_step_limit": [0.01, 0.05]}),
    "falcon_h1_plain": ("falcon_h1", {"mamba_rms_norm": False, "mamba_norm_before_gate": True, "mamba_n_groups": 1}),
    "falcon_h1_norm_first": ("falcon_h1", {"mamba_norm_before_gate": True}),
    "bamba_bias": ("bamba", {
        "mamba_n_groups": 1, "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True, "mamba_conv_bias": False,
        "time_step_limit": [0.01, 0.05], "tie_word_embeddings": True, "rope": {
            "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.75}}),
    "qwen4_exp_one": ("qwen4_exp", {"ple_layer_ids": [3]}),  # one table of n-grams
    "bailing_moe_linear_bias": ("bailing_moe_linear", {
        "use_qk_norm": False, "use_qkv_bias": True, "use_bias": True, "num_hidden_layers": 3, "layer_group_size": 2, "group_norm_size": 1,
        "num_experts_per_tok": 1, "first_k_dense_replace": 0, "partial": 1.0}),
    "bailing_hybrid_yarn": ("bailing_hybrid", {
        "q_lora_rank": None, "use_qkv_bias": True, "group_norm_size": 4, "num_shared_experts": 2, "rope": {
            "rope_type": "yarn", "factor": 8.0, "mscale": 0.8, "mscale_all_dim": 1.2, "original_max_position_embeddings": 128}}),
    "recurrent_gemma_odd": ("recurrent_gemma", {
        "lru_width": 180, "attention_bias": True, "tie_word_embeddings": False, "block_types": ["attention", "recurrent"],
        "num_hidden_layers": 3, "conv1d_width": 3, "hidden_activation": "silu", "num_key_value_heads": 4, "partial": 1.0,
        "logits_soft_cap": 8.0}),
    "minimax_6_heads": ("minimax", {"num_attention_heads": 6, "head_dim": 32, "sliding_window": 24}),
    "minimax_modules": ("minimax", {}), "minimax_stacked": ("minimax", {}),
    "nemotron_h_latent": ("nemotron_h", {"moe_latent_size": 96, "n_group": 2, "hybrid_override_pattern": "MEM*E"}),
    "nemotron_h_types": ("nemotron_h", {"hybrid_override_pattern": LACKS, "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
                                        "num_hidden_layers": LACKS}),
    "qwen3_next_mlx": ("qwen3_next", {}),
    "lfm2_bias": ("lfm2", {"conv_bias": True, "block_auto_adjust_ff_dim": False}),
}

# In formats, beside bf16.
QUANTISED = (("qwen4_exp", "w4a16_g32"), ("qwen3_5_text", "w4a16_g32"),
             ("qwen3_5_text", "fp8_block"), ("qwen3_5", "nvfp4"), ("qwen3_5_moe_text", "fp8_block"),
             ("qwen3_5_moe", "fp8_channel"), ("qwen3_5_moe_text", "modelopt_nvfp4"), ("qwen3_next", "w4a16_g32_asym"),
             ("lara_mini", "w4a16_g32"), ("lara_mini", "fp8_block"), ("lara_mini", "nvfp4"),
             ("qwen3_next", "fp8_block"), ("qwen3_next_mlx", "mlx4"), ("qwen3_5_text", "mixed"), ("qwen3_5_text", "gptq4_g64"),
             ("nemotron_h", "modelopt_fp8"), ("nemotron_h_latent", "fp8_block"), ("nemotron_h", "modelopt_nvfp4"),
             ("granitemoehybrid_mamba", "w4a16_g32"), ("granitemoehybrid_moe", "fp8_block"), ("falcon_h1", "w4a16_g32_asym"),
             ("bamba", "w4a16_g32"), ("bamba", "fp8_block"), ("minimax", "w4a16_g32"), ("minimax_m1", "fp8_block"),
             ("bailing_moe_linear", "w4a16_g32"), ("bailing_moe_linear", "fp8_channel"), ("bailing_hybrid", "nvfp4"),
             ("bailing_hybrid", "fp8_block"), ("bailing_hybrid", "w4a16_g32_asym"),
             ("recurrent_gemma", "w4a16_g32"), ("recurrent_gemma", "fp8_channel"), ("recurrent_gemma", "nvfp4"),
             ("minimax_text_01", "nvfp4"), ("minimax_stacked", "w4a16_g32_asym"),
             ("mamba2", "fp8_block"), ("falcon_mamba", "w8a16_channel"), ("jamba", "w4a16_g32"), ("jamba", "fp8_block"),
             ("lfm2", "w4a16_g32"), ("lfm2_moe", "fp8_channel"), ("lfm2_moe", "nvfp4"), ("qwen3_5_text", "fp16"))
