"""As families.py: families of transformers 5, most of them close to another family."""

import re
from dataclasses import replace

from family_keys import act_of, build, head_of, layer_types, plain_mlp, rms, rope_settings
from latent_families import deepseek_v3, with_mixture
from mixture_families import experts_of, granitemoe, mixed, olmoe, qwen_mixture, sigmoid_mixture, sigmoid_router, sparse_from
from recipe import Norm, Rope, Router
from recurrent import ShortConv
from recurrent_families import NO_ATTENTION


def changed(m, **layer):
    return replace(m, layers=tuple(replace(a, **layer) for a in m.layers))


def jais2(c):
    bias = c.get("attention_bias", True)
    return build(c, Norm("layer", c.get("layer_norm_eps", 1e-5), bias=True),
                 layer={"qkv_bias": bias, "o_bias": bias} | plain_mlp(act_of(c, "relu2"), bias=c.get("mlp_bias", True)))


def granitemoeshared(c):
    m, width = granitemoe(c), c.get("shared_intermediate_size", 0)
    shared = {"inner": width, "gate_up": ("shared_mlp.input_linear",), "down": "shared_mlp.output_linear"}
    return changed(m, **shared) if width else m


def swash(c, m):
    """Granite's dense model or mixture with windows, sinks, and a theta or no RoPE by layer."""
    n, types = len(m.layers), c.get("layer_types")
    slides = [t == "sliding_attention" for t in types] if types else [i % 4 != 0 for i in range(n)]
    settings = rope_settings(c)
    thetas = c.get("layer_rope_theta") or [settings["rope_theta"]] * n

    def one(i, a):
        turns = Rope(a.head, settings | {"rope_theta": float(thetas[i])}) if thetas[i] else None
        return replace(a, sinks="self_attn.sinks", window=c.get("sliding_window", 128) if slides[i] else None, rope=turns)

    return replace(m, layers=tuple(one(i, a) for i, a in enumerate(m.layers)))


def granitemoe_swa(c):
    """With the names of transformers' class, which the makers' files have."""
    m, stem = granitemoeshared(c), "block_sparse_moe."
    names = {"gate_up": (stem + "experts.gate_up_proj",), "down": stem + "experts.down_proj"}
    return swash(c, replace(m, layers=tuple(
        replace(a, experts=replace(a.experts, router=replace(a.experts.router, module=stem + "router"), **names)) for a in m.layers)))


def flex_olmo(c):
    return changed(olmoe({"rms_norm_eps": 1e-6, "rope_theta": 500000.0} | c), attention_in=None, attention_out="post_attention_layernorm",
                   mlp_in=None, mlp_out="post_feedforward_layernorm")


def sarvam_moe(c):
    c = {"n_shared_experts": c.get("num_shared_experts", 1), "routed_scaling_factor": 2.5, "rope_theta": 8e6} | c
    norm, name = rms(c), "attention."
    layer = {"projections": (name + "query_key_value",), "o": name + "dense", "q_norm": name + "query_layernorm",
             "k_norm": name + "key_layernorm", "qkv_bias": c.get("attention_bias", c.get("use_qkv_bias", False)),
             "qk_norm": norm if c.get("use_qk_norm", True) else None}
    m = sigmoid_mixture(c, norm, layer, head_dim=head_of(c, 64), embed="model.word_embeddings")
    return replace(m, layers=tuple(
        replace(a, experts=replace(a.experts, router=replace(a.experts.router, correction="mlp.gate.expert_bias")))
        if a.experts else a for a in m.layers))


