"""As families.py: mixtures of experts."""

from dataclasses import replace

from family_keys import (act_of, build, head_of, interleaved, layer_types, partial, rms, rope_settings)
from recipe import Blocks, Experts, Norm, Rope, Router

W123 = {"gate_up": ("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
        "down": "block_sparse_moe.experts.{}.w2"}
STACKED = {"gate_up": ("mlp.experts.gate_up_proj",), "down": "mlp.experts.down_proj"}


def experts_of(c, router, *, n=None, chosen=None, inner=None, **more):
    first = {key: c[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if c.get(key)}
    return Experts(n or next(iter(first.values())), chosen or c["num_experts_per_tok"],
                   inner or c["moe_intermediate_size"], router, **{"act": act_of(c)} | more)


def mixed(experts, shared=0, stem="mlp.shared_expert", gate=None):
    """Changes of a layer with experts; shared: width of the dense MLP beside them."""
    return {"experts": experts, "inner": shared, "shared_gate": gate, "down": f"{stem}.down_proj",
            "gate_up": (f"{stem}.gate_proj", f"{stem}.up_proj")}


def apart(m):
    """The Model with a module for each expert, as files of llm-compressor have them."""
    def one(e):
        if not e.gated:  # Nemotron's, which no file stacks
            return e
        block = e.down.split(".")[0]
        block = "mlp" if block == "moe" else block  # Step's
        stem = e.down[:e.down.find("experts") + 7] if "experts" in e.down else f"{block}.experts"
        return replace(e, gate_up=(f"{stem}.{{}}.gate_proj", f"{stem}.{{}}.up_proj"), down=f"{stem}.{{}}.down_proj",
                       columns=False, mixed_rows=False)

    return replace(m, layers=tuple(replace(a, experts=one(a.experts)) if a.experts else a for a in m.layers))


def dbrx_apart(m):
    """The Model as mlx-lm converts DBRX: a module for each expert."""
    def called(name):
        return name.replace(".mlp.", ".{}.")

    return replace(m, layers=tuple(replace(a, experts=replace(a.experts, flat=False, down=called(a.experts.down),
                                                              gate_up=tuple(map(called, a.experts.gate_up)))) for a in m.layers))


def by_mlx(m):
    """The Model as mlx-lm converts Qwen's: stacks of experts, convolutions [channels, taps, 1], norms with the 1 added."""
    def one(a):
        e, mixer = a.experts, a.mixer
        stem = e and e.down.split("experts")[0] + "switch_mlp."
        return replace(
            a, norm=replace(a.norm, offset=0.0), qk_norm=a.qk_norm and replace(a.qk_norm, offset=0.0),
            mixer=mixer and replace(mixer, by_mlx=True),
            experts=e and replace(e, gate_up=(stem + "gate_proj.weight", stem + "up_proj.weight"), down=stem + "down_proj.weight",
                                  columns=False, mixed_rows=False))

    return replace(m, norm=replace(m.norm, offset=0.0), layers=tuple(map(one, m.layers)))


# What transformers 5's classes call tensors and modules of a layer in memory.
IN_MEMORY = {
    "mixtral": {"block_sparse_moe": "mlp"},
    **{kind: {"block_sparse_moe": "mlp"} for kind in ("minimax", "minimax_text_01", "minimax_m1", "minimax_m2")},
    "phimoe": {"block_sparse_moe.gate": "mlp.router", "block_sparse_moe": "mlp"},
    "ernie4_5_moe": {"mlp.moe_statics": "mlp.gate.moe_statics"},
    "granitemoe": {"block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
                   "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
                   "block_sparse_moe.router.layer": "block_sparse_moe.router"},
    "hy_v3": {"mlp.router.gate": "mlp.gate", "mlp.expert_bias": "mlp.e_score_correction_bias",
              "mlp.shared_mlp": "mlp.shared_experts"},
    "laguna": {"mlp.experts.e_score_correction_bias": "mlp.gate.e_score_correction_bias",
               "mlp.shared_expert": "mlp.shared_experts"},
    "mimo_v2_flash": {"self_attn.attention_sink_bias": "self_attn.sinks"},
    "step3p5": {"moe.gate": "mlp.gate", "moe.router_bias": "mlp.gate.e_score_correction_bias", "moe": "mlp.experts",
                "share_expert": "mlp.shared_experts"},
}


def names_of(kind, how):
    """Some names of the tensors in a file that has experts apart, as modules or stacked, the latter two as in memory."""
    parts = {"apart": ["experts.0.down_proj"], "modules": ["experts.0.down_proj"], "stacked": ["experts.gate_up_proj"]}
    if how == "mlx":
        return ["model.layers.1.mlp.switch_mlp.gate_proj.weight"]
    if how not in parts:
        return []
    if kind == "dbrx":
        return ["transformer.blocks.0.ffn.experts.0.w1.weight"]
    renamed = [] if how == "apart" else IN_MEMORY.get(kind, {}).values()
    return [f"model.language_model.layers.1.{part}.weight" for part in (*parts[how], *renamed)]


def as_class(m, kind, names):
    """The Model as a file with these names has it: as described, or as transformers 5's class has it in memory."""
    table, names = IN_MEMORY.get(kind, {}), [name.removesuffix("_packed") for name in names]
    stacked = any(".experts.gate_up_proj" in name for name in names)
    renamed = {old for old, new in table.items() for name in names
               if f".{new}." in f"{name}." and f".{old}." not in f"{name}."}

    def called(text):
        old = next((old for old in table if text and f"{text}.".startswith(f"{old}.")), None)
        return table[old] + text[len(old):] if old in renamed else text

    def one(e):
        e = replace(e, router=replace(e.router, module=called(e.router.module), correction=called(e.router.correction)),
                    gate_up=tuple(map(called, e.gate_up)), down=called(e.down))
        return replace(e, **STACKED) if stacked and len(e.gate_up) == 2 else e

    return replace(m, layers=tuple(
        replace(a, experts=a.experts and one(a.experts), gate_up=tuple(map(called, a.gate_up)), down=called(a.down),
                sinks=called(a.sinks)) for a in m.layers))


def sigmoid_router(c, **more):
    return Router(**{"scores": "sigmoid", "correction": "mlp.gate.e_score_correction_bias", "added": 1e-20, "exact": True,
                     "groups": c.get("n_group") or 1, "kept": c.get("topk_group") or 1,
                     "normalised": c.get("norm_topk_prob", True), "scale": c.get("routed_scaling_factor", 1.0)} | more)


def sparse_from(c, name="first_k_dense_replace", default=1):
    """Whether each layer has experts."""
    if c.get("mlp_layer_types"):
        return [t == "sparse" for t in c["mlp_layer_types"]]
    return [i >= c.get(name, default) for i in range(c["num_hidden_layers"])]


def sigmoid_mixture(c, norm, layer, **more):
    """GLM's, dots' and Solar's layers: a shared expert and a router with groups."""
    e = experts_of(c, sigmoid_router(c))
    beside = mixed(e, c["moe_intermediate_size"] * (c.get("n_shared_experts") or 0), "mlp.shared_experts")
    sparse = sparse_from(c)
    return build(c, norm, layer=layer, own=lambda i: beside if sparse[i] else {}, **more)


# ---- the families -----------------------------------------------------------------------------------

def mixtral(c):
    router = Router("block_sparse_moe.gate")
    return build(c, rms(c, 1e-5), windows=c.get("sliding_window"),
                 layer=mixed(experts_of(c, router, inner=c["intermediate_size"], **W123)))


def dbrx(c):
    a, f = c.get("attn_config") or {}, c["ffn_config"]
    c = {"hidden_size": c["d_model"], "num_hidden_layers": c["n_layers"], "num_attention_heads": c["n_heads"],
         "intermediate_size": f["ffn_hidden_size"], "num_key_value_heads": a.get("kv_n_heads", 1),
         "rope_theta": a.get("rope_theta", 10000.0)} | c
    router = Router("ffn.router.layer", normalised=f.get("moe_normalize_expert_weights", 1.0) is not None)
    name = "ffn.experts.mlp."
    e = experts_of(c, router, n=f["moe_num_experts"], chosen=f["moe_top_k"], inner=f["ffn_hidden_size"], flat=True,
                   act=(f.get("ffn_act_fn") or {}).get("name", "silu"), gate_up=(name + "w1", name + "v1"), down=name + "w2")
    layer = {"attention_in": "norm_attn_norm.norm_1", "mlp_in": "norm_attn_norm.norm_2", "o": "norm_attn_norm.attn.out_proj",
             "projections": ("norm_attn_norm.attn.Wqkv",), "clip": a.get("clip_qkv")}
    return build(c, Norm("layer", 1e-5), stem="transformer.blocks.{}.", layer=layer | mixed(e), embed="transformer.wte",
                 final="transformer.norm_f")


def qwen_mixture(c, layer, shared=0, **more):
    router = Router(normalised=c.get("norm_topk_prob", False))
    beside = mixed(experts_of(c, router, **more.pop("experts", {})), shared, gate="mlp.shared_expert_gate" if shared else None)
    step, dense = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or ()
    return build(c, rms(c), layer=layer, own=lambda i: beside if i not in dense and (i + 1) % step == 0 else {}, **more)


def qwen2_moe(c):
    window = c.get("sliding_window", 4096) if c.get("use_sliding_window") else None
    slides = layer_types(c) if c.get("layer_types") else [
        i >= c.get("max_window_layers", 28) for i in range(c["num_hidden_layers"])]
    return qwen_mixture(c, {"qkv_bias": c.get("qkv_bias", True)}, c["shared_expert_intermediate_size"],
                        windows=[window if s else None for s in slides])


def qwen3_moe(c, **more):
    bias = c.get("attention_bias", False)
    return qwen_mixture(c, {"qkv_bias": bias, "o_bias": bias, "qk_norm": rms(c)}, head_dim=head_of(c),
                        windows=c.get("sliding_window") if c.get("use_sliding_window") else None, **more)


def qwen3_vl_moe_text(c):
    return qwen3_moe({"norm_topk_prob": True} | c, experts=STACKED | {"columns": True})


def olmoe(c):
    norm, bias = rms(c, 1e-5), c.get("attention_bias", False)
    e = experts_of(c, Router(normalised=c.get("norm_topk_prob", False)), inner=c["intermediate_size"])
    return build(c, norm, layer={"qk_norm": norm, "qk_over": "width", "clip_after": c.get("clip_qkv"), "qkv_bias": bias,
                                 "o_bias": bias} | mixed(e))


def glm4_moe(c):
    head, norm = head_of(c), rms(c, 1e-5)
    return sigmoid_mixture(c, norm, {"qkv_bias": c.get("attention_bias", False),
                                     "qk_norm": norm if c.get("use_qk_norm") else None},
                           rope=Rope(int(head * partial(c, 0.5)), rope_settings(c)))


def glm4v_moe_text(c):
    return glm4_moe({"attention_bias": True} | c | {"use_qk_norm": False})


def dots1(c):
    slides = layer_types(c) if c.get("layer_types") else [
        i >= c.get("max_window_layers", 62) for i in range(c["num_hidden_layers"])]
    bias = c.get("attention_bias", False)
    return sigmoid_mixture(c, rms(c), {"qkv_bias": bias, "o_bias": bias, "qk_norm": rms(c)},
                           windows=[c.get("sliding_window", 4096) if s else None for s in slides])


def solar_open(c):
    c = {"first_k_dense_replace": 0, "intermediate_size": 0} | c
    return sigmoid_mixture(c, rms(c, 1e-5), {"qkv_bias": c.get("attention_bias", False)}, head_dim=head_of(c, 128),
                           rope=Rope(int(head_of(c, 128) * partial(c)), rope_settings(c)))


def minimax_m2(c):
    norm, head = rms(c), head_of(c)
    router = sigmoid_router(c, module="block_sparse_moe.gate", added=0.0, scale=1.0, normalised=True,
                            correction="block_sparse_moe.e_score_correction_bias")
    rotated = c.get("rotary_dim") or int(head * partial(c))
    return build(c, norm, rope=Rope(rotated, rope_settings(c)), layer={"qk_norm": norm, "qk_over": "width"} | mixed(
        experts_of(c, router, inner=c["intermediate_size"], **W123)))


def minimax_m3(c):
    n, norm, older = c["num_hidden_layers"], rms(c, offset=1.0), c.get("sparse_attention_config") or {}
    router = sigmoid_router(c, module="block_sparse_moe.gate", added=0.0, groups=1, normalised=True,
                            correction="block_sparse_moe.e_score_correction_bias", scale=c.get("routed_scaling_factor", 2.0))
    clamped = {"act": "gpt_oss", "limit": c.get("swiglu_limit", 7.0)}
    e = experts_of(c, router, inner=c["intermediate_size"], **W123, **clamped)
    beside = mixed(e, c["shared_intermediate_size"], "block_sparse_moe.shared_experts")
    sizes = [older.get(old, c.get(new)) for old, new in (
        ("sparse_block_size", "index_block_size"), ("sparse_topk_blocks", "index_topk_blocks"),
        ("sparse_local_block", "index_local_blocks"), ("sparse_index_dim", "index_head_dim"))]
    types, kinds = c.get("layer_types"), c.get("mlp_layer_types")
    chooses = [t == "minimax_m3_sparse" for t in types] if types else older.get("sparse_attention_freq", [0] * n)
    sparse = [k == "sparse" for k in kinds] if kinds else c.get("moe_layer_freq", [1] * n)
    rotated = int(head_of(c) * partial(c, (c.get("rotary_dim") or head_of(c)) / head_of(c)))

    def own(i):
        choice = {"blocks_seen": Blocks(*sizes)} if chooses[i] else {}
        return choice | (beside if sparse[i] else {"inner": c["dense_intermediate_size"]})

    return build(c, norm, rope=Rope(rotated, rope_settings(c)), own=own, layer={"qk_norm": norm} | clamped)


def ernie4_5_moe(c):
    head, bias = head_of(c), c.get("use_bias", False)
    router = Router(correction="mlp.moe_statics.e_score_correction_bias", correction_shape=(1,), wide=True, exact=True,
                    least=c.get("moe_norm_min", 1e-12))
    e = experts_of(c, router, n=c["moe_num_experts"], chosen=c["moe_k"])
    beside = mixed(e, c["moe_intermediate_size"] * c.get("moe_num_shared_experts", 0), "mlp.shared_experts")
    n, last = c["num_hidden_layers"], c.get("moe_layer_end_index", -1)
    last = n - 1 if last in (-1, None) else last

    def own(i):
        inside = c.get("moe_layer_start_index", 1) <= i <= last
        return beside if inside and (i + 1) % c.get("moe_layer_interval", 1) == 0 else {}

    return build(c, rms(c, 1e-5), head_dim=head, rope=interleaved(c, head), tied=True, own=own,
                 layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": bias})


def hunyuan_v1_moe(c):
    norm, bias = rms(c, 1e-5), c.get("attention_bias", False)

    def own(i):
        k = c["moe_topk"]
        e = experts_of(c, Router("mlp.gate.wg", wide=True, exact=True), chosen=k[i] if isinstance(k, list) else k,
                       inner=c["intermediate_size"])
        return mixed(e, c["intermediate_size"], "mlp.shared_mlp")

    return build(c, norm, own=own, layer={"qkv_bias": bias, "o_bias": bias, "qk_norm": norm, "qk_after_rope": True,
                                          "q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"})


def afmoe(c):
    norm, bias = rms(c, 1e-5, once=True), c.get("attention_bias", False)
    slides = layer_types(c, c.get("global_attn_every_n_layers", 4))
    router = sigmoid_router(c, module="mlp.router.gate", correction="mlp.expert_bias", scale=c.get("route_scale", 1.0), normalised=True)
    beside = mixed(experts_of(c, router), c["moe_intermediate_size"] * c.get("num_shared_experts", 2), "mlp.shared_experts")
    layer = {"attention_out": "post_attention_layernorm", "mlp_in": "pre_mlp_layernorm", "mlp_out": "post_mlp_layernorm", "qk_norm": norm,
             "out_gate": ("self_attn.gate_proj", "sigmoid", True), "qkv_bias": bias, "o_bias": bias}

    def own(i):
        return ({} if slides[i] else {"rope": None}) | (beside if i >= c.get("num_dense_layers", 1) else {})

    return build(c, norm, layer=layer, own=own, windows=[c.get("sliding_window", 1024) if s else None for s in slides],
                 embed_scale=c["hidden_size"] ** 0.5 if c.get("mup_enabled") else 1.0)


def hy_v3(c):
    norm, bias = rms(c, 1e-5), c.get("attention_bias", False)
    router = sigmoid_router(c, module="mlp.router.gate", correction="mlp.expert_bias",
                            scale=c.get("router_scaling_factor", 1.0), normalised=True)
    beside = mixed(experts_of(c, router), c["moe_intermediate_size"] * c.get("num_shared_experts", 1), "mlp.shared_mlp")
    sparse = sparse_from(c)
    return build(c, norm, own=lambda i: beside if sparse[i] else {},
                 layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False), "qk_norm": norm})


def granitemoe(c):
    stack = {"gate_up": ("block_sparse_moe.input_linear.weight",), "down": "block_sparse_moe.output_linear.weight"}
    e = experts_of(c, Router("block_sparse_moe.router.layer", scores="chosen"), inner=c["intermediate_size"], **stack)
    bias = c.get("attention_bias", False)
    layer = {"scale": c.get("attention_multiplier", 1.0), "residual": c.get("residual_multiplier", 1.0),
             "qkv_bias": bias, "o_bias": bias}
    return build(c, rms(c), layer=layer | mixed(e), embed_scale=c.get("embedding_multiplier", 1.0),
                 logit_scale=1 / c.get("logits_scaling", 1.0))


def phimoe(c):
    norm, bias = Norm("layer", c.get("rms_norm_eps", 1e-5), bias=True), c.get("attention_bias", False)
    router = Router("block_sparse_moe.gate", scores="sparsemixer", jitter=c.get("router_jitter_noise", 0.01))
    e = experts_of(c, router, inner=c["intermediate_size"], **W123)
    return build(c, norm, windows=c.get("sliding_window"), head_bias=c.get("lm_head_bias", False),
                 layer={"qkv_bias": bias, "o_bias": bias} | mixed(e))


def gpt_oss(c):
    slides, bias = layer_types(c, 2), c.get("attention_bias", True)
    e = experts_of(c, Router("mlp.router", bias=True, scores="chosen"), inner=c["intermediate_size"], bias=True,
                   columns=True, mixed_rows=True, act="gpt_oss", limit=c.get("swiglu_limit", 7.0), **STACKED)
    return build(c, rms(c, 1e-5), head_dim=head_of(c, 64), layer={
        "qkv_bias": bias, "o_bias": bias, "sinks": "self_attn.sinks"} | mixed(e),
        windows=[c.get("sliding_window", 128) if s else None for s in slides])


def llama4_text(c):
    n, norm, bias = c["num_hidden_layers"], rms(c, 1e-5), c.get("attention_bias", False)
    turns = c.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(n)]
    step = c.get("interleave_moe_layer_step", 1)
    sparse = c.get("moe_layers") or range(step - 1, n, step)
    e = experts_of(c, Router("feed_forward.router", scores="sigmoid", normalised=False, on_input=True), inner=c["intermediate_size"],
                   columns=True, gate_up=("feed_forward.experts.gate_up_proj",), down="feed_forward.experts.down_proj")

    def own(i):
        out = mixed(e, c["intermediate_size"], "feed_forward.shared_expert") if i in sparse else {
            "inner": c["intermediate_size_mlp"], "gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"),
            "down": "feed_forward.down_proj"}
        if not turns[i]:
            return out | {"rope": None, "query_factor": (c.get("attn_scale", 0.1), c.get("floor_scale", 8192), 1)
                          if c.get("attn_temperature_tuning", True) else None}
        plain = replace(norm, weight=False) if c.get("use_qk_norm", True) else None
        return out | {"chunk": c.get("attention_chunk_size", 8192), "qk_norm": plain, "qk_after_rope": True}

    head = head_of(c)
    return build(c, norm, rope=interleaved(c, head), own=own, layer={"qkv_bias": bias, "o_bias": bias})


