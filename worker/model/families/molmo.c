/*
 * The text model of Molmo: Llama's layers under OLMo's names, with fused projections, of which the
 * MLP's has up before gate. Defaults: its own config_molmo.py.
 */
#include "worker/model/families/family.h"

/* Rows of the embedding and of the head. */
static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(c,
                                          &(struct ctw_sizes){.vocab = 50304,
                                                              .hidden = 4096,
                                                              .inner = 11008,
                                                              .n_layers = 32,
                                                              .n_head = 32,
                                                              .max_length = 2048},
                                          &(struct ctw_size_keys){0});
    s.vocab = ctw_key_int(c, "embedding_size", s.vocab, s.vocab, 1, 1 << 24);
    s.inner /= 2; /* the file counts the rows of gate and up */
    return s;
}

static void check_keys(struct ctw_config *c)
{
    if (ctw_key_is_given(c, "layer_norm_type") && !ctw_key_is(c, "layer_norm_type", "rms"))
        ctw_key_fail(c, "layer_norm_type", CTW_EUNSUP, "expected \"rms\"");
    if (ctw_key_bool(c, "norm_after", false))
        ctw_key_fail(c, "norm_after", CTW_EUNSUP, "norms after the branches are not supported");
    if (ctw_key_bool(c, "attention_layer_norm", false))
        ctw_key_fail(c, "attention_layer_norm", CTW_EUNSUP, "norms of heads are not supported");
    if (ctw_key_bool(c, "weight_tying", false))
        ctw_key_fail(c, "weight_tying", CTW_EUNSUP, "a tied head is not supported");
}

static void describe(struct ctw_config *c)
{
    /* The embedding of image tokens. */
    static const char *const images[] = {"transformer.wte.new_embedding", NULL};
    const struct ctw_sizes s = key_sizes(c);
    int64_t head = ctw_head_of(c, &s);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "layer_norm_eps", 1e-5);
    bool bias = ctw_key_bool(c, "qkv_bias", false);
    double limit = ctw_key_number(c, "clip_qkv", 0, 0, 1e-6, 1e9);
    check_keys(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "model.transformer.blocks",
                                                 .embed = "model.transformer.wte.embedding",
                                                 .final_norm = "model.transformer.ln_f",
                                                 .head = "model.transformer.ff_out",
                                                 .norm = norm});
    ctw_describe_buffers(c, images);
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0}),
        .limit = limit,
        .order = CTW_QKV_IN_ORDER,
        .qkv = "att_proj",
        .o = "attn_out",
        .qkv_bias = bias};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = CTW_ACT_SILU,
                                .fused = true,
                                .up_first = true,
                                .gate_up = "ff_proj",
                                .down = "ff_out"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "attn_norm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "ff_norm", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_molmo = {.model_type = "molmo",
                                            .architecture = "MolmoForCausalLM",
                                            .wrapper = &(const struct ctw_wrapper){.flat = true},
                                            .describe = describe};
