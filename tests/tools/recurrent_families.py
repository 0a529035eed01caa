"""As families.py: models with layers that carry a state."""

import math
from dataclasses import replace

from family_keys import act_of, build, head_of, partial, plain_mlp, rms, rope_settings, sqrt_bf16
from gated import GatedStreams, PoolChoice, ngrams_of
from latent_families import choosing, latent
from mixture_families import STACKED, W123, experts_of, mixed, sigmoid_router, sparse_from
from pooled import Streams
from recipe import Indexer, Norm, Rope, Router
from recurrent import ChannelDelta, DeltaRule, Lightning, Lru, Mamba1, Mamba2, ShortConv

NO_ATTENTION = {"heads": 0, "kv_heads": 0}


def linear_layers(c, n):
    """Whether each layer has a delta rule."""
    if c.get("layer_types"):
        return [t == "linear_attention" for t in c["layer_types"]]
    return [(i + 1) % c.get("full_attention_interval", 4) != 0 for i in range(n)]


def qwen_hybrid(c, sparse=None, by_head=False):
    """sparse: changes of the layers that have experts, by layer."""
    norm, n, head, bias = rms(c, offset=1.0, once=True), c["num_hidden_layers"], head_of(c, 256), c.get("attention_bias", False)
    gate = {"sigmoid": "sigmoid"}.get(c.get("output_gate_type"), "silu")
    delta = DeltaRule(c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"],
                      c["linear_value_head_dim"], c["linear_conv_kernel_dim"], norm.eps, by_head, gate, wide=not by_head)
    linear = linear_layers(c, n)
    layer = {"qk_norm": norm, "gate_in_q": True, "qkv_bias": bias, "o_bias": bias}

    def own(i):
        return (NO_ATTENTION | {"mixer": delta, "rope": None} if linear[i] else {}) | (sparse(i) if sparse else {})

    return build({"intermediate_size": 0} | c, norm, head_dim=head, rope=Rope(int(head * partial(c, 0.25)), rope_settings(c)),
                 layer=layer, own=own)


def qwen3_5(c):
    return qwen_hybrid(c)


def qwen3_5_moe(c, **how):
    e = experts_of(c, Router(normalised=how.pop("normalised", True)))
    beside = mixed(e, c["shared_expert_intermediate_size"], gate="mlp.shared_expert_gate")
    return qwen_hybrid(c, lambda i: beside if how.get("sparse", {i: True})[i] else {}, how.get("by_head", False))


def lara_mini(c):
    n, norm, head, bias = c["num_hidden_layers"], rms(c), head_of(c, 128), c.get("attention_bias", False)
    cycle = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
    types = c.get("layer_types") or [cycle[i % 5] for i in range(n)]
    delta = DeltaRule(c.get("linear_num_key_heads", 8), c.get("linear_num_value_heads", 16), c.get("linear_key_head_dim", 128),
                      c.get("linear_value_head_dim", 128), c.get("linear_conv_kernel_dim", 4), norm.eps, in_one=True)
    router = Router(normalised=c.get("norm_topk_prob", True), exact=True)
    own = {"linear_attention": NO_ATTENTION | {"mixer": delta, "rope": None}, "full_attention": {"rope": None}}
    return build({"intermediate_size": 0} | c, norm, head_dim=head, tied=True, own=lambda i: own.get(types[i], {}),
                 layer={"qk_norm": norm, "qkv_bias": bias, "o_bias": bias} | mixed(
                     experts_of(c, router, **STACKED), c.get("shared_expert_intermediate_size", 512)),
                 windows=[c.get("sliding_window", 512) if t == "sliding_attention" else None for t in types])


def qwen3_next(c):
    step, dense = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or ()
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(c["num_hidden_layers"])]
    return qwen3_5_moe(c, normalised=c.get("norm_topk_prob", True), sparse=sparse, by_head=True)


def qwen4_exp(c):
    e = experts_of(c, Router(normalised=c.get("norm_topk_prob", True)))
    beside = mixed(e, c["shared_expert_intermediate_size"], gate="mlp.shared_expert_gate") | {"attention_in": None, "mlp_in": None}
    choice, ngrams = PoolChoice(*(c[f"indexer_{key}"] for key in ("n_heads", "head_dim", "compress_ratio", "budget"))), ngrams_of(c)
    m = qwen_hybrid(c, lambda i: beside | {"ngrams": ngrams.get(i)})
    layers = tuple(a if a.mixer else replace(a, pools=choice) for a in m.layers)
    return replace(m, layers=layers, final=None, streams=GatedStreams(c.get("hc_count", 4), c.get("hc_lowrank", 320), m.norm.eps))


