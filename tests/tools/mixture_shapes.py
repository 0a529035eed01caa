"""Published mixtures of experts for make_checkpoint.py: their configurations and tensors.

A tensor is a product (module, n, k), which has the format's parts; or plain (name, shape, mean), whose values are a
normal distribution's if mean is None and else near it; or a stack of experts in gpt-oss' own MXFP4.
"""

ROPE_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}


def _config(family, architecture, hidden, inner, layers, heads, kv_heads, vocab, **more):
    return {"model_type": family, "architectures": [architecture], "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "vocab_size": vocab, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "tie_word_embeddings": False,
            "sliding_window": None, **more}


def _gpt_oss(layers, experts):
    kinds = ("sliding_attention", "full_attention")
    return _config("gpt_oss", "GptOssForCausalLM", 2880, 2880, layers, 64, 8, 201088, head_dim=64,
                   num_local_experts=experts, num_experts_per_tok=4, sliding_window=128, swiglu_limit=7.0,
                   rope_theta=150000, attention_bias=True, max_position_embeddings=131072,
                   layer_types=[kinds[i % 2] for i in range(layers)],
                   rope_scaling={"rope_type": "yarn", "factor": 32.0, "truncate": False, **ROPE_YARN},
                   quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
                       "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})


SHAPES = {
    "qwen3-30b-a3b": _config("qwen3_moe", "Qwen3MoeForCausalLM", 2048, 6144, 48, 32, 4, 151936, head_dim=128,
                             num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
                             decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-06,
                             max_position_embeddings=40960),
    "mixtral-8x7b": _config("mixtral", "MixtralForCausalLM", 4096, 14336, 32, 32, 8, 32000, head_dim=128,
                            num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=32768),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "deepseek-v3": _config("deepseek_v3", "DeepseekV3ForCausalLM", 7168, 18432, 61, 128, 128, 129280,
                           q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
                           v_head_dim=128, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                           moe_intermediate_size=2048, first_k_dense_replace=3, n_group=8, topk_group=4,
                           norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid",
                           topk_method="noaux_tc", moe_layer_freq=1, num_nextn_predict_layers=0, rms_norm_eps=1e-06,
                           rope_theta=10000, max_position_embeddings=163840,
                           rope_scaling={"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                                         **ROPE_YARN}),
}


def _sized(shape, hidden, inner, experts, chosen, heads, kv_heads, layers, vocab, **more):
    """A shape with the sizes of another model. inner: an expert's."""
    c = SHAPES[shape]
    experts_key = next(k for k in ("num_experts", "num_local_experts", "n_routed_experts") if k in c)
    inner_key = "moe_intermediate_size" if "moe_intermediate_size" in c else "intermediate_size"
    return c | {"hidden_size": hidden, inner_key: inner, experts_key: experts, "num_experts_per_tok": chosen,
                "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": layers,
                "vocab_size": vocab, **more}


# For rates: the sizes of published models in families that are above, whose layers are nearly theirs.
SHAPES |= {
    "qwen3-235b-a22b": _sized("qwen3-30b-a3b", 4096, 1536, 128, 8, 64, 4, 94, 151936, intermediate_size=12288),
    "like-glm-4.5-air": _sized("qwen3-30b-a3b", 4096, 1408, 128, 8, 96, 8, 46, 151552),
    "like-minimax-m2": _sized("qwen3-30b-a3b", 3072, 1536, 256, 8, 48, 8, 62, 200064),
    "like-olmoe": _sized("qwen3-30b-a3b", 2048, 1024, 64, 8, 16, 16, 16, 50304),
    "like-granite-3b": _sized("qwen3-30b-a3b", 1536, 512, 40, 8, 24, 8, 32, 49152, head_dim=64),
    "like-llama-4-scout": _sized("mixtral-8x7b", 5120, 8192, 16, 1, 40, 8, 48, 202048),
    "like-deepseek-v2-lite": _sized("deepseek-v3", 2048, 1408, 64, 6, 16, 16, 27, 102400, intermediate_size=10944,
                                    n_shared_experts=2, n_group=1, topk_group=1),
    "like-glm-4.7-flash": _sized("deepseek-v3", 2048, 1536, 64, 4, 20, 20, 47, 154880, intermediate_size=10240,
                                 q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256, n_group=1, topk_group=1),
}
# Modules that are not quantised, for quantization_config.
IGNORE = {"qwen3_moe": ["re:.*mlp.gate$"], "mixtral": ["re:.*block_sparse_moe.gate$"], "deepseek_v3": ["re:.*mlp.gate$"]}


def with_layers(config, layers):
    """The configuration with fewer layers: of DeepSeek's, one is dense."""
    if config["model_type"] == "deepseek_v3" and layers < config["num_hidden_layers"]:
        config["first_k_dense_replace"] = 1
    config["num_hidden_layers"] = layers


def n_experts(c):
    """Routed experts of a layer, and those that a token has; (0, 0): not a mixture."""
    n = c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts") or 0
    return n, (c.get("num_experts_per_tok") or c["num_experts_per_token"]) if n else 0


def expert_inner(c):
    return c.get("moe_intermediate_size") or c["intermediate_size"]


def attention(c):
    """(module, n, k) of a layer's attention."""
    h, heads = c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        nope, turning, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        return [("self_attn.q_a_proj", c["q_lora_rank"], h), ("self_attn.q_b_proj", heads * (nope + turning), c["q_lora_rank"]),
                ("self_attn.kv_a_proj_with_mqa", c["kv_lora_rank"] + turning, h),
                ("self_attn.kv_b_proj", heads * (nope + v), c["kv_lora_rank"]), ("self_attn.o_proj", h, heads * v)]
    q, kv = heads * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    return [("self_attn.q_proj", q, h), ("self_attn.k_proj", kv, h), ("self_attn.v_proj", kv, h), ("self_attn.o_proj", h, q)]


def _gated(module, names, inner, h):
    gate, up, down = names
    return [(f"{module}.{gate}", inner, h), (f"{module}.{up}", inner, h), (f"{module}.{down}", h, inner)]


def products(c, layer):
    """(module, n, k) of a layer's products in the checkpoint's format."""
    h, names, (n, _) = c["hidden_size"], ("gate_proj", "up_proj", "down_proj"), n_experts(c)
    if c["model_type"] == "gpt_oss":
        return []
    if layer < c.get("first_k_dense_replace", 0):
        return attention(c) + _gated("mlp", names, c["intermediate_size"], h)
    module = "mlp.experts.%d"
    if c["model_type"] == "mixtral":
        names, module = ("w1", "w3", "w2"), "block_sparse_moe.experts.%d"
    out = attention(c)
    for e in range(n):
        out += _gated(module % e, names, expert_inner(c), h)
    if c.get("n_shared_experts"):
        out += _gated("mlp.shared_experts", names, c["n_shared_experts"] * expert_inner(c), h)
    return out


def plain(c, layer):
    """(name, shape, mean) of a layer's other tensors."""
    h, (n, _), inner = c["hidden_size"], n_experts(c), expert_inner(c)
    out = [("input_layernorm.weight", (h,), 1.0), ("post_attention_layernorm.weight", (h,), 1.0)]
    if c["model_type"] == "qwen3_moe":
        out += [("self_attn.q_norm.weight", (c["head_dim"],), 1.0), ("self_attn.k_norm.weight", (c["head_dim"],), 1.0)]
    if "kv_lora_rank" in c:
        out += [("self_attn.q_a_layernorm.weight", (c["q_lora_rank"],), 1.0),
                ("self_attn.kv_a_layernorm.weight", (c["kv_lora_rank"],), 1.0)]
    if layer < c.get("first_k_dense_replace", 0):
        return out
    router = {"mixtral": "block_sparse_moe.gate", "gpt_oss": "mlp.router"}.get(c["model_type"], "mlp.gate")
    out.append((f"{router}.weight", (n, h), None))
    if c["model_type"] == "deepseek_v3":
        out.append(("mlp.gate.e_score_correction_bias", (n,), None))
    if c["model_type"] == "gpt_oss":
        out += [("mlp.router.bias", (n,), None), ("self_attn.sinks", (c["num_attention_heads"],), None),
                ("mlp.experts.gate_up_proj_bias", (n, 2 * inner), None), ("mlp.experts.down_proj_bias", (n, h), None)]
        for module, rows, k in attention(c):
            out += [(f"{module}.weight", (rows, k), None), (f"{module}.bias", (rows,), None)]
    return out


def stacks(c):
    """(name, n, k) of gpt-oss' stacked experts: blocks and scales of MXFP4."""
    if c["model_type"] != "gpt_oss":
        return []
    h, inner = c["hidden_size"], expert_inner(c)
    return [("mlp.experts.gate_up_proj", 2 * inner, h), ("mlp.experts.down_proj", h, inner)]
