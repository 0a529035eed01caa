"""What llama.cpp's converter (conversion/*.py) makes of each architecture's names, keys and numbers; independent of the worker's
tables. gguf_writer.py writes the files."""

import math
from statistics import NormalDist

import gated
import gguf_made
import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.shared_expert.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")},
    **{f"mlp.experts.#.{p}_proj": f"ffn_{p}_exps" for p in ("gate", "up", "down")}}
FOUR_NORMS = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm"}
MOE = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
       "moe_intermediate_size": "expert_feed_forward_length",
       "shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
ROUTED = {"n_routed_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
          "moe_intermediate_size": "expert_feed_forward_length", "n_shared_experts": "expert_shared_count",
          "first_k_dense_replace": "leading_dense_block_count", "routed_scaling_factor": "expert_weights_scale",
          "norm_topk_prob": "expert_weights_norm", "n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
SHARED = {f"mlp.shared_experts.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}
WINDOW = {"sliding_window": "attention.sliding_window"}
LFM2 = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj", "conv.conv": "shortconv.conv", "model.embedding_norm": "token_embd_norm",
        **{f"feed_forward.{w}": f"ffn_{p}" for w, p in (("w1", "gate"), ("w3", "up"), ("w2", "down"))},
        **{f"feed_forward.experts.#.{w}": f"ffn_{p}_exps" for w, p in (("w1", "gate"), ("w3", "up"), ("w2", "down"))},
        "feed_forward.gate": "ffn_gate_inp"}
LFM2_KEYS = {"norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"}
MLA = {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
       "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm"}
JAMBA = {"model.final_layernorm": "output_norm", "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp",
         **{f"mamba.{p}_layernorm": f"ssm_{p}_norm" for p in ("dt", "b", "c")}, "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d",
         "mamba.x_proj": "ssm_x", "mamba.dt_proj": "ssm_dt", "mamba.out_proj": "ssm_out",
         **{f"feed_forward.{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")},
         **{f"feed_forward.experts.#.{p}_proj": f"ffn_{p}_exps" for p in ("gate", "up", "down")}}
LLAMA4 = {"feed_forward.router": "ffn_gate_inp", **{f"feed_forward.{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")},
          **{f"feed_forward.shared_expert.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}}
FALCON_H1 = {"model.final_layernorm": "output_norm", "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.out_proj": "ssm_out",
             **{f"feed_forward.{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")}}
#: Powers of two, so that the products that the converter rounds are exact.
FACTORS = {"attention_in_multiplier": 2.0, "attention_out_multiplier": 0.5, "embedding_multiplier": 4.0, "key_multiplier": 0.25,
           "lm_head_multiplier": 0.5, "mlp_multipliers": [0.5, 2.0], "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 0.5,
           "ssm_multipliers": [0.5, 2.0, 0.25, 4.0, 1.0]}
MAMBA = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "norm": "attn_norm",
         **{f"mixer.{name}": f"ssm_{stored}" for name, stored in (("in_proj", "in"), ("conv1d", "conv1d"), ("x_proj", "x"),
                                                                  ("dt_proj", "dt"), ("out_proj", "out"))}}
RANK = {"kv_lora_rank": "attention.kv_lora_rank"}
INDEXER = {f"self_attn.indexer.{name}": f"indexer.{stored}" for name, stored in (
    ("wq_b", "attn_q_b"), ("wk", "attn_k"), ("k_norm", "k_norm"), ("weights_proj", "proj"))}
INDEXER_KEYS = {"index_n_heads": "attention.indexer.head_count", "index_head_dim": "attention.indexer.key_length",
                "index_topk": "attention.indexer.top_k", "num_nextn_predict_layers": "nextn_predict_layers"}
