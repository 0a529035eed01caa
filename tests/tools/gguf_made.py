"""Tiny checkpoints of families that tiny_checkpoint.py does not have, for gguf_writer.py: a configuration, and the shapes of its
tensors."""

import os
import zlib

import checkpoint_io as cio
import numpy as np

HIDDEN, HEADS, HEAD, VOCAB = 96, 4, 24, 256
SIZES = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "vocab_size": VOCAB, "intermediate_size": 128, "hidden_act": "silu",
         "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}

MUSE = {"model_type": "muse_glimmer", "architectures": ["MuseGlimmerForConditionalGeneration"], "dtype": "bfloat16"}
MUSE["text_config"] = SIZES | {
    "model_type": "muse_glimmer_text", "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": HEAD, "sliding_window": 20,
    "qk_scale_factor": 2.7, "output_multiplier": 0.7, "final_logit_softcapping": 20.0, "post_norm_eps": 1e-8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "layer_rope_theta": [500000.0, 0.0, 500000.0, 0.0], "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}

LING = SIZES | {
    "model_type": "bailing_hybrid", "architectures": ["BailingHybridForCausalLM"], "dtype": "bfloat16", "num_hidden_layers": 4,
    "num_key_value_heads": HEADS, "head_dim": 16, "layer_group_size": 2, "first_k_dense_replace": 1, "num_experts": 8,
    "num_experts_per_token": 3, "num_shared_experts": 1, "num_expert_group": 2, "topk_group": 1, "moe_intermediate_size": 32,
    "moe_renormalize": True, "routed_scaling_factor": 2.5, "kda_safe_gate": True, "kda_lower_bound": -4.0, "short_conv_kernel_size": 4,
    "q_lora_rank": None, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32, "rope_theta": 6e6,
    "model_max_length": 2048, "num_nextn_predict_layers": 0}


def mlp(stem, inner):
    return {f"{stem}.gate_proj": (inner, HIDDEN), f"{stem}.up_proj": (inner, HIDDEN), f"{stem}.down_proj": (HIDDEN, inner)}


def muse(config):
    c = config["text_config"]
    names = {"embed_tokens": (VOCAB, HIDDEN), "norm": (HIDDEN,)}
    kv = c["num_key_value_heads"] * HEAD
    for i in range(c["num_hidden_layers"]):
        layer = {f"{norm}_layernorm": (HIDDEN,) for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward")}
        rows = {"q": HEADS * HEAD, "k": kv, "v": kv, "gate": HEADS * HEAD}
        layer |= {f"self_attn.{name}_proj": (n, HIDDEN) for name, n in rows.items()}
        layer |= {"self_attn.o_proj": (HIDDEN, HEADS * HEAD)} | mlp("mlp", c["intermediate_size"])
        names |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"model.language_model.{name}.weight": shape for name, shape in names.items()} | {"lm_head.weight": (VOCAB, HIDDEN)}


def ling(c):
    head, heads = c["head_dim"], HEADS
    width, turning = heads * head, c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    names = {"word_embeddings.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
    delta = {f"{x}_proj.weight": (width, HIDDEN) for x in "qkvfg"} | {f"{x}_conv1d.weight": (width, 1, 4) for x in "qkv"} | {
        "b_proj.weight": (heads, HIDDEN), "A_log": (heads,), "dt_bias": (width,), "o_norm.weight": (head,), "dense.weight": (HIDDEN, width)}
    full = {"q_proj.weight": (heads * turning, HIDDEN), "kv_a_proj_with_mqa.weight": (c["kv_lora_rank"] + c["qk_rope_head_dim"], HIDDEN),
            "kv_a_layernorm.weight": (c["kv_lora_rank"],), "g_proj.weight": (heads, HIDDEN),
            "kv_b_proj.weight": (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]),
            "dense.weight": (HIDDEN, heads * c["v_head_dim"])}
    inner, n = c["moe_intermediate_size"], c["num_experts"]
    modules = [f"experts.{e}" for e in range(n)] + ["shared_experts"]
    experts = {f"{name}.weight": shape for module in modules for name, shape in mlp(module, inner).items()}
    experts |= {"gate.weight": (n, HIDDEN), "gate.expert_bias": (n,)}
    dense = {f"{name}_proj.weight": shape for name, shape in (("gate", (128, HIDDEN)), ("up", (128, HIDDEN)), ("down", (HIDDEN, 128)))}
    for i in range(c["num_hidden_layers"]):
        mixer = full if (i + 1) % c["layer_group_size"] == 0 else delta
        parts = {f"attention.{name}": shape for name, shape in mixer.items()}
        parts |= {f"mlp.{name}": shape for name, shape in (dense if i < c["first_k_dense_replace"] else experts).items()}
        parts |= {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
        names |= {f"layers.{i}.{name}": shape for name, shape in parts.items()}
    return {f"model.{name}": shape for name, shape in names.items()} | {"lm_head.weight": (VOCAB, HIDDEN)}


def content(name, shape):
    """A function of the name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("A_log"):
        return np.log(1 + np.abs(x))
    if len(shape) == 1:
        return np.float32(0.1) * x + np.float32(name.endswith(("norm.weight",)))
    return x * np.float32(0.4 if "embed" in name or "conv1d" in name else shape[-1] ** -0.5)


def write(folder, config, shapes):
    os.makedirs(folder, exist_ok=True)
    f32 = ("A_log", "dt_bias", "expert_bias")
    batches = [cio.Batch([(name, "F32" if name.endswith(f32) else "BF16", shape)],
                         lambda name=name, shape=shape: [cio.encode(content(name, shape), "F32" if name.endswith(f32) else "BF16")])
               for name, shape in shapes.items()]
    cio.write_safetensors(os.path.join(folder, "model.safetensors"), batches)
    cio.write_json(os.path.join(folder, "config.json"), config)
