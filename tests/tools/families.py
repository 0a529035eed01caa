"""What each model family computes: one function from config.json, in either style of configuration, to a recipe.Model.

Written from the definitions of the families; shares nothing with the worker.
"""

import math
from dataclasses import replace

import numpy as np

import latent_families
import mixture_families
import more_families
import newer_families
import recurrent_families
from family_keys import (NORMS_AFTER, SANDWICH, act_of, alibi, build, head_of, interleaved, layer_types, partial, plain_mlp, rms,
                         rope_settings, sqrt_bf16)
from recipe import Altup, Norm, Rope

# ---- the families -----------------------------------------------------------------------------------

def llama(c):
    bias = c.get("attention_bias", False)
    return build(c, rms(c), layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False)})


def cwm(c):
    n, window = c["num_hidden_layers"], c.get("sliding_window", 8192)
    slides = layer_types(c) if c.get("layer_types") else [i % 4 != 0 for i in range(n)]
    return build(c, rms(c, 1e-5), windows=[(window or None) if s else None for s in slides], layer={"mlp_bias": c.get("mlp_bias", False)})


def mistral(c):
    return build(c, rms(c), windows=c.get("sliding_window", 4096))


def ministral(c):
    return build(c, rms(c), windows=[c.get("sliding_window", 4096) if w else None for w in layer_types(c)])


def phi3(c):
    head = head_of(c)
    return build(c, rms(c, 1e-5), rope=Rope(int(head * partial(c)), rope_settings(c)),
                 windows=c.get("sliding_window"),
                 layer={"projections": ("self_attn.qkv_proj",), "gate_up": ("mlp.gate_up_proj",)})


def _qwen_windows(c):
    if not c.get("use_sliding_window", False):
        return None
    window, n = c.get("sliding_window", 4096), c["num_hidden_layers"]
    slides = layer_types(c) if c.get("layer_types") else [i >= c.get("max_window_layers", 28) for i in range(n)]
    return [window if s else None for s in slides]


def qwen2(c):
    return build(c, rms(c), windows=_qwen_windows(c), layer={"qkv_bias": True})


def qwen3(c):
    bias = c.get("attention_bias", False)
    return build(c, rms(c), head_dim=head_of(c, 128), windows=_qwen_windows(c),
                 layer={"qkv_bias": bias, "o_bias": bias, "qk_norm": rms(c)})


def gemma(c, layer=None, **more):
    layer = {"act": "gelu_tanh", "qkv_bias": c.get("attention_bias", False), "o_bias": c.get("attention_bias", False)
             } | (layer or {})
    return build(c, rms(c, offset=1.0, once=True), layer=layer, embed_scale=sqrt_bf16(c["hidden_size"]), tied=True,
                 head_dim=head_of(c, 256), **more)


def gemma2(c):
    c = {"sliding_window_pattern": 2} | c
    layer = SANDWICH | {"scale": c.get("query_pre_attn_scalar", 256) ** -0.5,
                        "softcap": c.get("attn_logit_softcapping", 50.0)}
    return gemma(c, layer, softcap=c.get("final_logit_softcapping", 30.0),
                 windows=[c.get("sliding_window", 4096) if w else None for w in layer_types(c)])


def vaultgemma(c):
    return newer_families.changed(gemma2(c), attention_out=None, mlp_out=None)


def gemma3(c):
    head, slides = head_of(c, 256), layer_types(c, 6)
    local = rope_settings(c, "sliding_attention")
    if "rope_parameters" not in c:  # the older style: its scaling is of the layers that see everything
        local = {"rope_type": "default", "rope_theta": c.get("rope_local_base_freq", 10000.0)}
    ropes = Rope(head, rope_settings({"rope_theta": 1e6} | c, "full_attention")), Rope(head, local)
    layer = SANDWICH | {"scale": c.get("query_pre_attn_scalar", 256) ** -0.5,
                        "qk_norm": rms(c, offset=1.0, once=True)}
    return gemma(c, layer, softcap=c.get("final_logit_softcapping"), own=lambda i: {"rope": ropes[slides[i]]},
                 windows=[c.get("sliding_window", 4096) if w else None for w in slides])