def kimi_linear(c):
    """With the keys of Kimi K3, too."""
    norm, n, own_keys = rms(c, 1e-5), c["num_hidden_layers"], c["linear_attn_config"]
    delta = ChannelDelta(own_keys["num_heads"], own_keys["head_dim"], own_keys["short_conv_kernel_size"], norm.eps, own_keys["head_dim"],
                         own_keys.get("use_full_rank_gate", False), own_keys.get("gate_lower_bound") or 0.0)
    bounded = {"act": "situ", "slope": c.get("activation_situ_beta") or 1.0, "limit": c.get("activation_situ_linear_beta") or 0.0}
    bounded = bounded if c.get("hidden_act") == "situ" else {}
    router = sigmoid_router(c, module="block_sparse_moe.gate", correction="block_sparse_moe.gate.e_score_correction_bias",
                            groups=c.get("num_expert_group") or 1, normalised=c.get("moe_renormalize", True))
    e = experts_of(c, router, chosen=c["num_experts_per_token"], **W123, **bounded, latent=c.get("routed_expert_hidden_size") or 0,
                   latent_products=("block_sparse_moe.routed_expert_down_proj", "block_sparse_moe.routed_expert_up_proj"),
                   latent_norm="block_sparse_moe.routed_expert_norm" if c.get("latent_moe_use_norm") else None)
    beside = mixed(e, c["moe_intermediate_size"] * c["num_shared_experts"], "block_sparse_moe.shared_experts")
    gate = ("self_attn.g_proj", "sigmoid", True) if c.get("mla_use_output_gate") else None
    full = latent(c) | {"rope": None, "out_gate": gate}

    def own(i):
        mixer = NO_ATTENTION | {"mixer": delta, "rope": None} if i + 1 in own_keys["kda_layers"] else full
        return mixer | (beside if i >= c.get("first_k_dense_replace", 1) else {})

    block = c.get("attn_res_block_size") or 0
    return build(c | {"num_key_value_heads": None}, norm, head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
                 layer={"blended": block > 0} | bounded, own=own, block=block)


def glm5_next(c):
    """Kimi's delta rules, latent attention over chosen pools of keys, several streams."""
    norm, n, delta_keys = rms(c, 1e-5), c["num_hidden_layers"], c.get("linear_attn_config") or {}
    types = c.get("layer_types") or ["full" if i % 4 == 3 else "linear_attention" for i in range(n)]
    head = delta_keys.get("head_dim", c.get("linear_head_dim", 128))
    bound = delta_keys.get("gate_lower_bound", c.get("linear_lower_bound", -5.0))
    bound = -5.0 if bound is None and delta_keys and delta_keys.get("safe_gate", True) else bound or 0.0
    delta = ChannelDelta(delta_keys.get("num_heads", c.get("linear_num_heads", 64)), head,
                         delta_keys.get("short_conv_kernel_size", c.get("linear_conv_kernel_dim", 4)), norm.eps, head, bound=bound,
                         flat=True)
    limit = {"limit": c.get("swiglu_limit", 10.0), "limit_first": True}
    e = experts_of(c, sigmoid_router(c), **limit)
    beside = mixed(e, c["moe_intermediate_size"] * c["n_shared_experts"], "mlp.shared_experts") | limit
    sparse, choice = sparse_from(c, default=3), choosing(c)

    def own(i):
        if types[i] == "linear_attention":
            mixer = NO_ATTENTION | {"mixer": delta, "rope": None}
        else:
            index = Indexer(c["index_topk"], c["index_n_heads"], c["index_head_dim"], False, shared=not choice[i],
                            pool=c.get("index_kpool", 16))
            mixer = latent(c) | {"rope": None}
            mixer["latent"] = replace(mixer["latent"], norm=norm, index=index)
        return mixer | (beside if sparse[i] else limit)

    streams = Streams(c.get("hc_mult", 4), c.get("hc_sinkhorn_iters", 20), c.get("hc_eps", 1e-6), norm.eps, end=None)
    return build(c | {"num_key_value_heads": None}, norm, head_dim=c["qk_nope_head_dim"], own=own, streams=streams)


