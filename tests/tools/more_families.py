"""As families.py: older families, and families whose code comes with their files."""

import math
from dataclasses import replace

from family_keys import act_of, alibi, build, head_of, partial, plain_mlp, rms, rope_settings
from recipe import Norm, Rope


def gpt_bigcode(c):
    n, h = c["n_layer"], c["n_embd"]
    c = {"num_hidden_layers": n, "hidden_size": h, "num_attention_heads": c["n_head"],
         "intermediate_size": c.get("n_inner") or 4 * h} | c
    one = c.get("multi_query", True)
    c["num_key_value_heads"] = 1 if one else c["n_head"]
    layer = {"attention_in": "ln_1", "mlp_in": "ln_2", "projections": ("attn.c_attn",), "by_group": not one,
             "o": "attn.c_proj", "qkv_bias": True, "o_bias": True}
    if not c.get("scale_attn_weights", True):
        layer["scale"] = 1.0
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5), bias=True), rope=None, stem="transformer.h.{}.",
                 layer=layer | plain_mlp(act_of(c, "gelu_tanh"), "mlp.c_fc", "mlp.c_proj", True), embed="transformer.wte",
                 final="transformer.ln_f", positions="transformer.wpe", n_positions=c.get("n_positions", 1024), tied=True)


def gptj(c, **more):
    h = c["n_embd"]
    c = {"num_hidden_layers": c["n_layer"], "hidden_size": h, "num_attention_heads": c["n_head"],
         "intermediate_size": c.get("n_inner") or 4 * h} | c
    layer = {"attention_in": "ln_1", "mlp_in": None, "parallel": True, "o": "attn.out_proj",
             "projections": ("attn.q_proj", "attn.k_proj", "attn.v_proj")} | more
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5), bias=True), stem="transformer.h.{}.",
                 rope=Rope(c.get("rotary_dim", 64), rope_settings({}), True), embed="transformer.wte", head_bias=True,
                 layer=layer | plain_mlp(act_of(c, "gelu_tanh"), "mlp.fc_in", "mlp.fc_out", True),
                 final="transformer.ln_f")


def codegen(c):
    return gptj(c, projections=("attn.qkv_proj",), blocks=4)


def qwen(c):
    older = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "intermediate_size": "ffn_hidden_size"}
    c = {key: c[old] for key, old in older.items() if old in c} | c
    c["intermediate_size"] //= 2
    head, bias = c.get("kv_channels", 128), not c.get("no_bias", True)
    layer = {"attention_in": "ln_1", "mlp_in": "ln_2", "projections": ("attn.c_attn",), "o": "attn.c_proj",
             "qkv_bias": True, "o_bias": bias, "gate_up": ("mlp.w2", "mlp.w1"), "down": "mlp.c_proj", "mlp_bias": bias}
    return build(c, Norm(eps=c.get("layer_norm_epsilon", 1e-6)), stem="transformer.h.{}.", layer=layer, head_dim=head,
                 rope=Rope(head, rope_settings({"rope_theta": c.get("rotary_emb_base", 10000.0)})),
                 embed="transformer.wte", final="transformer.ln_f")