def gemma4(c):
    """Two head sizes, shared keys and values, keys as values, and in the E models an input of each layer's own."""
    norm, slides, n = rms(c, once=True), [*layer_types(c, 6)[:-1], False], c["num_hidden_layers"]  # the last is full
    shared, same = n - c.get("num_kv_shared_layers", 0), c.get("attention_k_eq_v", False)
    own_config = c.get("per_layer_config") or {}
    local = {"rope_type": "default", "rope_theta": 10000.0} | rope_settings(c, "sliding_attention")

    def own(i):
        full, few = not slides[i], c.get("num_key_value_heads") or c["num_attention_heads"]
        mine = {"head_dim": c.get("global_head_dim") if full else None,
                "num_key_value_heads": c.get("num_global_key_value_heads") if full and same else None}
        mine |= own_config.get(str(i), {})
        head = mine["head_dim"] or head_of(c, 256)
        out = {"head": head, "kv_heads": mine.get("num_key_value_heads") or few,
               "rope": Rope(head, rope_settings(c, "full_attention") if full else local)}
        if full and same:
            out["projections"] = ("self_attn.q_proj", "self_attn.k_proj")
        if i >= shared:
            out["kv_of"] = max(j for j in range(shared) if slides[j] == slides[i])
            out["inner"] = c["intermediate_size"] * (2 if c.get("use_double_wide_mlp") else 1)
        return out

    layer = SANDWICH | {"experts": mixture_families.gemma4_experts(c) if c.get("enable_moe_block") else None,
                        "act": "gelu_tanh", "scale": 1.0, "qk_norm": norm, "v_norm": replace(norm, weight=False),
                        "out_scalar": "layer_scalar", "extra": c.get("hidden_size_per_layer_input") or 0}
    return build(c, norm, layer=layer, own=own, tied=True, embed_scale=sqrt_bf16(c["hidden_size"]),
                 extra=c.get("hidden_size_per_layer_input") or 0, softcap=c.get("final_logit_softcapping"),
                 windows=[c.get("sliding_window", 512) if w else None for w in slides])


def gemma3n(c):
    """Streams with alternating updates, Laurel, and an input of each layer's own; the last layers share keys and values."""
    norm, slides, n = rms(c, once=True), layer_types(c, 5), c["num_hidden_layers"]
    own_kv = n - c.get("num_kv_shared_layers", 15)
    inner = c["intermediate_size"] if isinstance(c["intermediate_size"], list) else [c["intermediate_size"]] * n
    sparse = c.get("activation_sparsity_pattern") or [0.95 if n > 10 and i < 10 else 0.0 for i in range(n)]
    local = {"rope_type": "default", "rope_theta": float(c.get("rope_local_base_freq", 10000.0))}
    if "rope_parameters" in c:
        local = rope_settings(c, "sliding_attention")

    def own(i):
        out = {"rope": Rope(c["head_dim"], local if slides[i] else rope_settings(c, "full_attention")), "inner": inner[i],
               "cutoff": sparse[i]}
        return out | ({"kv_of": max(j for j in range(own_kv) if slides[j] == slides[i])} if i >= own_kv else {})

    layer = SANDWICH | {"act": "gelu_tanh", "scale": 1.0, "qk_norm": norm, "v_norm": replace(norm, weight=False),
                        "extra": c["hidden_size_per_layer_input"]}
    altup = Altup(c["altup_num_inputs"], c["altup_active_idx"], c["laurel_rank"], c.get("altup_correct_scale", True))
    return build(c, norm, layer=layer, own=own, tied=True, embed_scale=sqrt_bf16(c["hidden_size"]), altup=altup,
                 extra=c["hidden_size_per_layer_input"], extra_rows=c.get("vocab_size_per_layer_input"),
                 softcap=c.get("final_logit_softcapping", 30.0), windows=[c["sliding_window"] if w else None for w in slides])


