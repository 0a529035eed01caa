"""Published models with recurrent layers, several residual streams, block-sparse attention or pooled keys for
make_checkpoint.py: their configurations, their tensors by recipe.py, and the products that a token passes.

Of wrappers it is the text model alone, as text-only files have it.
"""

import re

import numpy as np

import families
import qwen4
import recipe
import recurrent

PERIOD = ["linear_attention"] * 3 + ["full_attention"]
TURNS = {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}
TAPS = 4


def _qwen(family, architecture, hidden, layers, heads, kv_heads, values, vocab, **more):
    """values: heads of the delta rule, 16 keys' beside them; all of 128 elements."""
    return {"model_type": family, "architectures": [architecture], "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256, "vocab_size": vocab,
            "layer_types": PERIOD * (layers // 4), "full_attention_interval": 4, "attn_output_gate": True,
            "linear_conv_kernel_dim": TAPS, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": values, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-06, "rope_parameters": TURNS, "tie_word_embeddings": False} | more


def _experts(n, chosen, inner):
    return {"num_experts": n, "num_experts_per_tok": chosen, "moe_intermediate_size": inner,
            "shared_expert_intermediate_size": inner, "mlp_only_layers": [], "norm_topk_prob": True, "decoder_sparse_step": 1}


SHAPES = {
    "qwen3.5-27b": _qwen("qwen3_5_text", "Qwen3_5ForCausalLM", 5120, 64, 24, 4, 48, 248320, intermediate_size=17408),
    "qwen3.5-35b-a3b": _qwen("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", 2048, 40, 16, 2, 32, 248320, **_experts(256, 8, 512)),
    "qwen3-next-80b-a3b": _qwen("qwen3_next", "Qwen3NextForCausalLM", 2048, 48, 16, 2, 32, 151936, intermediate_size=5120,
                                **_experts(512, 10, 512)),
    # No published model: for a CPU.
    "like-qwen3.5-300m": _qwen("qwen3_5_text", "Qwen3_5ForCausalLM", 768, 24, 6, 2, 12, 65536, intermediate_size=2688, head_dim=128,
                               linear_num_key_heads=6, tie_word_embeddings=True),
    "deepseek-v4-flash": {
        "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 43,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "vocab_size": 129280, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "num_hash_layers": 3, "num_nextn_predict_layers": 0,
        "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0], "compress_rope_theta": 160000, "q_lora_rank": 1024, "o_lora_rank": 1024,
        "o_groups": 8, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "sliding_window": 128,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "swiglu_limit": 10.0, "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus", "expert_dtype": "fp4", "rms_norm_eps": 1e-06, "rope_theta": 10000,
        "max_position_embeddings": 1048576, "tie_word_embeddings": False, "rope_scaling": {
            "type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}},
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hidden_size": 2688, "num_hidden_layers": 52,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072, "intermediate_size": 1856, "mamba_num_heads": 64,
        "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": TAPS, "expand": 2, "chunk_size": 128,
        "use_bias": False, "use_conv_bias": True, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "mamba_proj_bias": False,
        "layer_norm_epsilon": 1e-05, "time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 0.0001,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "max_position_embeddings": 262144,
        "sliding_window": None, "residual_in_fp32": False, "tie_word_embeddings": False},
    "minimax-m3": {
        "model_type": "minimax_m3", "architectures": ["MiniMaxM3ForCausalLM"], "hidden_size": 6144, "num_hidden_layers": 60,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 200064, "intermediate_size": 3072,
        "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "num_local_experts": 128, "num_experts_per_tok": 4,
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
        "index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16, "index_local_blocks": 1,
        "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "routed_scaling_factor": 2.0, "rotary_dim": 64, "partial_rotary_factor": 0.5,
        "rope_theta": 5000000, "rms_norm_eps": 1e-06, "max_position_embeddings": 1048576, "tie_word_embeddings": False},
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "hidden_size": 2304, "num_hidden_layers": 27,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72, "vocab_size": 163840, "intermediate_size": 9216,
        "linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": TAPS,
                               "full_attn_layers": [*range(4, 25, 4), 27],
                               "kda_layers": [i for i in range(1, 27) if i % 4]},
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mla_use_nope": True, "first_k_dense_replace": 1, "moe_intermediate_size": 1024, "num_experts": 256,
        "num_experts_per_token": 8, "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": True,
        "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "routed_scaling_factor": 2.446,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "model_max_length": 1048576, "tie_word_embeddings": False},
    # The defaults of transformers' class.
    "glm-5-next": {
        "model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"], "hidden_size": 4096, "num_hidden_layers": 45,
        "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 154880, "intermediate_size": 12288,
        "layer_types": [*(["linear_attention"] * 3 + ["deepseek_sparse_attention"]) * 11, "linear_attention"],
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42, "indexer_types": ["full"] * 45, "linear_num_heads": 64,
        "linear_head_dim": 128, "linear_conv_kernel_dim": TAPS, "linear_lower_bound": -5.0, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "index_topk": 2048, "index_n_heads": 32,
        "index_head_dim": 128, "index_kpool": 16, "index_kpool_always_select_tail": True, "moe_intermediate_size": 2048,
        "n_routed_experts": 288, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-06, "rms_norm_eps": 1e-05, "max_position_embeddings": 1048576, "tie_word_embeddings": False},
    # The defaults of transformers' class; where it has none, sizes like those of other models. A table of n-grams has a
    # hundredth of the rows.
    "like-qwen4-exp": _qwen(
        "qwen4_exp_text", "Qwen4ExpForCausalLM", 2048, 40, 16, 2, 32, 248320, **_experts(512, 10, 512), hc_count=4, hc_lowrank=320,
        indexer_n_heads=16, indexer_kv_heads=1, indexer_head_dim=128, indexer_budget=2048, indexer_compress_ratio=16,
        ple_layer_ids=[2], ple_embed_dim=2048, ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=8, ngram_vocab_size_base=200000,
        make_ngram_vocab_size_divisible_by=128, split_ngram_parts=16, seed=1234, output_gate_type="sigmoid"),
}
# Modules that are not quantised.
IGNORE = ["re:.*in_proj_(a|b|ba)$", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*mixer.gate$", "re:.*block_sparse_moe.gate$",
          "re:.*compressor\\.w", "re:.*weights_proj$", "re:.*index_kpool_compress_gate$", "re:.*ffn\\.gate$", "re:head$",
          "re:.*self_attn\\.b_proj$", *qwen4.IGNORE]
OWN_KEYS = ("linear_num_key_heads", "hybrid_override_pattern", "index_block_size", "compress_ratios", "linear_attn_config",
            "linear_num_heads")  # one of a shape's


def is_by_recipe(c):
    return any(key in c for key in OWN_KEYS)


def as_published(c):
    """The configuration of a file, whose text model's keys may lie deeper than these."""
    if c["model_type"] != "glm5_next":
        return c
    own = {key: c[key] for key in ("architectures", "dtype", "quantization_config", "tie_word_embeddings") if key in c}
    return {"model_type": c["model_type"], **own, "text_config": {key: c[key] for key in c if key not in own} |
            {"model_type": "glm5_next_text"}}


def with_layers(c, layers):
    if layers >= c["num_hidden_layers"]:
        return
    if "hybrid_override_pattern" in c:
        c["hybrid_override_pattern"] = c["hybrid_override_pattern"][:layers]
    if "index_block_size" in c:  # one layer is dense
        for key in ("layer_types", "mlp_layer_types"):
            c[key] = [c[key][0], *c[key][1 - layers:]] if layers > 1 else c[key][:1]
    if "compress_ratios" in c:  # without the first two layers: both ratios alternate, and one layer has a table of experts
        c["compress_ratios"] = c["compress_ratios"][2:2 + layers]
        c["num_hash_layers"] = min(1, layers)
    if "linear_attn_config" in c:
        own = c["linear_attn_config"]
        c["linear_attn_config"] = own | {key: [i for i in own[key] if i <= layers] for key in ("full_attn_layers", "kda_layers")}
    if "linear_num_heads" in c:  # one layer is dense
        c["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1)
        c["indexer_types"] = c["indexer_types"][:layers]
    if "ple_layer_ids" in c:
        c["ple_layer_ids"] = [i for i in c["ple_layer_ids"] if i <= layers]


def describe(c):
    return qwen4.describe(c) if qwen4.is_one(c) else families.describe(c)


# ---- products: (name, n, k, times that a token passes it in a layer), as few as can be --------------------------------------

def mixer_products(m, hidden):
    if isinstance(m, recurrent.DeltaRule):
        values = m.value_heads * m.value
        yield "delta_in", m.channels + values + 2 * m.value_heads, hidden, 1
        yield "delta_out", hidden, values, 1
    elif isinstance(m, recurrent.ChannelDelta):
        n, low = m.heads * m.head, (m.rank > 0) * (2 - m.whole_gate)
        yield "delta_in", (5 - low) * n + low * m.rank + m.heads, hidden, 1
        if low:
            yield "delta_low", n, m.rank, low
        yield "delta_out", hidden, n, 1
    elif m:
        yield "mamba_in", m.inner + m.channels + m.heads, hidden, 1
        yield "mamba_out", hidden, m.inner, 1


def latent_products(a, hidden):
    """Without an indexer's, which windows of up to as many tokens as it chooses do not need."""
    m, q = a.latent, a.heads * a.head
    yield "latents", (m.q_rank or q) + m.rank + m.turning, hidden, 1
    if m.q_rank:
        yield "latent_q", q, m.q_rank, 1
    yield "latent_kv", a.heads * (a.head - m.turning + (a.head_v or a.head)), m.rank, 1
    yield "o", hidden, a.heads * (a.head_v or a.head), 1


def pooled_products(p, hidden):
    """Likewise."""
    q, pools = p.heads * p.head, 2 * (1 + p.overlaps) * p.head if p.block else 0
    yield f"pooled_in_{p.block}", p.q_rank + p.head + pools, hidden, 1
    yield "pooled_q", q, p.q_rank, 1
    yield "pooled_o_a", p.group_rank, q // p.groups, p.groups
    yield "pooled_o_b", hidden, p.groups * p.group_rank, 1


def attention_products(a, hidden):
    if a.latent:
        yield from latent_products(a, hidden)
    elif a.heads:
        choice = (a.kv_heads + 1) * a.blocks_seen.head if a.blocks_seen else 0
        yield "qkv", ((1 + a.gate_in_q) * a.heads + 2 * a.kv_heads) * a.head + choice, hidden, 1
        yield "o", hidden, a.heads * a.head, 1


def mlp_products(a, hidden):
    kind = "shared_" if a.experts else ""
    if a.inner:
        yield kind + ("gate_up" if a.gated else "up"), (1 + a.gated) * a.inner, hidden, 1
        yield kind + "down", hidden, a.inner, 1
    if a.experts:
        yield "expert_in", (1 + a.experts.gated) * a.experts.inner, hidden, a.experts.chosen
        yield "expert_out", hidden, a.experts.inner, a.experts.chosen


def products(c):
    """Name -> (n, k, layers that have the product, times a token passes the product in such a layer)."""
    hidden, found = c["hidden_size"], {}
    for a in describe(c).layers:
        own = [*mixer_products(a.mixer, hidden), *attention_products(a, hidden), *mlp_products(a, hidden)]
        own += pooled_products(a.pooled, hidden) if a.pooled else ()
        for name, n, k, times in own + (list(qwen4.products(c)) if qwen4.is_one(c) else []):
            found[name] = (n, k, found.get(name, (0, 0, 0))[2] + 1, times)
    return found


def is_ignored(name):
    return any(re.match(pattern.removeprefix("re:"), name.removesuffix(".weight")) for pattern in IGNORE)


def attention_layers(c):
    return sum(a.heads > 0 for a in describe(c).layers)


def attention_heads(c):
    """(heads, key heads, elements of a head, of a value) of these layers; pooled keys do not count."""
    a = next((a for a in describe(c).layers if a.heads), None)
    return (a.heads, a.kv_heads, a.head, a.head_v or a.head) if a else (0, 0, 0, 0)


def tensors(c):
    """(name, shape, kind of recipe.py, contents) of all tensors. contents: "linear", in the checkpoint's format; "weight", of a normal
    distribution; the mean of a vector's values; or an array of all values."""
    rng = np.random.default_rng(12)
    means = {"norm": 1.0, "shifted norm": 0.0, "bias": 0.0}
    own = qwen4.tensors(c) if qwen4.is_one(c) else ()
    for name, shape, kind in (*recipe.tensors(describe(c)), *own):
        short = kind.removeprefix("wide ")
        if short in recurrent.KINDS:
            yield name, shape, kind, recurrent.values(short, shape, rng.random(shape, np.float32),
                                                      rng.standard_normal(shape, np.float32))
        elif kind.startswith("table "):
            first = rng.integers(int(kind[6:]) - shape[1], size=(shape[0], 1))
            yield name, shape, kind, np.arange(shape[1]) + first
        elif short in means:
            yield name, shape, kind, means[short]
        else:
            yield name, shape, kind, "linear" if kind == "linear" and not is_ignored(name) else "weight"
