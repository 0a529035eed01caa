"""Published models with recurrent layers, block-sparse attention or pooled keys for make_checkpoint.py: their
configurations, and their tensors by recipe.py.

Of wrappers it is the text model alone, as text-only files have it.
"""

import numpy as np

import families
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
}
# Modules that are not quantised.
IGNORE = ["re:.*in_proj_(a|b|ba)$", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*mixer.gate$", "re:.*block_sparse_moe.gate$",
          "re:.*compressor\\.w", "re:.*weights_proj$", "re:.*ffn\\.gate$", "re:head$"]


def is_by_recipe(c):
    return any(key in c for key in ("linear_num_key_heads", "hybrid_override_pattern", "index_block_size", "compress_ratios"))


def with_layers(c, layers):
    if "hybrid_override_pattern" in c:
        c["hybrid_override_pattern"] = c["hybrid_override_pattern"][:layers]
    if "index_block_size" in c and layers < c["num_hidden_layers"]:  # one layer is dense
        for key in ("layer_types", "mlp_layer_types"):
            c[key] = [c[key][0], *c[key][1 - layers:]] if layers > 1 else c[key][:1]


def products(c):
    """Name -> (n, k, layers that have the product, times a token passes the product in such a layer), as few products as can be."""
    hidden, found = c["hidden_size"], {}

    def add(name, n, k, times=1):
        found[name] = (n, k, found.get(name, (0, 0, 0))[2] + 1, times)

    for a in families.describe(c).layers:
        if isinstance(a.mixer, recurrent.DeltaRule):
            values = a.mixer.value_heads * a.mixer.value
            add("delta_in", a.mixer.channels + values + 2 * a.mixer.value_heads, hidden)
            add("delta_out", hidden, values)
        elif a.mixer:
            add("mamba_in", a.mixer.inner + a.mixer.channels + a.mixer.heads, hidden)
            add("mamba_out", hidden, a.mixer.inner)
        if a.heads:
            choice = (a.kv_heads + 1) * a.blocks_seen.head if a.blocks_seen else 0
            add("qkv", ((1 + a.gate_in_q) * a.heads + 2 * a.kv_heads) * a.head + choice, hidden)
            add("o", hidden, a.heads * a.head)
        if a.inner:
            add("gate_up" if a.gated else "up", (1 + a.gated) * a.inner, hidden)
            add("down", hidden, a.inner)
        if a.experts:
            add("expert_in", (1 + a.experts.gated) * a.experts.inner, hidden, a.experts.chosen)
            add("expert_out", hidden, a.experts.inner, a.experts.chosen)
    return found


def attention_layers(c):
    return sum(a.heads > 0 for a in families.describe(c).layers)


def tensors(c):
    """(name, shape, kind of recipe.py, contents) of all tensors. contents: "linear", in the checkpoint's format; "weight", of a normal
    distribution; the mean of a vector's values; or an array of all values."""
    rng = np.random.default_rng(12)
    means = {"norm": 1.0, "shifted norm": 0.0, "bias": 0.0}
    for name, shape, kind in recipe.tensors(families.describe(c)):
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
            yield name, shape, kind, "linear" if kind == "linear" else "weight"