def phi(c):
    norm, head = Norm("layer", c.get("layer_norm_eps", 1e-5), bias=True), head_of(c)
    layer = {"parallel": True, "mlp_in": None, "o": "self_attn.dense", "qkv_bias": True, "o_bias": True,
             "qk_norm": norm if c.get("qk_layernorm") else None, "q_norm": "self_attn.q_layernorm",
             "k_norm": "self_attn.k_layernorm"} | plain_mlp(act_of(c), "mlp.fc1", "mlp.fc2", True)
    return build(c, norm, rope=Rope(int(head * partial(c, 0.5)), rope_settings(c)), layer=layer,
                 final="model.final_layernorm", head_bias=True)


def glm(c, **layer):
    head = head_of(c, 128)
    layer |= {"qkv_bias": c.get("attention_bias", True), "gate_up": ("mlp.gate_up_proj",)}
    return build(c, rms(c, 1.5625e-07), rope=interleaved(c, head, partial(c, 0.5)), head_dim=head, layer=layer)


def glm4(c):
    return glm(c, attention_out="post_self_attn_layernorm", mlp_out="post_mlp_layernorm")


def glm4v_text(c):
    return glm4({"rms_norm_eps": 1e-5} | c | {"attention_bias": True})


def olmo(c):
    bias = c.get("attention_bias", False)
    return build(c, Norm("layer", 1e-5, weight=False),
                 layer={"clip": c.get("clip_qkv"), "qkv_bias": bias, "o_bias": bias})


def olmo2(c, **more):
    norm = rms(c, 1e-5, once=True)
    return build(c, norm, layer=NORMS_AFTER | {"qk_norm": norm, "qk_over": "width"}, **more)


def olmo3(c):
    head, slides = head_of(c), layer_types(c, 4)
    local = rope_settings(c, "sliding_attention")
    if "rope_parameters" not in c:
        local = {"rope_type": "default", "rope_theta": c.get("rope_theta", 10000.0)}
    ropes = Rope(head, rope_settings(c, "full_attention")), Rope(head, local)
    return olmo2(c, own=lambda i: {"rope": ropes[slides[i]]},
                 windows=[c.get("sliding_window", 4096) if w else None for w in slides])


def granite(c):
    bias = c.get("attention_bias", False)
    layer = {"scale": c.get("attention_multiplier", 1.0), "residual": c.get("residual_multiplier", 1.0),
             "qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False)}
    return build(c, rms(c), layer=layer, embed_scale=c.get("embedding_multiplier", 1.0),
                 logit_scale=1 / c.get("logits_scaling", 1.0))


def granite_swa(c):
    return newer_families.swash(c, granite({"rms_norm_eps": 1e-5, "tie_word_embeddings": True} | c))


def hyperclovax(c):
    post = {"attention_out": "post_norm1", "mlp_out": "post_norm2"} if c.get("use_post_norm", True) else {}
    scale = c.get("attention_multiplier") or head_of(c) ** -0.5
    m = granite(c | {"attention_multiplier": scale, "logits_scaling": 1 / c.get("logits_scaling", 1.0)})
    return replace(m, layers=tuple(replace(a, **post) for a in m.layers))


def cohere(c, **more):
    norm, head, bias = Norm("layer", c.get("layer_norm_eps", 1e-5)), head_of(c), c.get("attention_bias", False)
    layer = {"parallel": True, "mlp_in": None, "qkv_bias": bias, "o_bias": bias, "qk_over": "own",
             "qk_norm": norm if c.get("use_qk_norm") else None}
    return build(c, norm, rope=interleaved(c, head), layer=layer, tied=True,
                 logit_scale=c.get("logit_scale", 0.0625), **more)


def cohere2(c):
    slides = layer_types(c, 4)
    return cohere(c, windows=[c.get("sliding_window", 4096) if w else None for w in slides],
                  own=lambda i: {} if slides[i] else {"rope": None})


def smollm3(c):
    n, every = c["num_hidden_layers"], c.get("no_rope_layer_interval", 4)
    turns = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(n)]
    bias = c.get("attention_bias", False)
    return build(c, rms(c), own=lambda i: {} if turns[i] else {"rope": None}, tied=True,
                 layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False)})


def ministral3(c):
    rope = rope_settings(c)
    factor = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
    return build(c, rms(c, 1e-5), windows=c.get("sliding_window"),
                 layer={"query_factor": factor if factor[0] else None})