def sarvam_mla(c):
    c = {"n_routed_experts": c.get("num_experts"), "n_shared_experts": c.get("num_shared_experts", 1), "q_lora_rank": None,
         "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5} | c
    for key in ("rope_scaling", "rope_parameters"):
        if c.get(key):
            c[key] = {k: re.sub("^deepseek_yarn$", "yarn", v) if isinstance(v, str) else v for k, v in c[key].items()}
    return deepseek_v3(c)


def axk1(c):
    every, first = c.get("moe_layer_freq", 1), c.get("first_k_dense_replace", 1)
    types = ["sparse" if i >= first and i % every == 0 else "dense" for i in range(c["num_hidden_layers"])]
    m = with_mixture({"mlp_layer_types": types} | c, rms(c), sigmoid_router(c))
    return replace(m, layers=tuple(replace(a, mlp_out="post_mlp_layernorm") if a.experts else a for a in m.layers))


def nanochat(c):
    """Norms without weights; heads turn the other way."""
    norm, bias = rms(c, weight=False), c.get("attention_bias", False)
    return build(c, norm, rope=Rope(head_of(c), rope_settings(c), backwards=True), embed_norm="embed_norm",
                 softcap=c.get("final_logit_softcapping", 15.0), layer={
                     "qkv_bias": bias, "o_bias": bias, "qk_norm": norm, "qk_after_rope": True} | plain_mlp(
                     act_of(c, "relu2"), "mlp.fc1", "mlp.fc2"))


def mellum(c):
    head, norm, bias, slides = head_of(c, 128), rms(c), c.get("attention_bias", False), layer_types(c, 1)
    beside, types = mixed(experts_of(c, Router(normalised=c.get("norm_topk_prob", True)))), c.get("mlp_layer_types")

    def own(i):
        p = rope_settings(c, "sliding_attention" if slides[i] else "full_attention")
        turns = {"rope": Rope(int(head * p.get("partial_rotary_factor", 1.0)), p)}
        return turns | (beside if types is None or types[i] == "sparse" else {})

    return build(c, norm, own=own, head_dim=head, layer={"qk_norm": norm, "qkv_bias": bias, "o_bias": bias},
                 windows=[c["sliding_window"] if s else None for s in slides])


def flint(c):
    n, norm, bias = c["num_hidden_layers"], rms(c), c.get("attention_bias", False)
    slides = layer_types(c) if c.get("layer_types") else [i > 1 and i % 4 != 1 and i < n - 1 for i in range(n)]
    m = qwen_mixture({"norm_topk_prob": True, "mlp_only_layers": [0, 1]} | c, {
        "qk_norm": norm, "qkv_bias": bias, "o_bias": bias, "sinks": "self_attn.softmax_offset"},
        c.get("shared_expert_intermediate_size", 1024), head_dim=head_of(c, 128),
        windows=[c.get("sliding_window", 513) if s else None for s in slides])

    def one(a):
        e = a.experts and replace(a.experts, router=replace(a.experts.router, scores="sigmoid", exact=True))
        return replace(a, experts=e, shared_gate=None, rope=a.rope if a.window else None)

    return replace(m, layers=tuple(map(one, m.layers)))


def kolibri1(c):
    norm, slides = rms(c), layer_types(c, 5)
    router = Router(scores="sigmoid", correction="moe.router.expert_bias", corrects_logits=True, exact=True,
                    normalised=c.get("norm_topk_prob", False))
    beside = mixed(experts_of(c, router), c.get("shared_expert_intermediate_size", 512), "mlp.shared_experts")
    return build({"intermediate_size": 0} | c, norm, head_dim=head_of(c, 128), own=lambda i: {} if slides[i] else {"rope": None},
                 layer={"qk_norm": norm, "attention_out": "post_attn_norm", "mlp_out": "post_ffn_norm"} | beside,
                 windows=[c.get("sliding_window", 513) if s else None for s in slides])


def lfm3(c):
    norm, n = Norm(eps=c.get("norm_eps", 1e-5)), c["num_hidden_layers"]
    conv = ShortConv(c.get("conv_L_cache", 7), c.get("conv_bias", False))
    types = c.get("layer_types") or [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i > 0 else "conv" for i in range(n)]
    head, bias = head_of(c, 128), c.get("attention_bias", False)
    layer = {"attention_in": "operator_norm", "mlp_in": "ffn_norm", "qk_norm": norm, "qkv_bias": bias, "o_bias": bias,
             "gate_up": ("feed_forward.w1", "feed_forward.w3"), "down": "feed_forward.w2", "act": "silu"}
    if c.get("use_sandwich_norm", True):
        layer |= {"attention_out": "post_operator_norm", "mlp_out": "post_ffn_norm"}
    if c.get("use_attention_gate", True):
        layer["out_gate"] = ("self_attn.gate_proj", "sigmoid", False)

    def own(i):
        if types[i] == "conv":
            return NO_ATTENTION | {"mixer": conv, "rope": None, "out_gate": None}
        return {"rope": Rope(head, rope_settings(c, types[i]))}

    return build(c, norm, layer=layer, own=own, tied=True, final="model.embedding_norm", head_dim=head,
                 windows=[c.get("sliding_window", 256) if t == "sliding_attention" else None for t in types])


FAMILIES = {f.__name__: f for f in (jais2, granitemoeshared, granitemoe_swa, flex_olmo, sarvam_moe, sarvam_mla, axk1, nanochat, mellum,
                                    flint, kolibri1, lfm3)}
