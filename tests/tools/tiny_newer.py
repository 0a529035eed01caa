"""Families of newer_families.py for tiny_checkpoint.py, which explains TYPES and FAMILIES."""

from tiny_mixtures import EXPERTS, LACKS, LATENT, LOCAL, NO_HEAD, ROUTED, YARN, by_type

FACTORS = {"attention_bias": False, "attention_multiplier": 0.05, "embedding_multiplier": 6.0, "logits_scaling": 4.0,
           "residual_multiplier": 0.4}
SARVAM = {"n_routed_experts": LACKS, "num_experts": 8, "n_shared_experts": LACKS, "num_shared_experts": 1, "n_group": 1}

LFM3 = by_type({"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}, {"rope_theta": 10000.0}) | {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"], "conv_L_cache": 7, "conv_bias": False,
    "rms_norm_eps": LACKS, "norm_eps": 1e-5, "hidden_act": LACKS, "attention_bias": False, "use_sandwich_norm": True,
    "use_attention_gate": True, "tie_word_embeddings": True}

TYPES = {
    "granitemoeshared": ("GraniteMoeSharedForCausalLM", NO_HEAD | LOCAL | FACTORS | {"shared_intermediate_size": 96}),
    # four sorts of layers: with and without a window, with two thetas and no RoPE
    "granite_swa": ("GraniteSWAForCausalLM", NO_HEAD | FACTORS | {
        "num_hidden_layers": 4, "mlp_bias": False, "tie_word_embeddings": True, "sliding_window": 24, "kinds": "FSSF",
        "layer_rope_theta": [0, 10000.0, 500000.0, 10000.0]}),
    "granitemoe_swa": ("GraniteMoeSWAForCausalLM", NO_HEAD | LOCAL | FACTORS | {
        "shared_intermediate_size": 96, "sliding_window": 24, "kinds": "SF", "rope_theta": 50000.0}),
    "vaultgemma": ("VaultGemmaForCausalLM", {
        "hidden_act": LACKS, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "attention_bias": False,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 40, "sliding_window": 24, "kinds": "SF"}),
    "flex_olmo": ("FlexOlmoForCausalLM", NO_HEAD | {
        "num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "attention_bias": False, "norm_topk_prob": False,
        "rope_theta": 500000.0}),
    "sarvam_moe": ("SarvamMoEForCausalLM", ROUTED | SARVAM | {"use_qkv_bias": False, "use_qk_norm": True, "rope_theta": 8000000.0}),
    "sarvam_mla": ("SarvamMLAForCausalLM", LATENT | SARVAM | {"q_lora_rank": None, "rope": YARN}),
    "axk1": ("AXK1ForCausalLM", LATENT),
    "iquestcoder": ("IQuestCoderForCausalLM", {
        "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "clip_qkv": None,
        "use_sliding_window": False, "sliding_window": None}),
    "nanochat": ("NanoChatForCausalLM", NO_HEAD | {"hidden_act": "relu2", "attention_bias": False, "final_logit_softcapping": 15.0}),
    "fuyu": ("FuyuForCausalLM", NO_HEAD | {
        "rms_norm_eps": LACKS, "layer_norm_eps": 1e-5, "num_key_value_heads": LACKS, "hidden_act": "relu2", "qk_layernorm": True,
        "partial": 0.5, "rope_theta": 25000.0}),
    "mellum": ("MellumForCausalLM", EXPERTS | by_type(
        {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
         "original_max_position_embeddings": 128, "attention_factor": 1.2}, {"rope_theta": 500000.0}) | {
        "attention_bias": False, "kinds": "SF", "mlp_layer_types": ["sparse", "dense"], "norm_topk_prob": True}),
    "flint": ("FlintForCausalLM", EXPERTS | {
        "attention_bias": False, "kinds": "SFS", "num_hidden_layers": 3, "mlp_only_layers": [0], "decoder_sparse_step": 1,
        "norm_topk_prob": True, "shared_expert_intermediate_size": 96, "sliding_window": 24}),
    "kolibri1": ("Kolibri1ForCausalLM", EXPERTS | {
        "intermediate_size": LACKS, "kinds": "SF", "norm_topk_prob": False, "shared_expert_intermediate_size": 96, "sliding_window": 24}),
    "lfm3": ("Lfm3ForCausalLM", LFM3),
    "lfm3_vl": ("Lfm3VlForConditionalGeneration", LFM3),
    "apertus1p5": ("Apertus1p5ForConditionalGeneration", NO_HEAD | {
        "attention_bias": False, "rms_norm_eps": 1e-5, "hidden_act": "xielu", "rope_theta": 12e6, "output_vocab_size": 270,
        "rope": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_position_embeddings": 256}}),
    "glm46v": ("Glm46VForConditionalGeneration", {"rms_norm_eps": 1e-5, "partial": 0.5}),
}

FAMILIES = {
    "granitemoeshared_alone": ("granitemoeshared", {"shared_intermediate_size": 0}),
    "granite_swa_rope": ("granite_swa", {"layer_rope_theta": None, "num_hidden_layers": 5, "kinds": "FSSSF"}),
    "sarvam_moe_bias": ("sarvam_moe", {"use_qkv_bias": LACKS, "attention_bias": True, "use_qk_norm": False, "n_group": 2}),
    "nanochat_heads": ("nanochat", {"num_key_value_heads": 1, "attention_bias": True, "final_logit_softcapping": None}),
    "kolibri1_normalised": ("kolibri1", {"norm_topk_prob": True}),
    "lfm3_plain": ("lfm3", {"use_sandwich_norm": False, "use_attention_gate": False, "conv_bias": True, "attention_bias": True}),
}

QUANTISED = (
    ("granitemoeshared", "w4a16_g32"), ("granitemoeshared", "nvfp4"), ("granite_swa", "w4a16_g32"), ("granite_swa", "fp8_channel"),
    ("granitemoe_swa", "fp8_channel"), ("granitemoe_swa", "nvfp4"), ("vaultgemma", "nvfp4"), ("vaultgemma", "w4a16_g32"),
    ("flex_olmo", "w4a16_g32"), ("flex_olmo", "fp8_channel"), ("sarvam_moe", "modelopt_fp8"), ("sarvam_moe", "w4a16_g32"),
    ("sarvam_moe", "nvfp4"), ("sarvam_mla", "modelopt_fp8"), ("sarvam_mla", "nvfp4"), ("axk1", "fp8_block"), ("axk1", "w4a16_g32"),
    ("iquestcoder", "mlx4"), ("iquestcoder", "nvfp4"), ("nanochat", "w4a16_g32"), ("nanochat", "fp8_channel"), ("fuyu", "w4a16_g32"),
    ("mellum", "nvfp4"), ("mellum", "fp8_block"), ("flint", "w4a16_g32"), ("flint", "fp8_channel"), ("kolibri1", "fp8native_block"),
    ("kolibri1", "nvfp4"), ("kolibri1", "mxfp4"), ("lfm3", "w4a16_g32"),
    ("lfm3", "nvfp4"), ("lfm3_vl", "w4a16_g32"), ("apertus1p5", "w4a16_g32"), ("apertus1p5", "fp8_channel"))