def infinite(x):
    return math.inf if isinstance(x, dict) else float(x)  # as transformers 5 writes Infinity


def steps(c):
    low, high = c.get("time_step_limit") or (0.0, math.inf)
    return infinite(low), infinite(high)


def only_mixers(c, mixer, norm, **more):
    """Layers of one branch."""
    c = c | {"num_attention_heads": 1, "intermediate_size": 0, "head_dim": 1}
    return build(c, norm, rope=None, layer=NO_ATTENTION | {"mixer": mixer, "attention_in": "norm", "mlp_in": None},
                 embed="backbone.embeddings", final="backbone.norm_f", stem="backbone.layers.{}.", **more)


def mamba2(c):
    bias, eps = c.get("use_bias", False), c.get("layer_norm_epsilon", 1e-5)
    mixer = Mamba2(c["num_heads"], c["head_dim"], c["n_groups"], c["state_size"], c["conv_kernel"], eps, bias=bias, out_bias=bias,
                   conv_bias=c.get("use_conv_bias", True), step=steps(c))
    return only_mixers(c, mixer, Norm(eps=eps))


def falcon_mamba(c):
    mixer = Mamba1(c.get("intermediate_size") or c.get("expand", 2) * c["hidden_size"], c["state_size"], c["time_step_rank"],
                   c["conv_kernel"], c.get("mixer_rms_eps", 1e-6), bias=c.get("use_bias", False), conv_bias=c.get("use_conv_bias", True))
    return only_mixers(c, mixer, Norm(eps=c.get("layer_norm_epsilon", 1e-5)), tied=True)


def mamba(c):
    rank = c.get("time_step_rank", "auto")
    mixer = Mamba1(int(c.get("expand", 2) * c["hidden_size"]), c["state_size"], math.ceil(c["hidden_size"] / 16) if rank == "auto"
                   else rank, c["conv_kernel"], None, bias=c.get("use_bias", False), conv_bias=c.get("use_conv_bias", True))
    return only_mixers(c, mixer, Norm(eps=c.get("layer_norm_epsilon", 1e-5)), tied=True)


def mamba_of(c, **more):
    """Granite's and Falcon H1's keys."""
    bias = c.get("mamba_proj_bias", False)
    return Mamba2(**{"heads": c["mamba_n_heads"], "head": c["mamba_d_head"], "groups": c["mamba_n_groups"], "state": c["mamba_d_state"],
                     "taps": c["mamba_d_conv"], "eps": c["rms_norm_eps"], "module": "mamba", "bias": bias, "out_bias": bias,
                     "conv_bias": c.get("mamba_conv_bias", True), "step": steps(c)} | more)


def granitemoehybrid(c):
    """With or without experts beside a dense MLP; attention or Mamba in each layer."""
    c, bias = c | {"intermediate_size": c.get("shared_intermediate_size", 1024), "experts_inner": c["intermediate_size"]}, c.get(
        "attention_bias", False)
    layer = {"scale": c.get("attention_multiplier", 1.0), "residual": c.get("residual_multiplier", 1.0), "qkv_bias": bias,
             "o_bias": bias, "gate_up": ("shared_mlp.input_linear",), "down": "shared_mlp.output_linear"}
    if c.get("position_embedding_type") != "rope":
        layer["rope"] = None
    if c.get("num_local_experts"):
        stem = "block_sparse_moe"
        layer["experts"] = experts_of(c, Router(f"{stem}.router.layer", scores="chosen"), inner=c["experts_inner"],
                                      gate_up=(f"{stem}.input_linear.weight",), down=f"{stem}.output_linear.weight")
    types = c.get("layer_types") or ["attention"] * c["num_hidden_layers"]
    mamba = {"mamba", "linear_attention"}

    def own(i):
        return NO_ATTENTION | {"mixer": mamba_of(c)} if types[i] in mamba else {}

    return build(c, rms(c), layer=layer, own=own, embed_scale=c.get("embedding_multiplier", 1.0), tied=True,
                 logit_scale=1 / c.get("logits_scaling", 1.0))