KIMI = {f"self_attn.{x}_conv1d": f"ssm_conv1d_{x}" for x in "qkv"} | {
    f"self_attn.{x}_proj": f"ssm_{x}" for x in ("f_a", "f_b", "g_a", "g_b")} | {
    "self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm", "block_sparse_moe.gate": "ffn_gate_inp",
    **{f"block_sparse_moe.experts.#.{w}": f"ffn_{p}_exps" for w, p in (("w1", "gate"), ("w3", "up"), ("w2", "down"))},
    **{f"block_sparse_moe.shared_experts.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}}
EXAONE = {"transformer.wte": "token_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
          **{f"attn.attention.{x}_proj": f"attn_{x}" for x in "qkv"}, "attn.attention.out_proj": "attn_output",
          "mlp.c_fc_0": "ffn_gate", "mlp.c_fc_1": "ffn_up", "mlp.c_proj": "ffn_down"}
WIDE_MLP = {"mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
NEOX = WIDE_MLP | {"gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
                   "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"}
FALCON = WIDE_MLP | {"transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm", "ln_mlp": "attn_norm",
                     "ln_attn": "attn_norm_2", "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output"}
GPT2 = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm",
        "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
KEYS = {"hidden_size": "embedding_length", "num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv", "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon"}
LACKS = object()

GEMMA4 = {"per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
          "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
          "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "model.embed_tokens_per_layer": "per_layer_token_embd",
          "model.per_layer_model_projection": "per_layer_model_proj", "model.per_layer_projection_norm": "per_layer_proj_norm"}
GEMMA4_KEYS = {"final_logit_softcapping": "final_logit_softcapping", "sliding_window": "attention.sliding_window",
               "num_kv_shared_layers": "attention.shared_kv_layers",
               "hidden_size_per_layer_input": "embedding_length_per_layer_input"}
DELTA = {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
         "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
         "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"}
DELTA_KEYS = {"linear_conv_kernel_dim": "ssm.conv_kernel", "linear_key_head_dim": "ssm.state_size",
              "linear_num_key_heads": "ssm.group_count", "linear_num_value_heads": "ssm.time_step_rank"}


def delta(config):
    return {"ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
            "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]]}


def gemma4(config):
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    n, inner, heads = len(slides), config["intermediate_size"], config["num_key_value_heads"]
    first = n - config["num_kv_shared_layers"]
    wide = [inner * (1 + (i >= first)) for i in range(n)] if config.get("use_double_wide_mlp") else inner
    full = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    return windows(config) | {
        "feed_forward_length": wide, "attention.key_length": config["global_head_dim"],
        "attention.head_count_kv": [heads if here else full or heads for here in slides],
        "attention.key_length_swa": config["head_dim"], "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base_swa": float(config["rope_parameters"]["sliding_attention"]["rope_theta"])}


def windows(config):
    return {"attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]]}


def key_heads(config):
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    return {"attention.head_count_kv": [config["num_key_value_heads"] * here for here in attends]}


def ministral(config):
    rope = config["rope_parameters"]
    return {"attention.temperature_scale": rope["llama_4_scaling_beta"], "rope.scaling.yarn_log_multiplier": rope["mscale"]}


def latent(config):
    """DeepseekV2Model: attention over latents has one key head."""
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    keys = {"attention.head_count_kv": 1, "attention.key_length": rank + rope, "attention.value_length": rank,
            "attention.key_length_mla": config["qk_nope_head_dim"] + rope, "attention.value_length_mla": config["v_head_dim"],
            "rope.dimension_count": rope, "expert_gating_func": 1 + (config["model_type"] != "deepseek_v2")}
    if scale := config.get("rope_parameters", {}).get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * scale
    return keys | ({"attention.q_lora_rank": config["q_lora_rank"]} if config["q_lora_rank"] else {})


def indexed(config):
    types = config.get("indexer_types")
    return latent(config) | ({"attention.indexer.types": [kind == "full" for kind in types]} if types else {})


def kimi(config):
    """KimiLinearModel: layers with attention over latents have one key head, others none."""
    full = config["linear_attn_config"]["full_attn_layers"]
    heads = [int(i + 1 in full) for i in range(config["num_hidden_layers"])]
    return latent(config) | {"attention.head_count_kv": heads, "kda.head_dim": config["linear_attn_config"]["head_dim"],
                             "ssm.conv_kernel": config["linear_attn_config"]["short_conv_kernel_size"]}


def minicpm(config):
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    return {"embedding_scale": float(config["scale_emb"]), "residual_scale": config["scale_depth"] / layers ** 0.5,
            "logit_scale": hidden / config["dim_model_base"]}


def jamba(config):
    attends = [i % config["attn_layer_period"] == config["attn_layer_offset"] for i in range(config["num_hidden_layers"])]
    return {"attention.head_count_kv": [config["num_key_value_heads"] * here for here in attends],
            "ssm.inner_size": config["mamba_expand"] * config["hidden_size"]}


def older_latent(config):
    keys = latent(config)
    keys |= {"attention.head_count_kv": config["num_attention_heads"], "attention.key_length": keys.pop("attention.key_length_mla"),
             "attention.value_length": keys.pop("attention.value_length_mla")}
    return keys


def longrope(config):
    rope, length = config["rope_parameters"], config["original_max_position_embeddings"]
    longer = config["max_position_embeddings"] / length
    return {"rope.scaling.original_context_length": length,
            "rope.scaling.attn_factor": rope.get("attention_factor") or math.sqrt(1 + math.log(longer) / math.log(length))}


def llama3_divisors(rope, head):
    """LlamaModel.generate_extra_tensors()."""
    freqs = 1.0 / (rope["rope_theta"] ** (np.arange(0, head, 2, dtype=np.float32) / np.float32(head)))
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    out = []
    for wave in 2 * np.pi / freqs:
        smooth = (length / wave - low) / (high - low) if high > low else 0  # Llama 4 has no smooth part
        out.append(1 if wave < length / high else rope["factor"] if wave > length / low
                   else 1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, np.float32)


# architecture -> tiny checkpoint; its names and keys beyond those above, keys that a function gives ("more"), names that are
# whole, how near scores must be if a value is rounded, whether it has no block types ("plain"); what llama.cpp assumes, as keys
ARCHITECTURES = {
    "llama": dict(tiny="llama"),
    "llama-llama3": dict(tiny="llama_llama3", set={"rope": {"original_max_position_embeddings": 8192}}),
    "llama-linear": dict(tiny="llama_linear"),
    "llama-mixtral": dict(tiny="mixtral", keys={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
                          names={"block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.#.w1": "ffn_gate_exps",
                                 "block_sparse_moe.experts.#.w2": "ffn_down_exps",
                                 "block_sparse_moe.experts.#.w3": "ffn_up_exps"}),
    "granite": dict(tiny="granite", keys={"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
                                          "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}),
    "smollm3": dict(tiny="smollm3", set={"no_rope_layers": LACKS, "no_rope_layer_interval": 4, "layer_types": LACKS}),
    "qwen2": dict(tiny="qwen2"),
    "qwen2moe": dict(tiny="qwen2_moe", keys=MOE),
    "qwen3": dict(tiny="qwen3_tied"),
    "qwen3moe": dict(tiny="qwen3_moe", keys=MOE, set={"norm_topk_prob": True}),
    "qwen3moe-fused": dict(tiny="qwen3_moe", keys=MOE, set={"norm_topk_prob": True}, plain=True),
    "gemma": dict(tiny="gemma"),
    "gemma2": dict(tiny="gemma2", names=FOUR_NORMS, keys=WINDOW | {
        "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
        set={"query_pre_attn_scalar": 48}),
    "gemma3": dict(tiny="gemma3_text", names=FOUR_NORMS, keys=WINDOW,
                   set={"query_pre_attn_scalar": 48, "layer_types": ["sliding_attention"] * 2}),
    "phi3": dict(tiny="phi3", names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}),
    "phi3-partial": dict(tiny="phi3_partial", names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
                         keys=WINDOW),
    "phi3-longrope": dict(tiny="phi3_longrope", names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
                          more=longrope),
    "mistral3": dict(tiny="ministral3", more=ministral),
    "olmo2-windows": dict(tiny="olmo3", names={"post_attention_layernorm": "post_attention_norm",
                                               "post_feedforward_layernorm": "post_ffw_norm"}, keys=WINDOW, more=windows),
    "exaone4": dict(tiny="exaone4", names={"post_attention_layernorm": "post_attention_norm",
                                           "post_feedforward_layernorm": "post_ffw_norm"}, keys=WINDOW, more=windows),
    "cohere2": dict(tiny="cohere2", keys=WINDOW | {"layer_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale"},
                    more=windows),
    "glm4moe": dict(tiny="glm4_moe", names=SHARED | {"post_attention_layernorm": "post_attention_norm"}, keys=ROUTED,
                    whole={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
                    more=lambda config: {"expert_gating_func": 2, "nextn_predict_layers": 1,
                                         "block_count": config["num_hidden_layers"] + 1}),
    "gemma4": dict(tiny="gemma4_e", names=FOUR_NORMS | GEMMA4, keys=GEMMA4_KEYS, more=gemma4, plain=True,
                   whole={"layer_scalar": "layer_output_scale.weight"}),
    "gemma4-experts": dict(tiny="gemma4_moe", names=FOUR_NORMS | GEMMA4 | {"mlp.gate": "", "router.proj": "ffn_gate_inp"},
                           keys=GEMMA4_KEYS | {"num_experts": "expert_count", "top_k_experts": "expert_used_count",
                                               "moe_intermediate_size": "expert_feed_forward_length"}, more=gemma4,
                           whole={"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
                                  "router.per_expert_scale": "ffn_down_exps.scale",
                                  "experts.gate_up_proj": "ffn_gate_up_exps.weight",
                                  "experts.down_proj": "ffn_down_exps.weight"}),
    "qwen35": dict(tiny="qwen3_5_text", names=DELTA, keys=DELTA_KEYS, more=delta, near=1e-4, plain=True,
                   whole={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}),
    "qwen35-fused": dict(tiny="qwen3_5_text", names=DELTA, keys=DELTA_KEYS, more=delta, near=1e-4, plain=True,
                         whole={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}),
    "lfm2": dict(tiny="lfm2", names=LFM2, keys=LFM2_KEYS, more=key_heads,
                 set={"intermediate_size": 224, "block_auto_adjust_ff_dim": False}),
    "lfm2moe": dict(tiny="lfm2_moe", names=LFM2, more=lambda config: key_heads(config) | {"expert_gating_func": 2},
                    keys=LFM2_KEYS | MOE | {"num_dense_layers": "leading_dense_block_count"},
                    whole={"feed_forward.expert_bias": "exp_probs_b.bias"},
                    set={"norm_topk_prob": True, "routed_scaling_factor": 1.0}),
    "jamba": dict(tiny="jamba", names=JAMBA, more=jamba, near=1e-4, plain=True, keys=MOE | {
        "mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size", "mamba_dt_rank": "ssm.time_step_rank"},
        whole={"mamba.A_log": "ssm_a", "mamba.D": "ssm_d"}),
    "deepseek2": dict(tiny="deepseek_v3", names=SHARED | MLA, more=latent, keys=ROUTED | RANK,
                      whole={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
    "deepseek2-softmax": dict(tiny="deepseek_v2", names=SHARED | MLA, more=latent, keys=ROUTED | RANK),
    "deepseek2-lite": dict(tiny="deepseek_v2_lite", names=SHARED | MLA, more=latent, keys=ROUTED | RANK),
    "deepseek2-older": dict(tiny="deepseek_v2_lite", names=SHARED | MLA, more=older_latent, keys=ROUTED | RANK,
                            whole={"self_attn.kv_b_proj.weight": "attn_kv_b.weight"}),
    "gptneox": dict(plain=True, tiny="gpt_neox", names=NEOX, keys={"layer_norm_eps": "attention.layer_norm_epsilon",
                                                                   "use_parallel_residual": "use_parallel_residual"}),
    "gpt2": dict(plain=True, tiny="gpt2", names=GPT2, keys={"layer_norm_epsilon": "attention.layer_norm_epsilon"},
                 alias={"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
                        "n_positions": "max_position_embeddings"}),
    "falcon": dict(plain=True, tiny="falcon", names=FALCON, keys={"layer_norm_epsilon": "attention.layer_norm_epsilon",
                                                                  "num_kv_heads": "attention.head_count_kv"}),
    "command-r": dict(tiny="cohere", keys={"layer_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale"}),
    "olmo2": dict(tiny="olmo2", names={"post_attention_layernorm": "post_attention_norm",
                                       "post_feedforward_layernorm": "post_ffw_norm"}),
    "gpt-oss": dict(tiny="gpt_oss", names={"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
                    keys=WINDOW | {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
                                   "intermediate_size": "expert_feed_forward_length"}, set={"swiglu_limit": LACKS}),
    "llama4": dict(tiny="llama4_text", names=LLAMA4, plain=True, set={
        "rope": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
                 "original_max_position_embeddings": 8192},
        "attention_chunk_size": 8192, "floor_scale": 8192, "no_rope_layers": LACKS, "no_rope_layer_interval": 4}, keys={
            "intermediate_size": "expert_feed_forward_length", "intermediate_size_mlp": "feed_forward_length",
            "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
            "interleave_moe_layer_step": "interleave_moe_layer_step"}),
    "apertus": dict(tiny="apertus", names={"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
                    set={"rope": {"original_max_position_embeddings": 8192}}),
    "falcon-h1": dict(tiny="falcon_h1", names=FALCON_H1, set=FACTORS, near=1e-4, plain=True, keys={
        "mamba_n_heads": "ssm.time_step_rank", "mamba_d_ssm": "ssm.inner_size", "mamba_n_groups": "ssm.group_count",
        "mamba_d_state": "ssm.state_size", "mamba_d_conv": "ssm.conv_kernel"},
        whole={"mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.dt_bias": "ssm_dt.bias", "pre_ff_layernorm.weight": "ffn_norm",
               "mamba.norm.weight": "ssm_norm.weight"}),
    "afmoe": dict(
        tiny="afmoe", set={"layer_types": LACKS, "global_attn_every_n_layers": 4}, whole={"mlp.expert_bias": "exp_probs_b.bias"},
        names=SHARED | {"post_attention_layernorm": "post_attention_norm", "self_attn.gate_proj": "attn_gate",
                        "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm", "mlp.router.gate": "ffn_gate_inp"},
        keys=MOE | WINDOW | {"num_shared_experts": "expert_shared_count", "num_dense_layers": "leading_dense_block_count",
                             "route_scale": "expert_weights_scale"},
        more=lambda config: {"expert_weights_norm": True}),
    "olmo": dict(tiny="olmo", keys={"clip_qkv": "attention.clamp_kqv"}),
    "exaone": dict(tiny="exaone", names=EXAONE, alias={"num_layers": "num_hidden_layers"},
                   keys={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}),
    "internlm2": dict(tiny="llama"),
    "minicpm": dict(tiny="minicpm", more=minicpm),
    "minicpm3": dict(tiny="minicpm3", names=MLA, set={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
                     keys=RANK | {"q_lora_rank": "attention.q_lora_rank"}, whole={"self_attn.kv_b_proj.weight": "attn_kv_b.weight"},
                     more=lambda config: {"attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
                                          "rope.dimension_count": config["qk_rope_head_dim"]}),
    "deepseek32": dict(tiny="deepseek_v32", names=SHARED | MLA | INDEXER, more=indexed, keys=ROUTED | RANK | INDEXER_KEYS,
                       whole={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
    "glm-dsa": dict(tiny="glm_moe_dsa", names=SHARED | MLA | INDEXER, more=indexed, keys=ROUTED | RANK | INDEXER_KEYS,
                    set={"first_k_dense_replace": 1}, whole={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}),
    "kimi-linear": dict(arch="kimi-linear", tiny="kimi_linear", names=MLA | KIMI, more=kimi, near=1e-4, plain=True, keys=RANK | {
        "num_experts": "expert_count", "num_experts_per_token": "expert_used_count", "num_shared_experts": "expert_shared_count",
        "moe_intermediate_size": "expert_feed_forward_length", "first_k_dense_replace": "leading_dense_block_count",
        "routed_scaling_factor": "expert_weights_scale"},
        whole={"self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias",
               "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias"}),
    "mamba": dict(tiny="mamba", names=MAMBA, near=1e-4, plain=True, whole={"mixer.A_log": "ssm_a", "mixer.D": "ssm_d"},
                  keys={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon", "conv_kernel": "ssm.conv_kernel",
                        "state_size": "ssm.state_size"},
                  more=lambda config: {"ssm.inner_size": config["expand"] * config["hidden_size"],
                                       "ssm.time_step_rank": -(-config["hidden_size"] // 16), "ssm.dt_b_c_rms": False}),
}

def by_kind(config, full, sliding):
    return [sliding if kind == "sliding_attention" else full for kind in config["layer_types"]]


def rope_of_windows(config):
    return {"rope.freq_base_swa": float(config["rope_parameters"]["sliding_attention"]["rope_theta"])}


def laguna(config):
    full = config["rope_parameters"]["full_attention"]
    return rope_of_windows(config) | {
        "attention.head_count": config["num_attention_heads_per_layer"], "expert_gating_func": 2, "expert_weights_norm": True,
        "leading_dense_block_count": 1, "rope.dimension_count_swa": config["head_dim"],
        "rope.scaling.yarn_attn_factor": full["attention_factor"], "rope.scaling.yarn_beta_fast": full["beta_fast"]}


def step(config):
    """Step35Model: no key holds the rotated half of full layers' heads."""
    return windows(config) | rope_of_windows(config) | {
        "attention.head_count": by_kind(config, config["num_attention_heads"], config["num_sliding_attention_heads"]),
        "attention.head_count_kv": [config["num_key_value_heads"]] * len(config["layer_types"]), "expert_gating_func": 2,
        "rope.dimension_count": config["head_dim"], "leading_dense_block_count": 1,
        "swiglu_clamp_exp": config["swiglu_limits"], "swiglu_clamp_shexp": config["swiglu_limits_shared"]}


def mimo(config):
    """Layers with a window have twice the key heads."""
    heads = config["num_key_value_heads"]
    return windows(config) | rope_of_windows(config) | {
        "attention.head_count_kv": by_kind(config, heads, 2 * heads), "attention.value_length": config["v_head_dim"],
        "expert_gating_func": 2}


def gemma3n(config):
    return windows(config) | rope_of_windows(config) | {
        "activation_sparsity_scale": [NormalDist().inv_cdf(p) if p > 0 else -math.inf for p in config["activation_sparsity_pattern"]]}


MODULES = {"block_sparse_moe.gate": "ffn_gate_inp",
           **{f"block_sparse_moe.experts.#.{w}": f"ffn_{p}_exps" for w, p in (("w1", "gate"), ("w3", "up"), ("w2", "down"))},
           **{f"block_sparse_moe.shared_experts.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}}
LOCAL_MOE = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
CHATGLM = {"transformer.embedding.word_embeddings": "token_embd", "transformer.encoder.final_layernorm": "output_norm",
           "transformer.output_layer": "output", "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
           "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
QWEN = {"transformer.wte": "token_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
        "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.w1": "ffn_up", "mlp.w2": "ffn_gate", "mlp.c_proj": "ffn_down"}
STARCODER = GPT2 | {f"transformer.{name}": GPT2[name] for name in ("wte", "wpe", "ln_f")}
MIMO = dict(tiny="mimo_v2_flash", more=mimo, keys=WINDOW | ROUTED | {"attention_value_scale": "attention.value_scale"},
            whole={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "self_attn.attention_sink_bias": "attn_sinks.weight"})
GEMMA3N = FOUR_NORMS | {key: GEMMA4[key] for key in GEMMA4 if "per_layer" in key} | {
    "model.altup_projections.#": "altup_proj", "model.altup_unembed_projections.#": "altup_unembd_proj",
    "altup.correction_coefs": "altup_correct_coef", "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm", "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm"}


def block_heads(config, layer):
    """Of a layer of Nemotron from an architecture search: heads and key heads."""
    attention = config["block_configs"][layer]["attention"]
    heads = 0 if attention["no_op"] else config["num_attention_heads"]
    return heads, heads and heads // attention["n_heads_in_group"]


def deci(config):
    """DeciModel: 0 where a layer has no attention, or no MLP."""
    heads = [block_heads(config, i) for i in range(config["num_hidden_layers"])]
    rows = [int(2 * (block["ffn"]["ffn_mult"] or 0) * config["hidden_size"] / 3) for block in config["block_configs"]]
    return {"attention.head_count": [n for n, _ in heads], "attention.head_count_kv": [n for _, n in heads],
            "feed_forward_length": [-(-n // 256) * 256 for n in rows],
            "attention.key_length": config["hidden_size"] // config["num_attention_heads"]}


def dbrx(config):
    attention, ffn = config["attn_config"], config["ffn_config"]
    return {"attention.head_count_kv": attention["kv_n_heads"], "rope.freq_base": float(attention["rope_theta"]),
            "attention.clamp_kqv": attention["clip_qkv"], "feed_forward_length": ffn["ffn_hidden_size"],
            "expert_count": ffn["moe_num_experts"], "expert_used_count": ffn["moe_top_k"], "attention.layer_norm_epsilon": 1e-5}


def streams(config):
    return {"hyper_connection.count": config["hc_mult"], "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
            "hyper_connection.epsilon": config["hc_eps"], "swiglu_clamp_exp": [config["swiglu_limit"]] * config["num_hidden_layers"],
            "swiglu_clamp_shexp": [config["swiglu_limit"]] * config["num_hidden_layers"]}


def deepseek4(config):
    """DeepseekV4Model: pools of 4 and of 128 tokens."""
    rope, pools = config["rope_parameters"]["compress"], {"sliding_attention": 0, "compressed_sparse_attention": 4}
    return streams(config) | {
        "attention.compress_ratios": [pools.get(kind, 128) for kind in config["layer_types"]],
        "hash_layer_count": config["num_hash_layers"],
        "attention.compress_rope_freq_base": rope["rope_theta"], "rope.freq_base": config["rope_parameters"]["main"]["rope_theta"],
        "rope.dimension_count": config["qk_rope_head_dim"], "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"], "expert_gating_func": 4,
        "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]), "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
        "attention.key_length": config["head_dim"], "expert_weights_norm": True}


def glm5next(config):
    """Glm5NextModel: no key heads in layers with a delta rule; heads have no part that turns."""
    full = [int(kind != "linear_attention") for kind in config["layer_types"]]
    return latent(config) | streams(config) | {
        "attention.head_count_kv": full, "kda.head_dim": config["linear_head_dim"], "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.gate_lower_bound": config["linear_lower_bound"], "attention.indexer.kpool": config["index_kpool"],
        "attention.indexer.types": [kind == "full" for kind in config["indexer_types"]]}


def kimi_k3(config):
    return kimi(config) | {
        "kda.gate_lower_bound": config["linear_attn_config"]["gate_lower_bound"], "expert_weights_norm": config["moe_renormalize"],
        "activation.situ_beta": config["activation_situ_beta"], "activation.situ_linear_beta": config["activation_situ_linear_beta"],
        "attn_res.block_size": config["attn_res_block_size"], "expert_latent_length": config["routed_expert_hidden_size"]}


def minimax(config):
    return {"residual_scale": config["layernorm_mlp_alpha"], "rope.dimension_count": config["rotary_dim"]}


def qwen4(config):
    """Qwen4ExpTextModel: numbers of the one table of n-grams."""
    (layer, n), = gated.ngrams_of(config).items()
    rows = np.cumsum([0, *n.sizes[:-1]])
    return delta(config) | {
        "attention.compress_ratios": [config["indexer_compress_ratio"] * (kind != "linear_attention") for kind in config["layer_types"]],
        "embedding_length_per_layer_input": config["ple_embed_dim"] // len(n.sizes), "ple.layers": [layer],
        "ple.layer_multipliers": np.array(n.multipliers, "<i8"), "ple.head_offsets": np.array(rows, "<u8"),
        "ple.head_vocab_sizes": np.array(n.sizes, "<u8")}


STREAMS = {f"hc_{branch}_{part}": f"hc_{branch}_{part}.weight" for branch in ("attn", "ffn") for part in ("fn", "base", "scale")}
WEIGHTS = (("w1", "gate"), ("w3", "up"), ("w2", "down"))
DEEPSEEK4 = {"embed": "token_embd", "norm": "output_norm", "head": "output", "attn_norm": "attn_norm", "ffn_norm": "ffn_norm",
             "ffn.gate": "ffn_gate_inp", **{f"ffn.experts.#.{w}": f"ffn_{p}_exps" for w, p in WEIGHTS},
             **{f"ffn.shared_experts.{w}": f"ffn_{p}_shexp" for w, p in WEIGHTS},
             **{f"attn.{name}": f"attn_{stored}" for name, stored in (
                 ("wq_a", "q_a"), ("q_norm", "q_a_norm"), ("wq_b", "q_b"), ("wkv", "kv"), ("kv_norm", "kv_a_norm"), ("wo_a", "output_a"),
                 ("wo_b", "output_b"))},
             "attn.indexer.wq_b": "indexer.attn_q_b", "attn.indexer.weights_proj": "indexer.proj",
             **{f"attn.{place}compressor.{name}": f"{stored}_compressor_{part}" for place, stored in (("", "attn"), ("indexer.", "indexer"))
                for name, part in (("wkv", "kv"), ("wgate", "gate"), ("norm", "norm"))}}
LIKE_KIMI = dict(near=1e-4, plain=True)


def ling(config):
    """BailingMoeV3Model: no key heads in layers with a delta rule."""
    heads = [int((i + 1) % config["layer_group_size"] == 0) for i in range(config["num_hidden_layers"])]
    return latent(config) | {
        "attention.head_count_kv": heads, "kda.head_dim": config["head_dim"], "kda.gate_lower_bound": config["kda_lower_bound"],
        "kda.safe_gate": True, "ssm.conv_kernel": config["short_conv_kernel_size"], "rope.freq_base": config["rope_theta"],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"]}


LING = {f"attention.{name}": stored for name, stored in (
    ("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("dense", "attn_output"), ("b_proj", "ssm_beta"),
    ("f_proj", "ssm_f_a"), ("o_norm", "ssm_norm"), ("q_conv1d", "ssm_conv1d_q"), ("k_conv1d", "ssm_conv1d_k"),
    ("v_conv1d", "ssm_conv1d_v"), ("kv_a_proj_with_mqa", "attn_kv_a_mqa"), ("kv_a_layernorm", "attn_kv_a_norm"))}
ARCHITECTURES |= {
    "deci": dict(tiny="nemotron-nas", more=deci),
    "jais2": dict(tiny="jais2", keys={"layer_norm_eps": "attention.layer_norm_epsilon"}),
    "dbrx": dict(plain=True, tiny="dbrx", more=dbrx, names={
        "transformer.wte": "token_embd", "transformer.norm_f": "output_norm", "norm_attn_norm.norm_1": "attn_norm",
        "norm_attn_norm.norm_2": "attn_output_norm", "norm_attn_norm.attn.Wqkv": "attn_qkv", "norm_attn_norm.attn.out_proj": "attn_output",
        "ffn.router.layer": "ffn_gate_inp"}, whole={f"ffn.experts.mlp.{w}": f"ffn_{p}_exps.weight" for w, p in (
            ("w1", "gate"), ("v1", "up"), ("w2", "down"))}, alias={
                "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
                "max_seq_len": "max_position_embeddings"}),
    "qwen4exp": dict(
        plain=True, near=1e-4, tiny="qwen4_exp_one", more=qwen4, names=DELTA | {
            "ple.key_proj": "ple_key", "ple.value_proj": "ple_value", "ple.conv1d": "ple_conv1d",
            "self_attn.indexer.q_layernorm": "indexer.q_norm", "self_attn.indexer.k_layernorm": "indexer.k_norm",
            **{f"ple.norm_{x}": f"ple_norm_{x}" for x in ("key", "query", "conv")},
            **{f"{module}.{name}": f"{stored}_{part}" for module, stored in (
                ("attn_hyper_connection", "hc_attn"), ("mlp_hyper_connection", "hc_ffn"), ("model.hyper_connection_mixer", "output_hc"))
               for name, part in (("hc_norm", "norm"), ("input_mix_weight_down", "down"), ("input_mix_weight_up", "up"),
                                  ("block_inject_weight", "inject"))}},
        keys=DELTA_KEYS | MOE | {
            "hc_count": "hyper_connection.count", "hc_lowrank": "hyper_connection.low_rank",
            "indexer_n_heads": "attention.indexer.head_count",
            "indexer_head_dim": "attention.indexer.key_length", "indexer_budget": "attention.indexer.top_k", "ngram_size": "ple.ngram_size",
            "heads_per_ngram": "ple.heads_per_ngram", "ple_conv_kernel_size": "ple.conv_kernel", "eos_token_id": "ple.eos_token_id"},
        whole={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}),
    "deepseek2-dense": dict(arch="deepseek2", tiny="youtu", names=MLA, more=latent, keys=RANK),
    "minimax-01": dict(
        tiny="minimax_text_01", set={f"layernorm_{branch}_{name}": value for branch in ("full_attention", "linear_attention", "mlp")
                                     for name, value in (("alpha", 3.5), ("beta", 1.0))}, more=minimax, keys=LOCAL_MOE,
        names=MODULES | {"self_attn.qkv_proj": "attn_qkv", "self_attn.output_gate": "attn_gate", "self_attn.norm": "attn_norm_2",
                         "self_attn.out_proj": "attn_output"}),
    "deepseek4": dict(
        plain=True, tiny="deepseek_v4_128", names=DEEPSEEK4, more=deepseek4, keys=WINDOW | ROUTED | {
            "q_lora_rank": "attention.q_lora_rank", "o_groups": "attention.output_group_count", "o_lora_rank": "attention.output_lora_rank",
            "index_n_heads": "attention.indexer.head_count", "index_head_dim": "attention.indexer.key_length",
            "index_topk": "attention.indexer.top_k"},
        whole=STREAMS | {"attn.attn_sink": "attn_sinks.weight", "ffn.gate.bias": "exp_probs_b.bias", "ffn.gate.tid2eid":
                         "ffn_gate_tid2eid.weight", "attn.compressor.ape": "attn_compressor_ape.weight",
                         "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
                         **{f"hc_head_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")}}),
    "muse-glimmer": dict(
        plain=True, made=(gguf_made.MUSE, gguf_made.muse(gguf_made.MUSE)), more=windows,
        names=FOUR_NORMS | {"self_attn.gate_proj": "attn_gate"},
        keys=WINDOW | {"output_multiplier": "logit_scale", "final_logit_softcapping": "final_logit_softcapping"}),
    "bailingmoe3": LIKE_KIMI | dict(
        made=(gguf_made.LING, gguf_made.ling(gguf_made.LING)), more=ling, names=SHARED | LING | {"model.word_embeddings": "token_embd"},
        whole={"attention.A_log": "ssm_a", "attention.dt_bias": "ssm_dt.bias", "mlp.gate.expert_bias": "exp_probs_b.bias"},
        keys=RANK | {
            "num_experts": "expert_count", "num_experts_per_token": "expert_used_count", "num_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length", "first_k_dense_replace": "leading_dense_block_count",
            "routed_scaling_factor": "expert_weights_scale", "moe_renormalize": "expert_weights_norm",
            "num_expert_group": "expert_group_count", "topk_group": "expert_group_used_count"}),
    "glm5-next": LIKE_KIMI | dict(
        arch="glm5-next", tiny="glm5_next", names=SHARED | MLA | KIMI | INDEXER | {"mlp.gate": "ffn_gate_inp"}, more=glm5next,
        keys=RANK | ROUTED | INDEXER_KEYS, whole=STREAMS | {
            "self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
            "self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate.weight",
            "self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape.weight"}),
    "kimi-k3": LIKE_KIMI | dict(
        arch="kimi-k3", tiny="kimi_k3", names=MLA | KIMI | {
            "block_sparse_moe.routed_expert_down_proj": "ffn_routed_down", "block_sparse_moe.routed_expert_up_proj": "ffn_routed_up",
            "block_sparse_moe.routed_expert_norm": "ffn_routed_norm"}, more=kimi_k3, keys=ARCHITECTURES[
                "kimi-linear"]["keys"], whole=ARCHITECTURES["kimi-linear"]["whole"]),
}
ARCHITECTURES |= {
    "gemma3n": dict(plain=True, tiny="gemma3n_text", names=GEMMA3N, more=gemma3n, keys=GEMMA4_KEYS | {
        "altup_num_inputs": "altup.num_inputs", "altup_active_idx": "altup.active_idx"},
        whole={"altup.correct_output_scale": "altup_correct_scale.weight"}),
    "phimoe": dict(tiny="phimoe", set={"router_jitter_noise": 0.01}, names=MODULES, keys=WINDOW | LOCAL_MOE,
                   more=lambda config: {"rope.scaling.original_context_length": config["max_position_embeddings"]}),
    "pangu-embedded": dict(tiny="PanguEmbedded"),
    "minimax-m3": dict(
        tiny="minimax_m3", set={"swiglu_limit": 7.0}, names=MODULES | {
            f"self_attn.index_{x}_{p}": f"indexer.{x}_{p}" for x in "qk" for p in ("proj", "norm")},
        keys=LOCAL_MOE | {
            "intermediate_size": "expert_feed_forward_length", "dense_intermediate_size": "feed_forward_length",
            "routed_scaling_factor": "expert_weights_scale", "index_n_heads": "attention.indexer.head_count",
            "index_head_dim": "attention.indexer.key_length", "index_topk_blocks": "attention.indexer.top_k",
            "index_block_size": "attention.indexer.block_size", "index_local_blocks": "attention.indexer.local_blocks"},
        whole={"block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias"},
        more=lambda config: {"expert_gating_func": 2, "leading_dense_block_count": 1, "expert_shared_count": 1}),
    "bailingmoe2-fused": dict(
        plain=True, tiny="glm4_moe", names=SHARED, keys=ROUTED, whole={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        more=lambda config: {"expert_gating_func": 2, "nextn_predict_layers": 1, "block_count": config["num_hidden_layers"] + 1,
                             "expert_shared_feed_forward_length": config["moe_intermediate_size"]}),
    "laguna": dict(
        tiny="laguna", set={"moe_router_logit_softcapping": LACKS}, names={"self_attn.g_proj": "attn_gate", **{
            f"mlp.shared_expert.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}}, more=laguna,
        whole={"mlp.experts.e_score_correction_bias": "exp_probs_b.bias"},
        keys=MOE | WINDOW | {"moe_routed_scaling_factor": "expert_weights_scale"}),
    "step35": dict(
        plain=True, tiny="step3p5", names={"self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp", **{
            f"share_expert.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")}}, more=step,
        whole={"moe.router_bias": "exp_probs_b.bias", **{
            f"moe.{p}_proj.weight": f"ffn_{p}_exps.weight" for p in ("gate", "up", "down")}},
        keys=WINDOW | {"moe_num_experts": "expert_count", "moe_top_k": "expert_used_count",
                       "moe_intermediate_size": "expert_feed_forward_length", "moe_router_scaling_factor": "expert_weights_scale",
                       "share_expert_dim": "expert_shared_feed_forward_length"}),
    "mimo2": MIMO,
    "mimo2-fused": MIMO | dict(plain=True),
    "chatglm": dict(plain=True, tiny="chatglm", names=CHATGLM, alias={
        "num_layers": "num_hidden_layers", "multi_query_group_num": "num_key_value_heads", "ffn_hidden_size": "intermediate_size",
        "seq_length": "max_position_embeddings", "layernorm_epsilon": "rms_norm_eps"}, more=lambda config: {
            "rope.dimension_count": config["kv_channels"] // 2, "rope.freq_base": 10000.0 * config["rope_ratio"]}),
    "qwen": dict(plain=True, tiny="qwen", names=QWEN, set={"use_dynamic_ntk": False, "use_logn_attn": False},
                 keys={"layer_norm_epsilon": "attention.layer_norm_epsilon"}),
    "starcoder": dict(plain=True, tiny="gpt_bigcode", names=STARCODER, set={"activation_function": "gelu"},
                      keys={"layer_norm_epsilon": "attention.layer_norm_epsilon"},
                      alias={"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
                             "n_positions": "max_position_embeddings"},
                      more=lambda config: {"attention.head_count_kv": 1, "feed_forward_length": 4 * config["n_embd"]}),
}
PERMUTED = ("deci", "muse-glimmer", "llama", "internlm2", "granite", "smollm3", "mistral3", "olmo", "minicpm")
KDA = ("kimi-linear", "kimi-k3", "glm5-next", "bailingmoe3")
PLUS_ONE = ("qwen4exp", "muse-glimmer", "gemma", "gemma2", "gemma3", "qwen35", "minimax-m3", "step35")