def gpt_neox(c):
    head = head_of(c)
    factor = partial(c, c.get("rotary_pct", 0.25))
    layer = {"parallel": c.get("use_parallel_residual", True), "projections": ("attention.query_key_value",),
             "by_group": True, "o": "attention.dense", "qkv_bias": c.get("attention_bias", True),
             "o_bias": c.get("attention_bias", True)}
    layer |= plain_mlp(act_of(c, "gelu"), "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", True)
    theta = {"rope_theta": c.get("rotary_emb_base", 10000.0)} | c
    return build(c, Norm("layer", c.get("layer_norm_eps", 1e-5), bias=True), stem="gpt_neox.layers.{}.", layer=layer,
                 rope=Rope(int(head * factor), rope_settings(theta)), embed="gpt_neox.embed_in",
                 final="gpt_neox.final_layer_norm", head="embed_out")


def falcon(c):
    c = {"intermediate_size": c.get("ffn_hidden_size") or 4 * c["hidden_size"]} | c
    new, parallel = c.get("new_decoder_architecture", False), c.get("parallel_attn", True)
    multi_query, heads = c.get("multi_query", True), c["num_attention_heads"]
    kv = (c.get("num_kv_heads") or heads) if new else 1 if multi_query else heads
    c["num_key_value_heads"] = kv
    two = new and c.get("num_ln_in_parallel_attn") in (None, 2)
    bias, head = c.get("bias", False), head_of(c)
    layer = {"attention_in": "ln_attn" if two else "input_layernorm",
             "mlp_in": "ln_mlp" if two else None if new or parallel else "post_attention_layernorm",
             "parallel": new or parallel, "projections": ("self_attention.query_key_value",),
             "by_group": new or not multi_query, "o": "self_attention.dense", "qkv_bias": bias, "o_bias": bias}
    layer |= plain_mlp(act_of(c, "gelu"), "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias)
    if c.get("alibi"):
        layer |= {"rope": None, "slopes": tuple(s * head ** -0.5 for s in alibi(heads))}
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5), bias=True), stem="transformer.h.{}.", layer=layer,
                 embed="transformer.word_embeddings", final="transformer.ln_f", tied=True)


def stablelm(c):
    norm, head = Norm("layer", c.get("layer_norm_eps", 1e-5), bias=True), head_of(c)
    parallel = c.get("use_parallel_residual", False)
    layer = {"qkv_bias": c.get("use_qkv_bias", False), "parallel": parallel,
             "qk_norm": replace(norm, bias=False) if c.get("qk_layernorm") else None, "qk_over": "head",
             "q_norm": "self_attn.q_layernorm.norms.{}", "k_norm": "self_attn.k_layernorm.norms.{}"}
    if parallel:
        layer["mlp_in"] = None
    return build(c, norm, rope=Rope(int(head * partial(c, 0.25)), rope_settings(c)), layer=layer)


def starcoder2(c):
    bias = c.get("use_bias", True)
    return build(c, Norm("layer", c.get("norm_epsilon", 1e-5), bias=True), windows=c.get("sliding_window"), tied=True,
                 layer={"qkv_bias": bias, "o_bias": bias} | plain_mlp(act_of(c), "mlp.c_fc", "mlp.c_proj", bias))


def gpt2(c):
    n, h = c["n_layer"], c["n_embd"]
    c = {"num_hidden_layers": n, "hidden_size": h, "num_attention_heads": c["n_head"],
         "intermediate_size": c.get("n_inner") or 4 * h} | c
    scale = head_of(c) ** -0.5 if c.get("scale_attn_weights", True) else 1.0
    layer = {"attention_in": "ln_1", "mlp_in": "ln_2", "projections": ("attn.c_attn",), "o": "attn.c_proj",
             "qkv_bias": True, "o_bias": True, "columns": True} | plain_mlp(act_of(c), "mlp.c_fc", "mlp.c_proj", True)
    by_layer = c.get("scale_attn_by_inverse_layer_idx", False)
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5), bias=True), rope=None, stem="h.{}.", layer=layer,
                 own=lambda i: {"scale": scale / (i + 1) if by_layer else scale}, embed="wte", final="ln_f",
                 positions="wpe", n_positions=c.get("n_positions", 1024), tied=True)


