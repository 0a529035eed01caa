"""As families.py: models with latent attention."""

import math
from dataclasses import replace

from family_keys import act_of, build, partial, rms, rope_settings
from mixture_families import STACKED, experts_of, mixed, sigmoid_router, sparse_from
from pooled import Pooled, Streams
from recipe import Experts, Indexer, Latent, Norm, Rope, Router


def latent(c, head_v=None, **rope):
    """Changes of all layers."""
    turning, settings = c["qk_rope_head_dim"], rope_settings(c)
    head, bias = c["qk_nope_head_dim"] + turning, c.get("attention_bias", False)
    scale, weight = head ** -0.5, settings.get("mscale_all_dim")
    if settings["rope_type"] != "default" and weight:
        scale *= (0.1 * weight * math.log(settings["factor"]) + 1) ** 2 if settings["factor"] > 1 else 1
    return {"latent": Latent(c["kv_lora_rank"], c["q_lora_rank"], turning, bias=bias), "head_v": c["v_head_dim"],
            "rope": Rope(turning, settings, c.get("rope_interleave", True)), "scale": scale, "o_bias": bias}


def with_mixture(c, norm, router, layer=None, stacked=False, **more):
    e = experts_of(c, router, **(STACKED if stacked else {}))
    beside = mixed(e, c["moe_intermediate_size"] * c["n_shared_experts"], "mlp.shared_experts")
    sparse, head = sparse_from(c), c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    return build(c | {"num_key_value_heads": None}, norm, head_dim=head, layer=latent(c) | (layer or {}),
                 own=lambda i: beside if sparse[i] else {}, **more)


def deepseek_v2(c):
    limited = c.get("topk_method", "greedy") == "group_limited_greedy"
    router = Router(normalised=False, groups=c["n_group"] if limited else 1, kept=c["topk_group"] if limited else 1,
                    group_best=1, outside=0.0, scale=c.get("routed_scaling_factor", 1.0), exact=True)
    return with_mixture(c, rms(c), router, {"mlp_bias": c.get("mlp_bias", False)})