def mimo_v2_flash(c):
    n, head = c["num_hidden_layers"], head_of(c)
    slides = layer_types(c) if c.get("layer_types") else [i > 0 and (i + 1) % 6 != 0 for i in range(n)]
    e = experts_of(c, sigmoid_router(c))
    sparse, few = sparse_from(c), c["num_key_value_heads"]

    def own(i):
        p = rope_settings(c, "sliding_attention" if slides[i] else "full_attention")
        out = {"rope": Rope(int(head * p.get("partial_rotary_factor", 0.334)), p)} | (mixed(e) if sparse[i] else {})
        return out | ({"kv_heads": 2 * few, "sinks": "self_attn.attention_sink_bias"} if slides[i] else {})

    bias = c.get("attention_bias", False)
    return build(c, rms(c), own=own, windows=[c.get("sliding_window", 128) if slides[i] else None for i in range(n)],
                 layer={"head_v": c["v_head_dim"], "value_scale": c.get("attention_value_scale") or 1.0, "qkv_bias": bias})


def mimo_v2(c):
    """The makers' class; files in FP8 have the fused rows rank by rank, as many ranks as full layers have key heads."""
    n, period, every = c["num_hidden_layers"], c.get("hybrid_block_size"), c.get("moe_layer_freq") or 0
    slides = c.get("hybrid_layer_pattern") or [bool(period and (i + 1) % period) for i in range(n)]
    sparse = every if isinstance(every, list) else [every > 0 and i % every == 0 for i in range(n)]
    fused = c.get("attention_projection_layout") == "fused_qkv"
    ranks = c["num_key_value_heads"] if (c.get("quantization_config") or {}).get("quant_method") == "fp8" else 0
    e = experts_of(c, sigmoid_router(c))

    def own(i):
        swa = "swa_" if slides[i] else ""
        heads, few, head, wide = (c[swa + key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"))
        p = rope_settings(c) | ({"rope_theta": float(c["swa_rope_theta"])} if slides[i] else {})
        sinks = c.get(f"add_{'swa' if slides[i] else 'full'}_attention_sink_bias")
        return {"heads": heads, "kv_heads": few, "head": head, "head_v": wide, "scale": head ** -0.5,
                "rope": Rope(int(head * partial(c)), p),
                "sinks": "self_attn.attention_sink_bias" if sinks else None} | (mixed(e) if sparse[i] else {})

    layer = {"value_scale": c.get("attention_value_scale") or 1.0, "qkv_bias": c.get("attention_bias", False)}
    if fused:
        layer |= {"projections": ("self_attn.qkv_proj",), "ranks": ranks}
    return build(c, Norm(eps=c.get("layernorm_epsilon", 1e-6)), own=own, layer=layer,
                 windows=[c["sliding_window"] if s else None for s in slides])


def laguna(c):
    n, head, slides = c["num_hidden_layers"], head_of(c, 128), layer_types(c)
    router = sigmoid_router(c, correction="mlp.experts.e_score_correction_bias", added=0.0, normalised=True,
                            scale=c.get("moe_routed_scaling_factor", 1.0), groups=1,
                            softcap=c.get("moe_router_logit_softcapping") or 0.0)
    beside = mixed(experts_of(c, router), c["shared_expert_intermediate_size"])
    sparse, heads = sparse_from(c), c.get("num_attention_heads_per_layer") or [c["num_attention_heads"]] * n

    def own(i):
        p = rope_settings(c, "sliding_attention" if slides[i] else "full_attention")
        return {"heads": heads[i], "rope": Rope(int(head * p.get("partial_rotary_factor", 1.0)), p)} | (
            beside if sparse[i] else {})

    gate = ("self_attn.g_proj", "softplus", c.get("gating") not in (True, "per-head"))
    bias, norm = c.get("attention_bias", False), rms(c)
    return build(c, norm, own=own, head_dim=head, windows=[c["sliding_window"] if s else None for s in slides],
                 layer={"qk_norm": norm, "out_gate": gate if c.get("gating", True) else None, "qkv_bias": bias,
                        "o_bias": bias})


def step3p5(c):
    """Of either spelling: numbers by layer, or by layer type."""
    n, head, slides = c["num_hidden_layers"], c["head_dim"], layer_types(c)
    norm = rms(c, 1e-5, offset=1.0)
    other, by_type = c.get("attention_other_setting") or {}, c.get("rope_parameters")
    few = c.get("num_attention_groups") or c.get("num_key_value_heads")
    listed = c["moe_layers_enum"].split(",") if c.get("moe_layers_enum") else [str(i) for i in range(3, n)]
    sparse = sparse_from(c) if c.get("mlp_layer_types") else [str(i) in listed for i in range(n)]
    theta, parts = c.get("rope_theta") or [10000.0] * n, c.get("partial_rotary_factors") or [1.0] * n
    limits, shared_limits = c.get("swiglu_limits") or [0] * n, c.get("swiglu_limits_shared") or [0] * n
    router = sigmoid_router(c, module="moe.gate", correction="moe.router_bias", added=0.0, groups=1, normalised=True,
                            scale=c["moe_router_scaling_factor"])

    def own(i):
        p = rope_settings(c, "sliding_attention" if slides[i] else "full_attention") if by_type else {
            "rope_type": "default", "rope_theta": theta[i], "partial_rotary_factor": parts[i]}
        heads = other.get("num_attention_heads") or c.get("num_sliding_attention_heads") or c["num_attention_heads"]
        out = {"rope": Rope(int(head * p["partial_rotary_factor"]), p), "limit": shared_limits[i] or 0.0}
        if slides[i]:
            out["heads"] = heads
        if sparse[i]:
            e = experts_of(c, router, n=c.get("moe_num_experts"), chosen=c.get("moe_top_k"),
                           limit=limits[i] or 0.0, gate_up=("moe.gate_proj.weight", "moe.up_proj.weight"),
                           down="moe.down_proj.weight")
            out |= mixed(e, c["share_expert_dim"], "share_expert")
        return out

    return build(c | {"num_key_value_heads": few}, norm, own=own, head_dim=head, rope=None,
                 windows=[c["sliding_window"] if s else None for s in slides],
                 layer={"qk_norm": norm, "out_gate": ("self_attn.g_proj", "sigmoid", False)})


def gemma4_experts(c):
    """What a layer of Gemma 4 has beside its dense MLP."""
    router = Router("router.proj", own_input=True, by_expert="router.per_expert_scale")
    return experts_of(c, router, chosen=c["top_k_experts"], gate_up=("experts.gate_up_proj",), down="experts.down_proj",
                      norm_in="pre_feedforward_layernorm_2", norm_out="post_feedforward_layernorm_2",
                      dense_out="post_feedforward_layernorm_1")


def inkling(c):
    n, taps, types, norm = c["num_hidden_layers"], c.get("sconv_kernel_size") or c.get("conv_kernel_size", 4), c.get("layer_types"), rms(c)
    listed = c.get("local_layer_ids") or [i for i in range(n) if (i + 1) % 6]
    sparse = c.get("mlp_layer_types") or ["dense" if i < c.get("dense_mlp_idx", 0) else "sparse" for i in range(n)]
    apart = c.get("dense_intermediate_size") is not None
    inner = c["intermediate_size"] if apart else c["moe_intermediate_size"]
    router = Router(scores="sigmoid", correction="mlp.gate.bias", exact=True, scale=c.get("route_scale", 8.0),
                    always=c.get("n_shared_experts", 2), factor="mlp.gate.global_scale")
    experts = experts_of(c, router, inner=inner, gate_up=("mlp.experts.w13_weight",), down="mlp.experts.w2_weight", mixed_rows=True,
                         always=("mlp.shared_experts.shared_w13_weight", "mlp.shared_experts.shared_w2_weight"))
    floor = c.get("log_scaling_n_floor")

    def own(i):
        local = types[i] == "hybrid_sliding" if types else i in listed
        window, prefix = c.get("sliding_window_size") or c.get("sliding_window", 512), "swa_" if local else ""
        head = c[prefix + "head_dim"]
        return {"heads": c[prefix + "num_attention_heads"], "kv_heads": c[prefix + "num_key_value_heads"], "head": head,
                "scale": 1 / head, "window": window if local else None,
                "relative": ("attn.wr_du", "attn.rel_logits_proj.proj", c.get("d_rel", 16),
                             window if local else c.get("rel_extent", 1024)),
                "log_factor": (c.get("log_scaling_alpha", 0.1), floor) if floor and not local else None} | (
            {"experts": experts, "inner": 0} if sparse[i] == "sparse" else {})

    layer = {"attention_in": "attn_norm", "mlp_in": "mlp_norm", "projections": ("attn.wq_du", "attn.wk_dv", "attn.wv_dv"),
             "o": "attn.wo_ud", "qk_norm": norm, "q_norm": "attn.q_norm", "k_norm": "attn.k_norm", "taps": taps,
             "kv_convs": ("attn.k_sconv.weight", "attn.v_sconv.weight"), "out_convs": ("attn_sconv.weight", "mlp_sconv.weight"),
             "gate_up": ("mlp.w13_dn",), "down": "mlp.w2_md", "mixed_rows": True, "mlp_scale": "mlp.global_scale", "act": act_of(c)}
    m = build(c | {"intermediate_size": c["dense_intermediate_size"] if apart else c["intermediate_size"]}, norm, rope=None, layer=layer,
              own=own, embed="model.embed", embed_norm="model.embed_norm",
              logit_scale=1 / c.get("logits_mup_width_multiplier", 24.0), tokens=c.get("unpadded_vocab_size"))
    return replace(m, layers=tuple(replace(a, mlp_scale=None) if a.experts else a for a in m.layers))


FAMILIES = {f.__name__: f for f in (
    mixtral, dbrx, qwen2_moe, qwen3_moe, qwen3_vl_moe_text, olmoe, glm4_moe, glm4v_moe_text, dots1, solar_open, minimax_m2,
    minimax_m3, ernie4_5_moe,
    hunyuan_v1_moe, afmoe, hy_v3, granitemoe, phimoe, gpt_oss, llama4_text, mimo_v2, mimo_v2_flash, laguna,
    step3p5)}
FAMILIES["minimax_m3_vl_text"] = minimax_m3
FAMILIES["inkling_text"] = inkling