def opt(c):
    h, before = c["hidden_size"], c.get("do_layer_norm_before", True)
    c = {"intermediate_size": c["ffn_dim"]} | c
    norm = Norm("layer", 1e-5, bias=True, weight=c.get("layer_norm_elementwise_affine", True))
    places = ("attention_in", "mlp_in") if before else ("attention_after", "mlp_after")
    bias = c.get("enable_bias", True)
    layer = {"attention_in": None, "mlp_in": None, "o": "self_attn.out_proj", "qkv_bias": bias, "o_bias": bias}
    layer |= dict(zip(places, ("self_attn_layer_norm", "final_layer_norm")))
    layer |= plain_mlp(act_of(c, "relu"), "fc1", "fc2", bias)
    stem, width = "model.decoder.", c.get("word_embed_proj_dim") or h
    projected = {"embed_width": width, "project_in": stem + "project_in", "project_out": stem + "project_out"}
    ends = before and not c.get("_remove_final_layer_norm", False)
    return build(c, norm, rope=None, stem=stem + "layers.{}.", layer=layer, embed=stem + "embed_tokens", tied=True,
                 positions=stem + "embed_positions", n_positions=c["max_position_embeddings"] + 2, position_offset=2,
                 final=stem + "final_layer_norm" if ends else None, **(projected if width != h else {}))


def bloom(c):
    h, heads = c.get("hidden_size") or c["n_embed"], c.get("n_head") or c["num_attention_heads"]
    c = {"num_hidden_layers": c["n_layer"], "num_attention_heads": heads, "hidden_size": h,
         "intermediate_size": 4 * h} | c
    layer = {"projections": ("self_attention.query_key_value",), "by_group": True, "o": "self_attention.dense",
             "qkv_bias": True, "o_bias": True, "slopes": alibi(heads)}
    layer |= plain_mlp("gelu_tanh", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", True)
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5), bias=True), rope=None, stem="h.{}.", layer=layer,
                 embed="word_embeddings", embed_norm="word_embeddings_layernorm", final="ln_f", tied=True)


def mpt(c):
    h, heads, a = c["d_model"], c["n_heads"], c.get("attn_config") or {}
    c = {"num_hidden_layers": c["n_layers"], "num_attention_heads": heads, "hidden_size": h,
         "intermediate_size": 4 * h} | c
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [2 ** -(a.get("alibi_bias_max", 8) * (i + 1) / power) for i in range(power)]
    slopes = slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads]
    layer = {"attention_in": "norm_1", "mlp_in": "norm_2", "projections": ("attn.Wqkv",), "o": "attn.out_proj",
             "clip": a.get("clip_qkv"), "slopes": tuple(slopes)}
    if a.get("softmax_scale"):
        layer["scale"] = a["softmax_scale"]
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5)), rope=None, stem="transformer.blocks.{}.",
                 layer=layer | plain_mlp("gelu", "ffn.up_proj", "ffn.down_proj"), embed="transformer.wte",
                 final="transformer.norm_f", tied=True)


def nemotron(c):
    head, bias = head_of(c), c.get("attention_bias", False)
    return build(c, Norm("layer", c.get("norm_eps", 1e-5), offset=1.0, bias=True),
                 rope=Rope(int(head * partial(c, 0.5)), rope_settings(c)),
                 layer={"qkv_bias": bias, "o_bias": bias} | plain_mlp(act_of(c, "relu2"), bias=c.get("mlp_bias", False)))


def exaone4(c):
    n, window, pattern = c["num_hidden_layers"], c.get("sliding_window"), c.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):  # "LLLG"
        c = {"layer_types": ["sliding_attention" if pattern[i % len(pattern)] == "L" and i < n - 1 else "full_attention"
                             for i in range(n)]} | c
    slides = layer_types(c, 4) if window is not None else [False] * n
    own = (lambda i: {} if slides[i] else {"rope": None}) if window is not None else None
    norm = rms(c, 1e-5)
    return build(c, norm, layer=NORMS_AFTER | {"qk_norm": norm}, own=own, windows=[window if w else None for w in slides])