def gpt_neo(c):
    types = [t for names, times in c.get("attention_types") or [[["global", "local"], c["num_layers"] // 2]] for t in names * times]
    h, name = c["hidden_size"], "attn.attention.{}_proj"
    c = c | {"num_hidden_layers": c["num_layers"], "num_attention_heads": c["num_heads"],
             "intermediate_size": c.get("intermediate_size") or 4 * h}
    layer = {"attention_in": "ln_1", "mlp_in": "ln_2", "projections": tuple(map(name.format, "qkv")), "o": name.format("out"),
             "o_bias": True, "scale": 1.0}
    return build(c, Norm("layer", c.get("layer_norm_epsilon", 1e-5), bias=True), stem="transformer.h.{}.", rope=None, tied=True,
                 windows=[c.get("window_size", 256) if t == "local" else None for t in types], embed="transformer.wte",
                 layer=layer | plain_mlp(act_of(c, "gelu_tanh"), "mlp.c_fc", "mlp.c_proj", True), final="transformer.ln_f",
                 positions="transformer.wpe", n_positions=c["max_position_embeddings"])


def persimmon(c):
    head, norm = head_of(c), Norm("layer", c.get("layer_norm_eps", 1e-5), bias=True)
    layer = {"projections": ("self_attn.query_key_value",), "by_group": True, "o": "self_attn.dense", "qkv_bias": True, "o_bias": True,
             "qk_norm": norm if c.get("qk_layernorm", True) else None, "q_norm": "self_attn.q_layernorm",
             "k_norm": "self_attn.k_layernorm"} | plain_mlp(act_of(c, "relu2"), "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", True)
    return build(c, norm, rope=Rope(int(head * partial(c, 0.5)), rope_settings(c)), layer=layer, final="model.final_layernorm")


def biogpt(c):
    layer = {"attention_in": "self_attn_layer_norm", "mlp_in": "final_layer_norm", "o": "self_attn.out_proj", "qkv_bias": True,
             "o_bias": True} | plain_mlp(act_of(c, "gelu"), "fc1", "fc2", True)
    m = build(c, Norm("layer", 1e-5, bias=True), rope=None, stem="biogpt.layers.{}.", layer=layer, embed="biogpt.embed_tokens",
              tied=True, embed_scale=c["hidden_size"] ** 0.5 if c.get("scale_embedding", True) else 1.0, final="biogpt.layer_norm",
              positions="biogpt.embed_positions", n_positions=c["max_position_embeddings"] + 2, position_offset=2)
    return m if m.head is None else replace(m, head="output_projection")


def phi4_multimodal(c):
    """Of the makers' files (phi4mm), whose modules are inside of modules with adapters."""
    inner = ".base_layer" if c["model_type"] == "phi4mm" else ""
    return build(c, rms(c, 1e-5), rope=Rope(int(head_of(c) * partial(c)), rope_settings(c)), windows=c.get("sliding_window"),
                 layer={"projections": (f"self_attn.qkv_proj{inner}",), "o": f"self_attn.o_proj{inner}",
                        "gate_up": (f"mlp.gate_up_proj{inner}",), "down": f"mlp.down_proj{inner}"})


def exaone(c):
    c = {"num_hidden_layers": c.get("num_layers"), "rope_theta": 5e5} | c
    bias, name = c.get("attention_bias", False), "attn.attention.{}_proj"
    layer = {"attention_in": "ln_1", "mlp_in": "ln_2", "projections": tuple(map(name.format, "qkv")), "o": name.format("out"),
             "qkv_bias": bias, "o_bias": bias, "gate_up": ("mlp.c_fc_0", "mlp.c_fc_1"), "down": "mlp.c_proj",
             "mlp_bias": c.get("mlp_bias", False), "act": act_of(c)}
    return build(c, rms(c, c.get("layer_norm_epsilon", 1e-5)), stem="transformer.h.{}.", layer=layer, embed="transformer.wte",
                 final="transformer.ln_f")


def internlm3(c):
    bias = c.get("bias", c.get("mlp_bias", False))
    return build(c, rms(c, 1e-5), head_dim=head_of(c, 128), layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": bias})


def chatglm(c):
    head = c.get("kv_channels", 128)
    c = c | {"num_hidden_layers": c["num_layers"], "intermediate_size": c["ffn_hidden_size"],
             "vocab_size": c["padded_vocab_size"]}
    if c.get("multi_query_attention"):
        c["num_key_value_heads"] = c["multi_query_group_num"]
    layer = {"projections": ("self_attention.query_key_value",), "o": "self_attention.dense",
             "qkv_bias": c.get("add_qkv_bias", False), "gate_up": ("mlp.dense_h_to_4h",), "down": "mlp.dense_4h_to_h"}
    return build(c, Norm(eps=c.get("layernorm_epsilon", 1e-5)), stem="transformer.encoder.layers.{}.", layer=layer,
                 rope=Rope(head // 2, rope_settings({"rope_theta": 10000.0 * c.get("rope_ratio", 1)}), True), head_dim=head,
                 embed="transformer.embedding.word_embeddings", final="transformer.encoder.final_layernorm",
                 head="transformer.output_layer")


def pangu(c):
    bias = c.get("bias", True)
    return build(c, rms(c, 1e-5), layer={"qkv_bias": bias, "o_bias": bias})


def minicpm(c):
    bias = c.get("attention_bias", False)
    layer = {"residual": c.get("scale_depth", 1) / math.sqrt(c["num_hidden_layers"]), "qkv_bias": bias, "o_bias": bias}
    return build(c, rms(c), layer=layer, embed_scale=c.get("scale_emb", 1), tied=True,
                 logit_scale=c.get("dim_model_base", 1) / c["hidden_size"])


def baichuan(c):
    """7B has RoPE, 13B ALiBi; version 2's head has rows of unit length."""
    layer = {"projections": ("self_attn.W_pack",)}
    more = {} if "max_position_embeddings" in c else {"rope": None}
    if more:
        layer["slopes"] = alibi(c["num_attention_heads"])
    return build(c, rms(c), layer=layer, unit_head="z_loss_weight" in c or c["vocab_size"] >= 125696, **more)


def nemotron_nas(c):
    blocks, bias = c["block_configs"], c.get("attention_bias", False)

    def own(i):
        a, ffn, out = blocks[i]["attention"], blocks[i]["ffn"], {}
        if a.get("no_op"):
            out = {"heads": 0, "kv_heads": 0, "attention_in": None}
        else:
            out["kv_heads"] = c["num_attention_heads"] // a["n_heads_in_group"]
        if ffn.get("no_op"):
            return out | {"inner": 0, "mlp_in": None}
        return out | {"inner": math.ceil(int(2 * ffn["ffn_mult"] * c["hidden_size"] / 3) / 256) * 256}

    return build(c | {"intermediate_size": 0}, rms(c), own=own,
                 layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False)})


def molmo(c):
    c = c | {"intermediate_size": c["intermediate_size"] // 2, "vocab_size": c["embedding_size"]}
    layer = {"attention_in": "attn_norm", "mlp_in": "ff_norm", "projections": ("att_proj",), "o": "attn_out",
             "qkv_bias": c.get("qkv_bias", False), "clip": c.get("clip_qkv"), "gate_up": ("ff_proj",), "up_first": True,
             "down": "ff_out"}
    return build(c, Norm(eps=c.get("layer_norm_eps", 1e-5)), stem="model.transformer.blocks.{}.", layer=layer,
                 embed="model.transformer.wte.embedding", embed_suffix="", final="model.transformer.ln_f",
                 head="model.transformer.ff_out")


FAMILIES = {"nemotron-nas": nemotron_nas, "PanguEmbedded": pangu} | {f.__name__: f for f in (
    gpt_bigcode, gptj, codegen, qwen, gpt_neo, persimmon, biogpt, exaone, internlm3, chatglm, minicpm, baichuan, molmo)} | {
    "phi4_multimodal": phi4_multimodal, "phi4mm": phi4_multimodal}