def falcon_h1(c):
    """Mamba and attention read the same norm; factors everywhere."""
    inner = c.get("mamba_d_ssm") or int(c.get("mamba_expand", 2) * c["hidden_size"])
    mixer = mamba_of(c, head=inner // c["mamba_n_heads"], normed=c.get("mamba_rms_norm", False), norm_groups=c["mamba_n_groups"],
                     norm_first=c.get("mamba_norm_before_gate", True), factors=tuple(c["ssm_multipliers"]),
                     factor_in=c["ssm_in_multiplier"], factor_out=c["ssm_out_multiplier"],
                     out_bias=c.get("projectors_bias", False))
    bias = c.get("attention_bias", False)
    layer = {"mixer": mixer, "qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False), "mlp_in": "pre_ff_layernorm",
             "gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"), "down": "feed_forward.down_proj",
             "attention_factors": (c["attention_in_multiplier"], c["key_multiplier"], c["attention_out_multiplier"]),
             "mlp_factors": tuple(c["mlp_multipliers"])}
    return build(c, rms(c, 1e-5), layer=layer, embed_scale=c["embedding_multiplier"], logit_scale=c["lm_head_multiplier"],
                 final="model.final_layernorm")


def bamba(c):
    """Mamba 2 but for layers that the file lists, RoPE on half of each head."""
    bias, attends = c.get("attention_bias", False), c.get("attn_layer_indices") or ()
    mixer = mamba_of(c, norm_groups=c["mamba_n_groups"])
    layer = {"qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False), "mlp_in": "pre_ff_layernorm",
             "gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"), "down": "feed_forward.down_proj"}
    return build(c, rms(c, 1e-5), rope=Rope(int(head_of(c) * partial(c, 0.5)), rope_settings(c)), layer=layer,
                 own=lambda i: {} if i in attends else NO_ATTENTION | {"mixer": mixer, "rope": None}, final="model.final_layernorm")


def minimax(c):
    """Lightning attention in most layers; keys as transformers or as the makers name them."""
    n, heads, head = c["num_hidden_layers"], c["num_attention_heads"], head_of(c)
    full = [t == 1 for t in c["attn_type_list"]] if "attn_type_list" in c else [t == "full_attention" for t in c["layer_types"]]

    def weights(ours, makers):
        return tuple(c.get(f"{ours}_{x}_factor", c.get(f"layernorm_{makers}_{x}", 1.0)) for x in ("alpha", "beta"))

    def mixer(i):
        share = 1 - i / (n - 1 + (0 if "attn_type_list" in c else 1e-5)) + 1e-5
        return Lightning(head, tuple(2 ** (-8 * (h + 1) / heads) * share for h in range(heads)), act_of(c))

    def own(i):
        both = weights("full_attn", "full_attention") if full[i] else weights("linear_attn", "linear_attention"), weights("mlp", "mlp")
        return {"weights": both} | ({} if full[i] else NO_ATTENTION | {"mixer": mixer(i), "rope": None})

    e = experts_of(c, Router("block_sparse_moe.gate"), inner=c["intermediate_size"], **W123)
    return build(c, rms(c, 1e-5), rope=Rope(min(c.get("rotary_dim") or head, head), rope_settings(c)), windows=c.get("sliding_window"),
                 layer=mixed(e), own=own)


def bailing_moe_linear(c):
    """Ling's and Ring's: lightning attention, and softmax or latent attention in the last layer of each group."""
    if "short_conv_kernel_size" in c:
        raise SystemExit("families: Ling 3's delta rules are not described")
    n, heads, head, norm = c["num_hidden_layers"], c["num_attention_heads"], head_of(c, 128), rms(c)
    group, bias, out_bias = c.get("layer_group_size", 5), c.get("use_qkv_bias", False), c.get("use_bias", False)
    rope, qk_norm = Rope(int(head * partial(c, 0.5)), rope_settings(c)), norm if c.get("use_qk_norm", True) else None
    full = {"projections": ("attention.query_key_value",), "o": "attention.dense", "qkv_bias": bias, "o_bias": out_bias, "rope": rope,
            "qk_norm": qk_norm, "q_norm": "attention.query_layernorm", "k_norm": "attention.key_layernorm"}
    if "kv_lora_rank" in c:
        full = latent(c | {"attention_bias": bias, "q_lora_rank": c.get("q_lora_rank")})
        full |= {"o": "attention.dense", "latent": replace(full["latent"], module="attention"), "kv_heads": heads,
                 "head": c["qk_nope_head_dim"] + c["qk_rope_head_dim"]}

    def mixer(i):
        share = 1 - (i - 1) / (n - 1) + 1e-5
        return Lightning(head, tuple(2 ** (-8 * (h + 1) / heads) * share for h in range(heads)), eps=norm.eps, module="attention",
                         names=("query_key_value", "g_proj", "g_norm", "dense"), by_head=False, rope=rope, qk_norm=qk_norm,
                         scale=head ** -0.5, groups=c.get("group_norm_size", 4), bias=bias, out_bias=out_bias)

    e = experts_of(c, sigmoid_router(c, correction="mlp.gate.expert_bias", normalised=c["num_experts_per_tok"] > 1))
    beside = mixed(e, c["moe_intermediate_size"] * c.get("num_shared_experts", 1), "mlp.shared_experts")

    def own(i):
        attends = (i + 1) % group == 0 or i >= n // group * group
        return (full if attends else NO_ATTENTION | {"mixer": mixer(i), "rope": None}) | (
            beside if i >= c.get("first_k_dense_replace", 1) else {})

    return build(c, norm, own=own, embed="model.word_embeddings")