def ernie4_5(c):
    head, bias = head_of(c, 128), c.get("use_bias", False)
    return build(c, rms(c, 1e-5), head_dim=head, rope=interleaved(c, head), tied=True,
                 layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": bias})


def hunyuan_v1_dense(c):
    norm, bias = rms(c, 1e-5), c.get("attention_bias", False)
    return build(c, norm, layer={"qkv_bias": bias, "o_bias": bias, "qk_norm": norm, "qk_after_rope": True,
                                 "q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"})


def seed_oss(c):
    return build(c, rms(c), head_dim=head_of(c, 128),
                 layer={"qkv_bias": c.get("attention_bias", True), "o_bias": c.get("attention_out_bias", False),
                        "mlp_bias": c.get("mlp_bias", False)})


def arcee(c):
    bias = c.get("attention_bias", False)
    return build(c, rms(c, 1e-5), layer={"qkv_bias": bias, "o_bias": bias} |
                 plain_mlp(act_of(c, "relu2"), bias=c.get("mlp_bias", False)))


def apertus(c):
    norm, bias = rms(c, 1e-5), c.get("attention_bias", False)
    return build(c, norm, layer={"attention_in": "attention_layernorm", "mlp_in": "feedforward_layernorm",
                                 "qk_norm": norm, "qkv_bias": bias, "o_bias": bias} | plain_mlp(act_of(c, "xielu")))


def apertus1p5_text(c):
    return replace(apertus(c), head_rows=c.get("output_vocab_size"))


def helium(c):
    head, bias = head_of(c, 128), c.get("attention_bias", False)
    return build(c, rms(c, 1e-8, once=True), head_dim=head, rope=interleaved(c, head),
                 layer={"qkv_bias": bias, "mlp_bias": c.get("mlp_bias", False)})


def bitnet(c):
    return build(c, rms(c, 1e-5), tied=True, layer={"act": act_of(c, "relu2"), "mlp_norm": "mlp.ffn_sub_norm",
                                                    "attention_norm": "self_attn.attn_sub_norm"})


FAMILIES = {f.__name__: f for f in (
    llama, cwm, mistral, ministral, phi3, qwen2, qwen3, gemma, gemma2, vaultgemma, phi, glm, glm4, olmo, olmo2, olmo3, granite,
    granite_swa, cohere, hyperclovax, cohere2, smollm3, ministral3, gpt_neox, falcon, stablelm, starcoder2, gpt2, opt, bloom, mpt,
    nemotron, exaone4, ernie4_5, hunyuan_v1_dense, seed_oss, arcee, apertus, apertus1p5_text, helium, bitnet)} | more_families.FAMILIES | (
    mixture_families.FAMILIES) | latent_families.FAMILIES | recurrent_families.FAMILIES | newer_families.FAMILIES | {
    "iquestcoder": llama, "mimo": qwen2, "gemma3_text": gemma3, "gemma4_text": gemma4, "gemma3n_text": gemma3n, "qwen2_vl_text": qwen2,
    "qwen2_5_vl_text": qwen2, "qwen3_vl_text": qwen3, "glm4v_text": glm4v_text, "kimi_k2": latent_families.deepseek_v3}

# Text models inside a multimodal checkpoint: model_type -> (stem of the text's tensors, its head)
WRAPPERS = {"gemma3": ("language_model.model.", "language_model.lm_head"),
            "gemma4": ("model.language_model.", "lm_head"), "gemma3n": ("model.language_model.", "lm_head"),
            "mistral3": ("language_model.model.", "language_model.lm_head"),
            "qwen3_vl": ("model.language_model.", "lm_head"), "qwen2_vl": ("model.", "lm_head"),
            "qwen2_5_vl": ("model.", "lm_head"), "qwen3_vl_moe": ("model.language_model.", "lm_head"),
            "llama4": ("language_model.model.", "language_model.lm_head"), "step3p7": ("model.", "lm_head"),
            "kimi_k3": ("language_model.model.", "language_model.lm_head"), "glm5_next": ("model.language_model.", "lm_head"),
            "inkling_mm_model": ("model.llm.", "model.llm.unembed"),
            "minimax_m3_vl": ("language_model.model.", "language_model.lm_head"),
            "kimi_k25": ("language_model.model.", "language_model.lm_head"),
            "glm4v": ("model.language_model.", "lm_head"), "glm4v_moe": ("model.language_model.", "lm_head"),
            "qwen4_exp": ("model.language_model.", "lm_head"),
            "qwen3_5": ("model.language_model.", "lm_head"), "qwen3_5_moe": ("model.language_model.", "lm_head"),
            "glm46v": ("model.language_model.", "lm_head"), "apertus1p5": ("model.language_model.", "lm_head"),
            "lfm3_vl": ("model.language_model.", "lm_head"),
            "lfm2_vl": ("model.language_model.", "lm_head"), "llava": ("language_model.model.", "language_model.lm_head"),
            "fuyu": ("language_model.model.", "language_model.lm_head"),
            "smolvlm": ("model.text_model.", "lm_head"), "minicpmv": ("llm.model.", "llm.lm_head"),
            "internvl_chat": ("language_model.model.", "language_model.lm_head")}
TEXTS = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "gemma3n": "gemma3n_text",
         "mistral3": "mistral", "qwen3_vl": "qwen3", "qwen2_vl": "qwen2",
         "qwen2_5_vl": "qwen2", "qwen3_vl_moe": "qwen3_vl_moe_text", "llama4": "llama4_text", "step3p7": "step3p5",
         "kimi_k25": "deepseek_v3", "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "llava": "llama",
         "fuyu": "persimmon", "smolvlm": "llama", "minicpmv": "llama",
         "inkling_mm_model": "inkling_text", "minimax_m3_vl": "minimax_m3_vl_text", "kimi_k3": "kimi_linear", "glm5_next": "glm5_next_text",
         "qwen4_exp": "qwen4_exp_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "lfm2_vl": "lfm2",
         "lfm3_vl": "lfm3", "glm46v": "glm4v_text", "apertus1p5": "apertus1p5_text",
         "internvl_chat": "phi3"}


