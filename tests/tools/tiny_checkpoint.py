#!/usr/bin/env python3
"""Writes small random checkpoints of every family and format, in both styles of configuration.

    tiny_checkpoint.py FAMILY FORMAT OUT [--hidden 2048 ...]      e.g. qwen3 w4a16_g32_asym OUT
    tiny_checkpoint.py --all OUT        one folder per checkpoint, and OUT/list.json

The same arguments always give the same bytes. The spread of the weights keeps activations near 1 and
log-probabilities varied, so that any error shows in the scores.
"""

import argparse
import os
import sys
import zlib

import numpy as np

import checkpoint_io as cio
import encoders
import families
import mixture_families
import library_encoders
import native_encoders
import tool_encoders
import recipe
import recurrent
import tiny_mixtures
import tiny_newer
import tiny_recurrent
from encoders import ByteScheme, IntScheme, MixedScheme, MxScheme, Nvfp4Scheme
from tiny_mixtures import LACKS

BOS, EOS, N_IDS = 256, 257, 258  # ids 0..255 are the bytes
SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

QWEN = {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 28}
LAYER_NORM = {"rms_norm_eps": LACKS, "layer_norm_eps": 1e-5}
GELU = {"hidden_act": LACKS, "hidden_activation": "gelu_pytorch_tanh"}
NO_HEAD = {"head_dim": LACKS}
TIED = {"tie_word_embeddings": True}
GPT = NO_HEAD | {
    "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "num_key_value_heads": LACKS,
    "names": {"intermediate_size": "n_inner", "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
              "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}}
OWN_CODE = NO_HEAD | {"rms_norm_eps": LACKS, "hidden_act": LACKS, "num_key_value_heads": LACKS, "rope": LACKS}

# model_type -> architecture, and how its keys differ from those of every file. Of this program, not keys:
# "rope" (the scaling, without theta; LACKS: no RoPE), "local" (theta of the layers with a window), "partial" (the
# rotated part of a head), "kinds" (layer_types: S sliding, F full, repeated), "names" (key of every file -> the type's)
TYPES = {
    "llama": ("LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}),
    "mistral": ("MistralForCausalLM", {}),
    "ministral": ("MinistralForCausalLM", {"sliding_window": 24, "kinds": "SF"}),
    "phi3": ("Phi3ForCausalLM", NO_HEAD),
    "qwen2": ("Qwen2ForCausalLM", NO_HEAD | QWEN),
    "qwen3": ("Qwen3ForCausalLM", {"attention_bias": False, **QWEN}),
    "gemma": ("GemmaForCausalLM", {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False} | TIED),
    "gemma2": ("Gemma2ForCausalLM", GELU | TIED | {
        "attention_bias": False, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 40, "sliding_window": 24, "kinds": "SF"}),
    "gemma3_text": ("Gemma3ForCausalLM", GELU | TIED | {
        "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "query_pre_attn_scalar": 40, "sliding_window": 24, "kinds": "SF", "local": 10000.0, "rope_theta": 1e6,
        "rope": {"rope_type": "linear", "factor": 8.0}}),
    "gemma4_text": ("Gemma4ForCausalLM", GELU | TIED | {
        "attention_bias": False, "attention_k_eq_v": False, "enable_moe_block": False, "global_head_dim": 64,
        "num_global_key_value_heads": None, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "final_logit_softcapping": 30.0, "sliding_window": 24, "kinds": "SF", "local": 10000.0, "rope_theta": 1e6,
        "rope": {"rope_type": "proportional", "partial_rotary_factor": 0.25}, "use_double_wide_mlp": False}),
    "gemma3n_text": ("Gemma3nForCausalLM", {
        "hidden_act": LACKS, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "attention_bias": False,
        "num_hidden_layers": 5, "kinds": "SSF", "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16, "altup_active_idx": 0,
        "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_num_inputs": 4, "laurel_rank": 16,
        "intermediate_size": [320, 320, 256, 320, 256], "activation_sparsity_pattern": [0.95, 0.8, 0.0, 0.5, 0.0],
        "final_logit_softcapping": 30.0, "sliding_window": 24, "local": 10000.0, "rope_theta": 1e6,
        "vocab_size_per_layer_input": 290}),
    "phi": ("PhiForCausalLM", NO_HEAD | LAYER_NORM | {"hidden_act": "gelu_new", "qk_layernorm": False, "partial": 0.5}),
    "glm": ("GlmForCausalLM", {"attention_bias": True, "rms_norm_eps": 1.5625e-07, "partial": 0.5}),
    "glm4": ("Glm4ForCausalLM", {"attention_bias": True, "rms_norm_eps": 1.5625e-07, "partial": 0.5}),
    "glm4v": ("Glm4vForConditionalGeneration", {"rms_norm_eps": 1e-5, "partial": 0.5}),
    "llava": ("LlavaForConditionalGeneration", {"rope_theta": 500000.0}),
    "smolvlm": ("SmolVLMForConditionalGeneration", {"rms_norm_eps": 1e-5}),
    "olmo": ("OlmoForCausalLM", NO_HEAD | {"rms_norm_eps": LACKS, "attention_bias": False, "clip_qkv": 1.5}),
    "olmo2": ("Olmo2ForCausalLM", NO_HEAD | {"attention_bias": False, "rms_norm_eps": 1e-5}),
    "olmo3": ("Olmo3ForCausalLM", NO_HEAD | {
        "attention_bias": False, "rms_norm_eps": 1e-5, "sliding_window": 24, "kinds": "SF", "local": 500000.0,
        "rope_theta": 500000.0, "rope": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}}),
    "granite": ("GraniteForCausalLM", NO_HEAD | {
        "attention_bias": False, "mlp_bias": False, "attention_multiplier": 0.05, "embedding_multiplier": 6.0,
        "logits_scaling": 4.0, "residual_multiplier": 0.4}),
    "hyperclovax": ("HyperCLOVAXForCausalLM", {
        "attention_bias": False, "mlp_bias": False, "attention_multiplier": 0.05, "embedding_multiplier": 6.0,
        "logits_scaling": 0.25, "residual_multiplier": 0.4, "use_post_norm": True}),
    "jais2": ("Jais2ForCausalLM", LAYER_NORM | {"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True}),
    "cohere": ("CohereForCausalLM", NO_HEAD | LAYER_NORM | TIED | {
        "attention_bias": False, "logit_scale": 0.25, "use_qk_norm": False}),
    "cohere2": ("Cohere2ForCausalLM", LAYER_NORM | TIED | {
        "attention_bias": False, "logit_scale": 0.25, "sliding_window": 24, "kinds": "SF"}),
    "smollm3": ("SmolLM3ForCausalLM", NO_HEAD | QWEN | TIED | {
        "attention_bias": False, "mlp_bias": False, "no_rope_layers": [1, 0], "rope_theta": 2e6}),
    "ministral3": ("Ministral3ForCausalLM", {"rms_norm_eps": 1e-5, "sliding_window": None, "rope_theta": 1e6, "rope": {
        "rope_type": "yarn", "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}}),
    "gpt_neox": ("GPTNeoXForCausalLM", NO_HEAD | LAYER_NORM | {
        "num_key_value_heads": LACKS, "attention_bias": True, "hidden_act": "gelu", "use_parallel_residual": True,
        "partial": 0.25}),
    "falcon": ("FalconForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "activation": "gelu", "alibi": False,
        "bias": False, "multi_query": True, "new_decoder_architecture": True, "num_ln_in_parallel_attn": None,
        "parallel_attn": True, "names": {"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"}}),
    "stablelm": ("StableLmForCausalLM", NO_HEAD | LAYER_NORM | {
        "qk_layernorm": False, "use_parallel_residual": False, "use_qkv_bias": True, "partial": 0.25}),
    "starcoder2": ("Starcoder2ForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh", "use_bias": True,
        "sliding_window": 24}),
    "gpt2": ("GPT2LMHeadModel", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "activation_function": "gelu_new",
        "num_key_value_heads": LACKS, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "rope": LACKS,
        "names": {"intermediate_size": "n_inner", "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
                  "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}}),
    "opt": ("OPTForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "hidden_act": LACKS, "activation_function": "relu", "num_key_value_heads": LACKS,
        "do_layer_norm_before": True, "enable_bias": True, "rope": LACKS, "names": {"intermediate_size": "ffn_dim"}}),
    "bloom": ("BloomForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "num_key_value_heads": LACKS,
        "intermediate_size": LACKS, "max_position_embeddings": LACKS, "rope": LACKS,
        "names": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}}),
    "mpt": ("MptForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "num_key_value_heads": LACKS,
        "intermediate_size": LACKS, "no_bias": True, "rope": LACKS,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 1.5},
        "names": {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                  "max_position_embeddings": "max_seq_len"}}),
    "nemotron": ("NemotronForCausalLM", {
        "rms_norm_eps": LACKS, "norm_eps": 1e-5, "hidden_act": "relu2", "attention_bias": False, "mlp_bias": False,
        "partial": 0.5}),
    "exaone4": ("Exaone4ForCausalLM", NO_HEAD | {
        "rms_norm_eps": 1e-5, "sliding_window": 24, "sliding_window_pattern": 2, "kinds": "SF", "rope": {
            "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}}),
    "ernie4_5": ("Ernie4_5ForCausalLM", TIED | {"rms_norm_eps": 1e-5, "use_bias": False, "rope_theta": 500000.0}),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", TIED | {
        "rms_norm_eps": 1e-5, "attention_bias": False,
        "rope": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                 "mscale_all_dim": 1.0}}),
    "seed_oss": ("SeedOssForCausalLM", {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False}),
    "cwm": ("CwmForCausalLM", {
        "mlp_bias": False, "rms_norm_eps": 1e-5, "sliding_window": 24, "layer_types": ["full_attention", "sliding_attention"],
        "rope_theta": 1e6, "rope": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 256}}),
    "arcee": ("ArceeForCausalLM", {"attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "hidden_act": "relu2"}),
    "apertus": ("ApertusForCausalLM", NO_HEAD | {
        "attention_bias": False, "rms_norm_eps": 1e-5, "hidden_act": "xielu", "rope_theta": 12e6, "rope": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}}),
    "helium": ("HeliumForCausalLM", {"attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-8}),
    "bitnet": ("BitNetForCausalLM", NO_HEAD | TIED | {"attention_bias": False, "rms_norm_eps": 1e-5, "hidden_act": "relu2"}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT | TIED | {
        "activation_function": "gelu", "multi_query": True, "scale_attn_weights": True, "rope": LACKS}),
    "gptj": ("GPTJForCausalLM", GPT | {"activation_function": "gelu_new", "rotary_dim": 24, "rope": LACKS}),
    "codegen": ("CodeGenForCausalLM", GPT | {
        "activation_function": "gelu_new", "rotary_dim": 24, "num_attention_heads": 8, "rope": LACKS}),
    "qwen": ("QWenLMHeadModel", OWN_CODE | {
        "layer_norm_epsilon": 1e-6, "intermediate_size": 640, "kv_channels": 48, "no_bias": True, "seq_length": 2048,
        "rotary_emb_base": 10000, "use_dynamic_ntk": True, "use_logn_attn": True, "scale_attn_weights": True}),
    "chatglm": ("ChatGLMModel", OWN_CODE | {
        "layernorm_epsilon": 1e-5, "kv_channels": 48, "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True,
        "multi_query_attention": True, "multi_query_group_num": 2, "post_layer_norm": True, "rope_ratio": 500,
        "names": {"intermediate_size": "ffn_hidden_size", "num_hidden_layers": "num_layers",
                  "max_position_embeddings": "seq_length"}}),
    "gpt_neo": ("GPTNeoForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "activation_function": "gelu_new", "window_size": 24,
        "num_attention_heads": 24, "num_key_value_heads": LACKS, "rope": LACKS, "attention_types": [[["global", "local"], 1]],
        "names": {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}}),
    "persimmon": ("PersimmonForCausalLM", NO_HEAD | LAYER_NORM | {
        "num_key_value_heads": LACKS, "hidden_act": "relu2", "qk_layernorm": True, "partial": 0.5, "rope_theta": 25000.0}),
    "biogpt": ("BioGptForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": LACKS, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "num_key_value_heads": LACKS, "scale_embedding": True,
        "rope": LACKS}),
    "phi4_multimodal": ("Phi4MultimodalForCausalLM", NO_HEAD | {"rms_norm_eps": 1e-5, "sliding_window": None, "partial": 0.75}),
    "phi4mm": ("Phi4MMForCausalLM", NO_HEAD | TIED | {
        "rms_norm_eps": 1e-5, "sliding_window": 24, "partial": 0.75, "original_max_position_embeddings": 100, "rope": {
            "rope_type": "longrope", "short_factor": [1 + i / 12 for i in range(18)],
            "long_factor": [1.1 + i * i / 16 for i in range(18)]}}),
    "exaone": ("ExaoneForCausalLM", NO_HEAD | {
        "rms_norm_eps": LACKS, "layer_norm_epsilon": 1e-5, "hidden_act": LACKS, "activation_function": "silu", "rope_theta": 1e6,
        "rope": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                 "original_max_position_embeddings": 64}, "names": {"num_hidden_layers": "num_layers"}}),
    "internlm3": ("InternLM3ForCausalLM", {"rms_norm_eps": 1e-5, "qkv_bias": True, "bias": True, "rope_theta": 5e5}),
    "minicpmv": ("MiniCPMV", {"attention_bias": False, "mlp_bias": False, "version": 4.0}),
    "PanguEmbedded": ("PanguEmbeddedForCausalLM", NO_HEAD | {"bias": True}),
    "minicpm": ("MiniCPMForCausalLM", NO_HEAD | {
        "attention_bias": False, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 96}),
    "baichuan": ("BaichuanForCausalLM", NO_HEAD | {
        "num_key_value_heads": LACKS, "model_max_length": 2048, "rope": LACKS, "z_loss_weight": 0}),
    "mimo": ("MiMoForCausalLM", NO_HEAD | QWEN | {"attention_bias": True, "num_nextn_predict_layers": 1}),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", NO_HEAD | {
        "attention_bias": False, "attention_multiplier": 0.05, "embedding_multiplier": 6.0, "logits_scaling": 4.0,
        "residual_multiplier": 0.4, "num_local_experts": 0, "shared_intermediate_size": 320,
        "position_embedding_type": "rope", "layer_types": ["attention", "attention"]}),
    "nemotron-nas": ("DeciLMForCausalLM", NO_HEAD | {
        "attention_bias": False, "mlp_bias": False, "intermediate_size": None, "num_key_value_heads": None,
        "num_hidden_layers": 5, "block_configs": [
            {"attention": {"no_op": group is None, "n_heads_in_group": group, "replace_with_linear": False},
             "ffn": {"no_op": mult is None, "ffn_mult": mult, "replace_with_linear": False}}
            for group, mult in ((None, 2.0), (2, 3.0), (4, 1.5), (1, None), (None, 2.5))]}),
    "molmo": ("MolmoForCausalLM", NO_HEAD | {
        "rms_norm_eps": LACKS, "layer_norm_eps": 1e-6, "hidden_act": LACKS, "intermediate_size": 640, "qkv_bias": True,
        "attention_layer_norm": False, "norm_after": False, "layer_norm_type": "rms", "clip_qkv": None,
        "weight_tying": False}),
} | tiny_mixtures.TYPES | tiny_recurrent.TYPES | tiny_newer.TYPES

