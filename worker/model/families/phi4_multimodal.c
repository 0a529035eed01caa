/*
 * Phi 4 Multimodal's text model: Phi 3's layers. Its adapters for images and speech take no part in
 * text: they, and what reads images and speech, are counted and not read. Defaults:
 * Phi4MultimodalConfig. The makers' files have a class of their own, phi4mm, and Linear modules
 * inside of modules with adapters.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 200064,
                                                                    .hidden = 3072,
                                                                    .inner = 8192,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    const int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const bool adapted = ctw_files_find(c, ".base_layer.") != NULL;
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                .fused = true,
                                .gate_up = adapted ? "mlp.gate_up_proj.base_layer" : NULL,
                                .down = adapted ? "mlp.down_proj.base_layer" : NULL};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const int rope =
        ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                      .theta = 10000.0,
                                                      .partial_key = "partial_rotary_factor",
                                                      .old_longrope = true,
                                                      .original_length = 4096});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = rope,
        .window = window,
        .order = CTW_QKV_IN_ORDER,
        .qkv = adapted ? "self_attn.qkv_proj.base_layer" : NULL,
        .o = adapted ? "self_attn.o_proj.base_layer" : NULL};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

static const struct ctw_wrapper wrapper = {.flat = true, .adapters = true};

const struct ctw_family ctw_family_phi4_multimodal = {.model_type = "phi4_multimodal",
                                                      .architecture = "Phi4MultimodalForCausalLM",
                                                      .wrapper = &wrapper,
                                                      .describe = describe};

const struct ctw_family ctw_family_phi4mm = {.model_type = "phi4mm",
                                             .architecture = "Phi4MMForCausalLM",
                                             .wrapper = &wrapper,
                                             .describe = describe};