def text_key(config):
    """The key of config.json that holds the text model's keys; None: it is config.json itself."""
    return next((key for key in ("text_config", "llm_config") if config.get(key)), None)


def renamed(m, old, new, head=None):
    """The Model with another stem before all names."""
    def name(text):
        return new + text.removeprefix(old) if text else text

    layers = tuple(replace(a, stem=name(a.stem)) for a in m.layers)
    ends = {key: name(getattr(m, key)) for key in ("embed", "embed_norm", "positions", "final", "extra_stem")}
    if m.streams:
        ends["streams"] = replace(m.streams, end=name(m.streams.end))
    return replace(m, layers=layers, head=head if m.head else None, **ends)


def describe(config, names=()):
    """The Model of a config.json. names: of the file's tensors, which decide about a stem that some files leave out."""
    kind = config["model_type"]
    if kind in WRAPPERS:
        key = text_key(config)
        text = {"model_type": TEXTS[kind]} | (config[key] if key else config)
        if key and "tie_word_embeddings" in config:
            text = {"tie_word_embeddings": config["tie_word_embeddings"]} | text
        text["model_type"] = TEXTS[kind] if text["model_type"] == kind else text["model_type"]
        stem, head = WRAPPERS[kind]
        in_memory = any(name.startswith("model.language_model.") for name in names)
        return renamed(describe(text, names), "model.", "model.language_model." if in_memory else stem, "lm_head" if in_memory else head)
    if kind not in FAMILIES:
        raise SystemExit(f"families: model_type {kind} is not supported")
    m = FAMILIES[kind](config)
    if any(".experts.0.down_proj." in name for name in names):
        m = mixture_families.apart(m)
    if any(".ffn.experts.0.w1." in name for name in names):
        m = mixture_families.dbrx_apart(m)
    m = mixture_families.as_class(m, kind, names)
    if any(".switch_mlp." in name for name in names):
        m = mixture_families.by_mlx(m)
    if kind in ("gpt2", "bloom") and f"transformer.{m.embed}.weight" in names:
        return renamed(m, "", "transformer.", m.head)
    return m