# Family -> (model_type, differences)
FAMILIES = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_linear": ("llama", {"rope": {"rope_type": "linear", "factor": 2.5}}),
    "llama_yarn": ("llama", {"rope": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 24.0,
                                      "original_max_position_embeddings": 64}}),
    "llama_yarn_mscale": ("llama", {"rope": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.8,
                                             "mscale_all_dim": 1.2, "truncate": False,
                                             "original_max_position_embeddings": 128}}),
    "llama_llama3": ("llama", {"rope_theta": 500000.0, "rope": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256}}),
    # no head_dim in the file, one key-value head, and the keys of SmolLM2's own file
    "llama_smollm2": ("llama", {"head_dim": LACKS, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                                "tie_word_embeddings": True, "rope_theta": 100000,
                                "is_llama_config": True, "rope_interleaved": False}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral_swa": ("mistral", {"sliding_window": 24}),
    "phi3": ("phi3", {"sliding_window": None}),
    # a part of each head is rotated; a window
    "phi3_partial": ("phi3", {"sliding_window": 24, "rms_norm_eps": 1e-5, "rope": {
        "rope_type": "default", "partial_rotary_factor": 0.75}}),
    "qwen2": ("qwen2", {}),
    "qwen2_swa": ("qwen2", {"use_sliding_window": True, "sliding_window": 20,
                            "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3_tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 48}),
}

FAMILIES |= {kind: (kind, {}) for kind in TYPES if kind not in FAMILIES} | {
    "phi3_longrope": ("phi3", {"sliding_window": None, "original_max_position_embeddings": 100, "rope": {
        "rope_type": "longrope", "short_factor": [1 + i / 12 for i in range(24)],
        "long_factor": [1.1 + i * i / 16 for i in range(24)]}}),
    "gemma4_e": ("gemma4_text", {"hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                                 "num_hidden_layers": 4}),
    "gemma4_e_untied": ("gemma4_text", {"hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2, "num_hidden_layers": 4,
                                        "tie_word_embeddings": False}),
    "gemma3n_three": ("gemma3n_text", {"altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False,
                                       "intermediate_size": 320, "activation_sparsity_pattern": None, "num_kv_shared_layers": 0}),
    "gemma4_k_eq_v": ("gemma4_text", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "phi_qknorm": ("phi", {"qk_layernorm": True}),
    "hyperclovax_plain": ("hyperclovax", {"use_post_norm": False, "attention_multiplier": None}),
    "cohere_qknorm": ("cohere", {"use_qk_norm": True}),
    "gptneox_sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "falcon_new_ln1": ("falcon", {"num_ln_in_parallel_attn": 1}),
    "falcon_7b": ("falcon", {"new_decoder_architecture": False}),
    "falcon_rw": ("falcon", {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False,
                             "alibi": True, "bias": True, "rope": LACKS}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": False}),
    "gpt2_by_layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "opt_350m": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 96}),
    "bloom_6_heads": ("bloom", {"num_attention_heads": 6}),  # ALiBi of a number that is no power of two
    "mpt_6_heads": ("mpt", {"num_attention_heads": 6}),
    "gpt_bigcode_heads": ("gpt_bigcode", {"multi_query": False}),
    "persimmon_plain": ("persimmon", {"qk_layernorm": False, "hidden_act": "gelu_new"}),
    "biogpt_untied": ("biogpt", {"tie_word_embeddings": False, "scale_embedding": False}),
    "qwen_older": ("qwen", {"names": {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "intermediate_size": "ffn_hidden_size", "max_position_embeddings": "n_positions"}}),
    "baichuan_13b": ("baichuan", {"max_position_embeddings": LACKS, "num_attention_heads": 6}),  # ALiBi
    "baichuan1": ("baichuan", {"z_loss_weight": LACKS}),
    "granitemoehybrid_no_rope": ("granitemoehybrid", {"position_embedding_type": None, "rope": LACKS}),
    "exaone4_full": ("exaone4", {"sliding_window": None, "sliding_window_pattern": 0, "kinds": "F"}),
} | tiny_mixtures.FAMILIES | tiny_recurrent.FAMILIES | tiny_newer.FAMILIES

# The families that the worker opens: those of --all.
OPEN = (
    *(f for f in FAMILIES if FAMILIES[f][0] in ("llama", "mistral", "phi3", "qwen2", "qwen3")),
    "gemma", "gemma2", "gemma3_text", "gemma4_text", "gemma4_e", "gemma4_e_untied", "gemma4_k_eq_v",
    "gemma3n_text", "gemma3n_three", "gpt2", "gpt2_by_layer", "olmo2",
    "phi", "phi_qknorm", "gpt_neox", "gptneox_sequential", "falcon", "falcon_new_ln1", "falcon_7b", "falcon_rw",
    "glm4v", "llava", "smolvlm",
    "glm", "glm4", "ministral", "olmo", "olmo3", "granite", "cohere", "cohere_qknorm", "cohere2", "exaone4", "exaone4_full",
    "ernie4_5", "hunyuan_v1_dense", "seed_oss", "bitnet",
    "starcoder2", "opt", "opt_350m", "bloom", "bloom_6_heads", "mpt", "mpt_6_heads",
    "smollm3", "ministral3", "helium", "cwm", "arcee", "apertus", "nemotron",
    "gpt_bigcode", "gpt_bigcode_heads", "gptj", "qwen", "qwen_older", "gpt_neo", "exaone", "internlm3", "chatglm", "minicpm", "mimo",
    "persimmon", "persimmon_plain", "biogpt", "biogpt_untied", "phi4_multimodal", "phi4mm",
    "hyperclovax", "hyperclovax_plain", "jais2",
    "baichuan", "baichuan_13b", "baichuan1", "minicpmv", "PanguEmbedded",
    "granitemoehybrid", "granitemoehybrid_no_rope", "nemotron-nas", "molmo", "codegen",
    "stablelm", "stablelm_parallel",
    *tiny_mixtures.TYPES, *tiny_mixtures.FAMILIES, *tiny_recurrent.TYPES, *tiny_recurrent.FAMILIES,
    *tiny_newer.TYPES, *tiny_newer.FAMILIES,
)


def _formats():
    out = {"bf16": ("bfloat16", None), "fp16": ("float16", None), "fp32": ("float32", None),
           "nvfp4": ("bfloat16", Nvfp4Scheme()), "nvfp4_fp16": ("float16", Nvfp4Scheme())}
    for bits in (2, 3, 4, 6, 8):
        for group, tag in ((32, "_g32"), (0, "_channel")):
            out[f"w{bits}a16{tag}"] = ("bfloat16", IntScheme(bits, group))
            out[f"w{bits}a16{tag}_asym"] = ("bfloat16", IntScheme(bits, group, symmetric=False))
    out["w4a16_g32_fp16"] = ("float16", IntScheme(4, 32))
    out["w4a16_g32_asym_fp32"] = ("float32", IntScheme(4, 32, symmetric=False))
    out["w4a16_g32_asym_oldzero"] = ("bfloat16", IntScheme(4, 32, False, zero_unpacked=True))
    out["w4a16_g32_gidx"] = ("bfloat16", IntScheme(4, 32, actorder="group"))
    out["w3a16_g32_gidx_asym"] = ("float16", IntScheme(3, 32, False, "group"))
    out["w4a16_block"] = ("bfloat16", IntScheme(4, 128, rows=128))
    out["w4a16_block_asym"] = ("bfloat16", IntScheme(4, 128, False, rows=128))
    out["w3a16_block_asym_fp32"] = ("float32", IntScheme(3, 56, False, rows=24))
    out["w4a16_g32_actorder"] = ("bfloat16", IntScheme(4, 32, actorder="weight"))
    for is_float, tag in ((True, "fp8"), (False, "int8")):
        for rows, group, kind in ((0, 0, "tensor"), (1, 0, "channel"), (1, 32, "g32"), (128, 128, "block")):
            out[f"{tag}_{kind}"] = ("bfloat16", ByteScheme(is_float, rows, group, activations="token"))
    out |= {f"int8_{kind}_asym": ("bfloat16", ByteScheme(False, rows, group, False)) for rows, group, kind in (
        (0, 0, "tensor"), (1, 0, "channel"), (1, 32, "g32"))}
    out["fp8_static"] = ("bfloat16", ByteScheme(rows=0, activations="tensor"))
    out["fp8_channel_fp16"] = ("float16", ByteScheme())
    out["fp8_block_fp32"] = ("float32", ByteScheme(rows=24, group_size=56))
    out["int8_g32_asym_fp32"] = ("float32", ByteScheme(False, 1, 32, False))
    for bits in (4, 6, 8):
        out[f"mxfp{bits}"] = ("bfloat16", MxScheme(bits))
        out[f"mxfp{bits}_fp16"] = ("float16", MxScheme(bits))
    out["mixed"] = ("bfloat16", MixedScheme((
        (r".*(q_proj|in_proj_qkv)$", ByteScheme(rows=128, group_size=128)), (r".*k_proj$", ByteScheme(False, symmetric=False)),
        (r".*(v_proj|in_proj_z)$", MxScheme(4)), (r".*o(ut)?_proj$", MxScheme(8)), (r".*\.1\.mlp\.up_proj$", None),
        (r".*gate_proj$", Nvfp4Scheme()), (r".*up_proj$", IntScheme(4, 32, False)),
        (r".*down_proj$", ByteScheme(rows=0, activations="token")))))
    return out | native_encoders.NATIVE | tool_encoders.TOOLS | library_encoders.LIBRARIES


FORMATS = _formats()

# The checkpoints of --all: every family once, every format once.
ALL = ([(f, "bf16") for f in OPEN] + [("llama", f) for f in FORMATS if f != "bf16"] +
       [("qwen2", "w4a16_g32_asym"), ("qwen3", "nvfp4"), ("mistral_swa", "w8a16_channel"),
        ("phi3", "w4a16_g32"), ("phi3_partial", "nvfp4"), ("gemma2", "w4a16_g32"), ("gemma3_text", "nvfp4"),
        ("olmo2", "w4a16_g32_asym"), ("gpt2", "fp16"),
        ("falcon", "w4a16_g32"), ("falcon", "nvfp4"), ("gpt_neox", "w4a16_g32_asym"), ("phi_qknorm", "w4a16_g32"),
        ("starcoder2", "nvfp4"), ("opt_350m", "w4a16_g32"), ("bloom", "w4a16_g32_asym"), ("mpt", "w4a16_g32"),
        ("cohere", "w4a16_g32"), ("cohere_qknorm", "nvfp4"), ("cohere2", "w4a16_g32_asym"), ("glm4", "nvfp4"),
        ("granite", "w4a16_g32"), ("smollm3", "w8a16_channel"), ("ministral3", "nvfp4"), ("helium", "w4a16_g32"),
        ("smolvlm", "w4a16_g32"), ("arcee", "nvfp4"), ("apertus", "w4a16_g32"), ("nemotron", "w4a16_g32_asym"),
        ("olmo", "w4a16_g32"), ("olmo3", "nvfp4"), ("exaone4", "w4a16_g32_asym"), ("ernie4_5", "w8a16_channel"),
        ("hunyuan_v1_dense", "nvfp4"), ("seed_oss", "w4a16_g32"), ("bitnet", "w4a16_g32"), ("bitnet", "nvfp4"),
        ("gpt_bigcode", "w4a16_g32"), ("gptj", "nvfp4"), ("qwen", "w4a16_g32"), ("chatglm", "nvfp4"),
        ("minicpm", "w4a16_g32_asym"), ("mimo", "w8a16_channel"), ("granitemoehybrid", "nvfp4"), ("nemotron-nas", "w4a16_g32"),
        ("molmo", "nvfp4"), ("codegen", "w4a16_g32"), ("persimmon", "nvfp4"),
        ("biogpt_untied", "w4a16_g32"), ("phi4mm", "w4a16_g32_asym"), ("phi4_multimodal", "nvfp4"),
        ("hyperclovax", "w4a16_g32"), ("jais2", "w4a16_g32_asym"), ("baichuan_13b", "gptq4_g64"),
        ("stablelm_parallel", "w4a16_g32"), ("deepseek_v3", "w4a16_g32"), ("deepseek_v2_lite", "fp8_block"),
        ("llama_bias", "w4a16_g32"), ("llama_tied", "w4a16_g32"), ("qwen3_tied", "fp16"),
        ("gemma4_e", "nvfp4"), ("gemma4_e_untied", "gemma_int"), ("gemma3n_text", "nvfp4"),
        ("gemma4_k_eq_v", "w4a16_g32"), ("phi3_longrope", "w4a16_g32"),
        ("qwen3", "fp8_block"), ("phi3", "fp8_block"), ("qwen2", "mixed"), ("gemma2", "int8_channel"), ("granite", "fp8_channel"),
        ("mistral_swa", "mxfp4"), ("falcon", "mxfp8"), ("llama_bias", "mixed"),
        ("qwen3", "fp8native_block"), ("phi3", "modelopt_nvfp4"), ("phi3", "gptq4_g64"), ("qwen2", "awq_g64")] +
       list(tiny_mixtures.QUANTISED + tiny_recurrent.QUANTISED + tiny_newer.QUANTISED))

SIZES = {"hidden": 192, "inner": 320, "heads": 4, "kv_heads": 2, "head": 48, "layers": 2,
         "vocab": 300}


def common_keys(family, sizes, scheme):
    """The keys of both styles of config.json, and the keys that only this program writes."""
    kind, changes = FAMILIES[family]
    architecture, own = TYPES[kind]
    keys = {
        "architectures": [architecture], "attention_dropout": 0.0, "bos_token_id": BOS,
        "eos_token_id": EOS, "head_dim": sizes["head"], "hidden_act": "silu",
        "hidden_size": sizes["hidden"], "initializer_range": 0.02,
        "intermediate_size": sizes["inner"], "max_position_embeddings": 2048, "model_type": kind,
        "num_attention_heads": sizes["heads"], "num_hidden_layers": sizes["layers"],
        "num_key_value_heads": sizes["kv_heads"], "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": sizes["vocab"],
    } | own | changes
    ours = {name: keys.pop(name, None) for name in ("rope", "local", "partial", "kinds", "names")}
    ours["theta"] = keys.pop("rope_theta", 10000.0)
    if kind == "gemma4_text":
        keys["vocab_size_per_layer_input"] = sizes["vocab"]
    if kind in ("chatglm", "molmo"):  # beside the key of every file, which tests read
        keys[{"chatglm": "padded_vocab_size", "molmo": "embedding_size"}[kind]] = sizes["vocab"]
    if ours["kinds"]:
        names = {"S": "sliding_attention", "F": "full_attention"}
        n = keys["num_hidden_layers"]
        keys["layer_types"] = [names[ours["kinds"][i % len(ours["kinds"])]] for i in range(n)]
    keys = {(ours["names"] or {}).get(key, key): value for key, value in keys.items() if value is not LACKS}
    if scheme:
        heads = {"chatglm": "transformer.output_layer", "molmo": "model.transformer.ff_out", "biogpt": "output_projection"}
        head = heads.get(kind, "lm_head")
        keys[getattr(scheme, "key", "quantization_config")] = encoders.quantization_config(scheme, [head])
    return keys, ours


OUTER = ("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "tie_word_embeddings",
         "quantization_config", "quantization", "vocab_size")


def wrapped(config):
    """The same with the text model's keys in text_config, if the family is a wrapper."""
    kind = config["model_type"]
    if kind not in families.WRAPPERS:
        return config
    text = {k: v for k, v in config.items() if k not in OUTER or k == "vocab_size"} | {"model_type": families.TEXTS[kind]}
    return {k: config[k] for k in OUTER if k in config} | {"text_config": text}


FLAT = ("fuyu", "glm4v", "glm4v_moe")  # wrappers that transformers 4 has read without text_config


def configs(family, dtype, sizes, scheme):
    """config.json as (transformers 5 writes it, transformers 4 writes it)."""
    new, old = plain_configs(family, dtype, sizes, scheme)
    return wrapped(new), old if old["model_type"] in FLAT else wrapped(old)


def plain_configs(family, dtype, sizes, scheme):
    common, ours = common_keys(family, sizes, scheme)
    new = common | {"dtype": dtype, "transformers_version": "5.17.0"}
    old = common | {"torch_dtype": dtype, "transformers_version": "4.57.6"}
    if common.get("use_sliding_window"):
        new["layer_types"] = [
            "sliding_attention" if i >= common["max_window_layers"] else "full_attention"
            for i in range(sizes["layers"])]
    rope, theta, part = ours["rope"], ours["theta"], ours["partial"]
    if rope is LACKS:
        return new, old
    new_rope = {"rope_theta": float(theta)} | (rope or {"rope_type": "default"})
    old |= {"rope_theta": theta, "rope_scaling": rope}
    if part:
        new_rope["partial_rotary_factor"] = part
        old["rotary_pct" if common["model_type"] == "gpt_neox" else "partial_rotary_factor"] = part
    if common["model_type"] == "deepseek_v4":
        part = common["qk_rope_head_dim"] / common["head_dim"]
        new_rope = {"main": {"rope_type": "default", "rope_theta": float(theta), "partial_rotary_factor": part},
                    "compress": new_rope | {"rope_theta": common["compress_rope_theta"], "attention_factor": 1.0,
                                            "partial_rotary_factor": part}}
    if ours["local"]:
        local = {"rope_theta": ours["local"], "rope_type": "default"}
        new_rope = {"full_attention": new_rope, "sliding_attention": local}
        if common["model_type"] in ("gemma3_text", "gemma3n_text"):
            old["rope_local_base_freq"] = ours["local"]
    new["rope_parameters"] = new_rope
    if common["model_type"] == "gemma4_text":  # no other style was ever written
        old = new | {"transformers_version": "5.10.0"}
    return new, old


def values(name, shape, kind, seed, tied):
    """Deterministic fp32 content: a function of the tensor's name and the seed only."""
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    x = np.asarray(rng.standard_normal(shape, dtype=np.float32), np.float32)
    if kind.startswith("table "):
        return np.argsort(rng.random((shape[0], int(kind[6:]))), axis=1)[:, :shape[1]].astype(np.int64)
    kind = kind.removeprefix("wide ") if kind.removeprefix("wide ") in ("norm", *recurrent.KINDS) else kind
    kind = "stack" if kind.startswith("flat stack ") else kind
    if kind in recurrent.KINDS:
        return np.asarray(recurrent.values(kind, shape, rng.random(shape, np.float32), x), np.float32)
    if kind in ("norm", "shifted norm"):
        return (kind == "norm") + np.float32(0.2) * x
    if kind == "small norm":
        return np.float32(0.4) + np.float32(0.08) * x
    if kind == "half":
        return np.float32(0.5) + 0 * x
    if kind == "tiny":
        return np.float32(-1e-6) + 0 * x
    if kind == "positions":
        return np.float32(0.5) * x
    if kind == "bias":
        return np.float32(0.3) * x
    if kind == "embed" and not tied:
        return x
    if kind == "wide bias":
        return np.float32(0.1) * x
    if kind == "long head":
        return x * np.exp(rng.standard_normal((shape[0], 1), dtype=np.float32))
    gain = {"linear": 1.0, "gates": 1.0, "columns": 1.0, "head": 2.0, "embed": 2.0, "scaled embed": 0.5, "stack": 1.0,
            "column stack": 1.0, "heads": 1.0, "blend": 1.0, "router": 3.0, "wide router": 3.0}[kind]
    # a few columns are larger than others, as in real models, so that scales differ
    spread = np.exp(np.float32(0.5) * rng.standard_normal(shape[-1], dtype=np.float32))
    return x * spread * np.float32(gain / np.sqrt(shape[-1]))


def stack_batch(name, shape, encoder, dtype, plain):
    """A quantised stack of experts: a part of all its matrices in one tensor. NAME may end in ".weight" or not."""
    specs = encoder.specs(*shape[1:], dtype)
    if hasattr(encoder, "kinds"):  # a module of its own
        name = name.removesuffix("weight")

    def encode():
        experts = [dict(encoder.encode(w, dtype)) for w in plain()]
        return [np.stack([e[part] for e in experts]) for part in specs]
    return cio.Batch([(name + (part if name.endswith(".") else part.removeprefix("weight")), kind, (shape[0], *size))
                      for part, (kind, size) in specs.items()], encode)


def batches(model, dtype, scheme, seed):
    st_dtype, tied = SAFETENSORS[dtype], model.head is None
    for name, shape, kind in recipe.tensors(model):
        def plain(n=name, s=shape, k=kind):
            return values(n, s, k, seed, tied)
        stem = name.removesuffix("weight")
        encoder = encoders.part_of(scheme, stem[:-1]) if kind in getattr(scheme, "kinds", ("linear", "stack")) else None
        if kind == "head":
            encoder = getattr(scheme, "head", None) or encoder
        if encoder is None:
            own = "F32" if kind.startswith("wide ") else "I64" if kind.startswith("table ") else st_dtype
            yield cio.Batch([(name, own, shape)], lambda p=plain, d=own: [p() if d == "I64" else cio.encode(p(), d)])
            continue
        if kind == "stack":
            yield stack_batch(name, shape, encoder, st_dtype, plain)
            continue
        specs = encoder.specs(*shape, st_dtype)
        yield cio.Batch([(stem + s, *spec) for s, spec in specs.items()],
                        lambda p=plain, e=encoder, s=tuple(specs): [
                            dict(e.encode(p(), st_dtype))[k] for k in s])


def byte_alphabet():
    """GPT-2's printable character for each byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(other)) for b in range(256)]


def write_tokenizer(folder):
    """A byte-level tokenizer without merges: one token per byte."""
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    special = {"<s>": BOS, "</s>": EOS}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for t, i in special.items()]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    cio.write_json(os.path.join(folder, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab | special, "merges": []}})
    cio.write_json(os.path.join(folder, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "model_max_length": 2048, "clean_up_tokenization_spaces": False})


def write(folder, family="llama", fmt="bf16", seed=1, shards=1, **sizes):
    """Writes one checkpoint with config.json and config.transformers4.json."""
    if family not in FAMILIES:
        raise ValueError(f"family {family} is unknown; known: {', '.join(FAMILIES)}")
    fmt = "bf16" if fmt == "dense" else fmt
    if fmt not in FORMATS:
        raise ValueError(f"format {fmt} is unknown; known: {', '.join(FORMATS)}")
    dtype, scheme = FORMATS[fmt]
    sizes = SIZES | {k: v for k, v in sizes.items() if v}
    if "num_key_value_heads" in FAMILIES[family][1]:
        sizes["kv_heads"] = FAMILIES[family][1]["num_key_value_heads"]
    new, old = configs(family, dtype, sizes, scheme)
    kind = new["model_type"]
    names = mixture_families.names_of(families.TEXTS.get(kind, kind), family.rsplit("_", 1)[-1])  # experts as tools save them
    model = families.describe(new, names)
    if "ignore" in new.get("quantization_config", {}):  # the list of both styles
        new["quantization_config"]["ignore"] += [
            name.removesuffix(".weight") for name, _, kind in recipe.tensors(model) if kind.endswith(("router", "gates"))]
    os.makedirs(folder, exist_ok=True)
    if getattr(scheme, "beside", ""):
        cio.write_json(os.path.join(folder, scheme.beside), new.pop("quantization_config"))
        del old["quantization_config"]
    cio.write_sharded(folder, list(batches(model, dtype, scheme, seed)), shards)
    cio.write_json(os.path.join(folder, "config.json"), new)
    cio.write_json(os.path.join(folder, "config.transformers4.json"), old)
    write_tokenizer(folder)


# Seeds of checkpoints whose first draw had a router's choice so close that 16 bits flip it.
REDRAWN = {"laguna-bf16": 1, "minimax_m2-bf16": 1, "nemotron_h-modelopt_fp8": 1}


def write_all(out):
    names = []
    for i, (family, fmt) in enumerate(ALL):
        name = f"{family}-{fmt}"
        names.append(name)
        write(os.path.join(out, name), family, fmt, seed=REDRAWN.get(name, zlib.crc32(name.encode())), shards=3 if i == 1 else 1)
    cio.write_json(os.path.join(out, "list.json"), names)
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="?", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("format", nargs="?", metavar="FORMAT",
                        help="dense (bf16), " + ", ".join(FORMATS))
    parser.add_argument("out", nargs="?", metavar="OUT")
    parser.add_argument("--all", metavar="OUT", help="write one folder per family and format below OUT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default {size}")
    args = vars(parser.parse_args())
    out, every, fmt = args.pop("out"), args.pop("all"), args.pop("format")
    try:
        if every:
            print(f"{every}: {len(write_all(every))} checkpoints")
        elif out is None:
            parser.error("give FAMILY FORMAT OUT, or --all OUT")
        else:
            write(out, fmt=fmt, **args)
    except (OSError, ValueError) as e:
        print(f"tiny_checkpoint: {e}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