def minicpm3(c):
    n, bias = c["num_hidden_layers"], c.get("mlp_bias", False)
    c = {"v_head_dim": c["hidden_size"] // c["num_attention_heads"], "rope_interleave": False} | c
    return build(c | {"num_key_value_heads": None}, rms(c, 1e-5), head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
                 layer=latent(c) | {"residual": c.get("scale_depth", 1.4) / math.sqrt(n), "mlp_bias": bias}, tied=True,
                 embed_scale=c.get("scale_emb", 12), logit_scale=c.get("dim_model_base", 256) / c["hidden_size"])


def youtu(c):
    return build(c | {"num_key_value_heads": None}, rms(c), head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"], layer=latent(c),
                 tied=True)


def longcat_flash(c):
    """Each of the file's layers is two, and the first one's experts join behind the second."""
    n, hidden, made = c["num_layers"], c["hidden_size"], latent(c) | {"act": act_of(c)}
    made["scale"] *= (hidden / c["q_lora_rank"]) ** 0.5
    made["latent"] = replace(made["latent"], factor=(hidden / c["kv_lora_rank"]) ** 0.5)
    router = Router("mlp.router.classifier", correction="mlp.router.e_score_correction_bias", normalised=False, exact=True,
                    scale=c.get("routed_scaling_factor", 6.0))
    e = experts_of(c, router, chosen=c["moe_topk"], inner=c["expert_ffn_hidden_size"], identity=c.get("zero_expert_num") or 0)

    def own(i):
        at = i % 2
        return {"stem": f"model.layers.{i // 2}.", "attention_in": f"input_layernorm.{at}", "mlp_in": f"post_attention_layernorm.{at}",
                "gate_up": (f"mlps.{at}.gate_proj", f"mlps.{at}.up_proj"), "down": f"mlps.{at}.down_proj",
                "o": f"self_attn.{at}.o_proj", "latent": replace(made["latent"], module=f"self_attn.{at}"),
                "shortcut": "takes" if at else "leaves", "experts": None if at else e}

    return build(c | {"num_key_value_heads": None, "num_hidden_layers": 2 * n, "intermediate_size": c["ffn_hidden_size"]}, rms(c, 1e-5),
                 head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"], layer=made, own=own)


def deepseek_v3(c):
    return with_mixture(c, rms(c), sigmoid_router(c))


def glm4_moe_lite(c):
    return with_mixture(c, rms(c, 1e-5), sigmoid_router(c))


def mistral4(c, **more):
    s = rope_settings(c)
    router = Router(normalised=c.get("norm_topk_prob", True), groups=c.get("n_group", 1), kept=c.get("topk_group", 1),
                    outside=0.0, added=1e-20, scale=c.get("routed_scaling_factor", 1.0))
    factor = (s["llama_4_scaling_beta"], s["original_max_position_embeddings"])
    return with_mixture(c, rms(c), router, {"query_factor": factor}, stacked=True, **more)


def sparse(c, m, interleaved, types):
    """The Model with an indexer in every layer; types: whether a layer has its own."""
    def one(a, own):
        index = Indexer(c["index_topk"], c["index_n_heads"], c["index_head_dim"], interleaved, shared=not own)
        return replace(a, latent=replace(a.latent, index=index))

    return replace(m, layers=tuple(one(a, own) for a, own in zip(m.layers, types)))


def deepseek_v32(c):
    return sparse(c, with_mixture(c, rms(c), sigmoid_router(c)), False, [True] * c["num_hidden_layers"])


def choosing(c):
    """Whether each layer has an indexer of its own."""
    types = c.get("indexer_types") or c.get("index_topk_pattern")
    freq, offset = max(c.get("index_topk_freq", 1), 1), c.get("index_skip_topk_offset", 2)
    return [t in ("full", "F") for t in types] if types else [
        max(i - offset + 1, 0) % freq == 0 for i in range(c["num_hidden_layers"])]


def glm_moe_dsa(c):
    return sparse(c, with_mixture(c, rms(c, 1e-5), sigmoid_router(c)), True, choosing(c))


def hy_v4(c):
    """The indexer's norm has the model's epsilon; experts alone are clamped."""
    norm, n, inner = rms(c, 1e-5), c["num_hidden_layers"], c["moe_intermediate_size"] * c["n_shared_experts"]
    types = c.get("indexer_types") or ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(n)]
    limit = {"limit": c["swiglu_limit"], "limit_first": True} if c.get("swiglu_limit", 10.0) > 0 else {}
    beside = mixed(experts_of(c, sigmoid_router(c), **STACKED, **limit), inner, "mlp.shared_experts")
    of = latent(c | {"rope_interleave": False}) | {"sinks": "self_attn.learnable_sink_param",
                                                   "out_gate": ("self_attn.linear_gate", "sigmoid", True)}
    sparse_layer, eps = sparse_from(c), c.get("hc_eps", 1e-6)

    def own(i):
        index = Indexer(c["index_topk"], c["index_n_heads"], c["index_head_dim"], False, True, shared=types[i] == "shared",
                        norm=Norm(kind="layer", bias=True, eps=norm.eps))
        return of | {"latent": replace(of["latent"], index=index)} | (beside if sparse_layer[i] else {})

    streams = Streams(c.get("hc_mult", 4), 0, eps, norm.eps, (c.get("hc_magnitude", 2.0), eps),
                      ("hc_pre.hc_attn_layer.hc", "hc_pre.hc_mlp_layer.hc"), "model.hc_pre.hc_head.hc_head")
    return build(c | {"num_key_value_heads": None}, norm, head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"], own=own,
                 streams=streams)


BLOCKS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def v4_types(c):
    if c.get("layer_types"):
        return c["layer_types"]
    if c.get("compress_ratios"):
        return [{ratio: kind for kind, ratio in BLOCKS.items()}[ratio] for ratio in c["compress_ratios"]]
    sparse, heavy = list(BLOCKS)[1:]
    return [sparse if i >= 2 and i % 2 else heavy for i in range(c["num_hidden_layers"])]


def v4_rope(c, plain, turning):
    new = c.get("rope_parameters") or {}
    if "main" in new:
        return Rope(turning, rope_settings(c, "main" if plain else "compress"), True)
    if plain:
        return Rope(turning, {"rope_type": "default", "rope_theta": float(c.get("rope_theta", 10000.0))}, True)
    settings = rope_settings(c) | {"rope_theta": float(c.get("compress_rope_theta", 160000.0))}
    return Rope(turning, {"attention_factor": 1.0} | settings, True)


def deepseek_v4(c):
    def of(key, default):
        return c.get(key, default)

    head, norm, types = of("head_dim", 512), rms(c, once=True), v4_types(c)
    turning = c.get("qk_rope_head_dim") or int(head * partial(c, 64 / 512))
    blocks = BLOCKS | (c.get("compress_rates") or {})
    index = of("index_topk", 512), of("index_n_heads", 64), of("index_head_dim", 128)
    common = Pooled(c["num_attention_heads"], head, turning, of("q_lora_rank", 1024), of("sliding_window", 128), of("o_groups", 8),
                    of("o_lora_rank", 1024), norm.eps)
    inner = c.get("moe_intermediate_size") or c["intermediate_size"]
    limit = {"limit": of("swiglu_limit", 10.0), "limit_first": True}
    hashed = c.get("mlp_layer_types") or ["hash_moe"] * of("num_hash_layers", 3)

    def own(i):
        sparse, table = types[i] == "compressed_sparse_attention", i < len(hashed) and hashed[i] == "hash_moe"
        router = Router("ffn.gate", scores=of("scoring_func", "sqrtsoftplus"), table="ffn.gate.tid2eid" if table else None,
                        correction=None if table else "ffn.gate.bias", added=1e-20, scale=of("routed_scaling_factor", 1.5))
        experts = Experts(of("n_routed_experts", 256), of("num_experts_per_tok", 6), inner, router, act=act_of(c),
                          gate_up=("ffn.experts.{}.w1", "ffn.experts.{}.w3"), down="ffn.experts.{}.w2", **limit)
        return {"experts": experts, "rope": v4_rope(c, types[i] == "sliding_attention", turning),
                "pooled": replace(common, block=blocks[types[i]], overlaps=sparse, index=index if sparse else None)}

    shared = "ffn.shared_experts"
    return build(c | {"intermediate_size": inner}, norm, stem="layers.{}.", head_dim=head, own=own,
                 layer={"heads": 0, "kv_heads": 0, "attention_in": "attn_norm", "mlp_in": "ffn_norm", "act": act_of(c),
                        "gate_up": (f"{shared}.w1", f"{shared}.w3"), "down": f"{shared}.w2", **limit},
                 embed="embed", final="norm", head="head", streams=Streams(
                     of("hc_mult", 4), of("hc_sinkhorn_iters", 20), of("hc_eps", 1e-6), norm.eps))


FAMILIES = {f.__name__: f for f in (deepseek_v2, minicpm3, youtu, deepseek_v3, glm4_moe_lite, mistral4, deepseek_v32, glm_moe_dsa,
                                    deepseek_v4, hy_v4, longcat_flash)}
FAMILIES["deepseek_ref"] = deepseek_v4  # SGLang's name