def recurrent_gemma(c):
    """Gated linear recurrences, attention in the layers that block_types names, again and again."""
    heads, types = c["num_attention_heads"], c.get("block_types") or ("recurrent", "recurrent", "attention")
    mixer = Lru(heads, (c.get("lru_width") or c["hidden_size"]) // heads, c.get("conv1d_width", 4), act_of(c))
    layer = {"act": act_of(c), "qkv_bias": c.get("attention_bias", False), "o_bias": True, "mlp_bias": True,
             "projections": tuple(f"temporal_block.{x}_proj" for x in "qkv"), "o": "temporal_block.o_proj",
             "attention_in": "temporal_pre_norm", "mlp_in": "channel_pre_norm",
             "gate_up": ("mlp_block.gate_proj", "mlp_block.up_proj"), "down": "mlp_block.down_proj"}
    return build(c | {"intermediate_size": c["intermediate_size"] // 2}, rms(c, offset=1.0, once=True), layer=layer,
                 rope=Rope(int(head_of(c) * partial(c, 0.5)), rope_settings(c)), windows=c.get("attention_window_size", 2048),
                 own=lambda i: {} if types[i % len(types)] == "attention" else NO_ATTENTION | {"mixer": mixer, "rope": None},
                 embed_scale=sqrt_bf16(c["hidden_size"]), softcap=c.get("logits_soft_cap", 30.0), tied=True, final="model.final_norm")


def nemotron_letters(c):
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    types = c.get("layers_block_type") or c.get("layer_types")
    return "".join(letters[t] for t in types) if types else c["hybrid_override_pattern"]


def nemotron_h(c):
    """Each layer is one branch."""
    letters, eps = nemotron_letters(c), c.get("layer_norm_epsilon", c.get("norm_eps", 1e-5))
    norm, act, bias = Norm(eps=eps), c.get("mlp_hidden_act", "relu2"), c.get("use_bias", False)
    mixer = Mamba2(c["mamba_num_heads"], c["mamba_head_dim"], c["n_groups"], c["ssm_state_size"], c["conv_kernel"], eps,
                   norm_groups=c["n_groups"], bias=bias, out_bias=bias, conv_bias=c.get("use_conv_bias", True),
                   step=(c.get("time_step_min", 0.001), math.inf))
    mlp = plain_mlp(act, "mixer.up_proj", "mixer.down_proj", c.get("mlp_bias", False))
    sparse = {}
    if "E" in letters:
        e = experts_of(c, sigmoid_router(c, module="mixer.gate", correction="mixer.gate.e_score_correction_bias"), act=act,
                       gate_up=("mixer.experts.{}.up_proj",), down="mixer.experts.{}.down_proj", gated=False,
                       latent=c.get("moe_latent_size") or 0)
        shared = plain_mlp(act, "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj", c.get("mlp_bias", False))
        sparse = shared | {"experts": e, "inner": c["moe_shared_expert_intermediate_size"]}
    plain = {"o": "mixer.o_proj", "projections": ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
             "attention_in": "norm", "mlp_in": None, "inner": 0}
    without = NO_ATTENTION | {"attention_in": None, "mlp_in": "norm"}
    own = {"M": NO_ATTENTION | {"mixer": mixer}, "*": {}, "-": without | {"inner": c["intermediate_size"]} | mlp, "E": without | sparse}
    return build(c | {"num_hidden_layers": len(letters)}, norm, head_dim=head_of(c, 128), rope=None, stem="backbone.layers.{}.",
                 layer=plain, own=lambda i: own[letters[i]], embed="backbone.embeddings", final="backbone.norm_f")


def jamba(c):
    rank = c.get("mamba_dt_rank", "auto")
    mixer = Mamba1(c.get("mamba_expand", 2) * c["hidden_size"], c["mamba_d_state"], math.ceil(c["hidden_size"] / 16) if rank == "auto"
                   else rank, c["mamba_d_conv"], c.get("rms_norm_eps", 1e-6), "mamba", ("dt_layernorm", "b_layernorm", "c_layernorm"),
                   c.get("mamba_proj_bias", False), c.get("mamba_conv_bias", True))
    names = {"gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"), "down": "feed_forward.down_proj"}
    apart = {"gate_up": tuple(name.replace("ward.", "ward.experts.{}.") for name in names["gate_up"]),
             "down": "feed_forward.experts.{}.down_proj"}
    sparse = {"inner": 0}
    if c.get("num_experts", 16) > 1:
        sparse["experts"] = experts_of(c, Router("feed_forward.router", normalised=False), inner=c["intermediate_size"], **apart)

    def own(i):
        attends = i % c.get("attn_layer_period", 8) == c.get("attn_layer_offset", 4)
        routed = "experts" in sparse and i % c.get("expert_layer_period", 2) == c.get("expert_layer_offset", 1)
        return ({} if attends else NO_ATTENTION | {"mixer": mixer}) | (sparse if routed else {})

    return build(c, rms(c), rope=None, layer=names | {"mlp_in": "pre_ff_layernorm"}, own=own, final="model.final_layernorm")


def lfm2(c, sparse=None):
    norm, conv = Norm(eps=c.get("norm_eps", 1e-5)), ShortConv(c["conv_L_cache"], c.get("conv_bias", False))
    inner = c.get("block_ff_dim", c.get("intermediate_size"))
    if sparse is None and c.get("block_auto_adjust_ff_dim", True):
        inner, multiple = int(c.get("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3)), c.get("block_multiple_of", 256)
        inner = multiple * ((inner + multiple - 1) // multiple)
    types = c.get("layer_types") or ["full_attention" if i in c["full_attn_idxs"] else "conv" for i in range(c["num_hidden_layers"])]
    layer = {"attention_in": "operator_norm", "mlp_in": "ffn_norm", "o": "self_attn.out_proj", "qk_norm": norm,
             "q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm",
             "gate_up": ("feed_forward.w1", "feed_forward.w3"), "down": "feed_forward.w2"}
    return build(c | {"intermediate_size": inner}, norm, layer=layer, tied=c.get("tie_embedding", True), final="model.embedding_norm",
                 own=lambda i: (NO_ATTENTION | {"mixer": conv, "rope": None} if types[i] == "conv" else {}) | (sparse(i) if sparse else {}))


def lfm2_moe(c):
    router = sigmoid_router(c, module="feed_forward.gate", added=1e-6,
                            correction="feed_forward.expert_bias" if c.get("use_expert_bias", True) else None)
    stem = "feed_forward.experts.{}."
    e = experts_of(c, router, gate_up=(stem + "w1", stem + "w3"), down=stem + "w2")
    return lfm2(c, lambda i: {"experts": e, "inner": 0} if i >= c.get("num_dense_layers", 2) else {})


FAMILIES = {f.__name__: f for f in (qwen3_5, qwen3_5_moe, lara_mini, qwen3_next, mamba, mamba2, falcon_mamba, granitemoehybrid, falcon_h1,
                                    bamba, minimax, recurrent_gemma, nemotron_h, jamba, lfm2, lfm2_moe, kimi_linear, glm5_next)} | {
    "minimax_text_01": minimax, "minimax_m1": minimax, "bailing_moe_linear": bailing_moe_linear, "bailing_hybrid": bailing_moe_linear,
    "qwen3_5_text": qwen3_5, "qwen3_5_moe_text": qwen3_5_moe,
    "glm5_next_text": glm5_next, "qwen4_exp_text": qwen4_exp}
