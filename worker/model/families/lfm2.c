/*
 * LFM 2: short convolutions, and attention in some layers, with norms on the heads of q and k.
 * Defaults: Lfm2Config, and LFM2 of the hub, whose keys are older.
 */
#include "kernels/conv.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/short_conv.h"

extern const struct ctw_family ctw_family_lfm2;

/* The width of the MLP, which the class computes. */
static int64_t key_inner(struct ctw_config *c, int64_t inner)
{
    inner = ctw_key_int(c, "block_ff_dim", inner, inner, 1, 1 << 24);
    double factor = ctw_key_number(c, "block_ffn_dim_multiplier", 1, 0, 1e-3, 1e3);
    int64_t multiple = ctw_key_int(c, "block_multiple_of", 256, CTW_NULL_REFUSED, 1, 1 << 20);
    if (!ctw_key_bool(c, "block_auto_adjust_ff_dim", true))
        return inner;
    inner = 2 * inner / 3;
    if (factor == 0) /* null */
        return inner;
    inner = (int64_t)(factor * (double)inner);
    return (inner + multiple - 1) / multiple * multiple;
}

/* Which layers have convolutions; NULL: none. */
static const bool *key_convolutions(struct ctw_config *c, int64_t n, const bool **attention)
{
    const bool *kinds = ctw_key_layers_called(c, "layer_types", n, "conv", "full_attention");
    *attention = ctw_key_layer_set(c, "full_attn_idxs", n);
    return kinds;
}

/* The older name of tie_word_embeddings, which wins in the class. */
static void check_tied(struct ctw_config *c)
{
    if (!ctw_key_bool(c, "tie_embedding", true))
        ctw_key_fail(c, "tie_embedding", CTW_EUNSUP,
                     "false is not supported; say so by tie_word_embeddings");
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 65536,
                                                                    .hidden = 2560,
                                                                    .inner = 12288,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 128000});
    const bool *attention, *convolution = key_convolutions(c, s.n_layers, &attention);
    int64_t head = ctw_head_of(c, &s), inner = key_inner(c, s.inner);
    int taps = (int)ctw_key_int(c, "conv_L_cache", 3, CTW_NULL_REFUSED, 1, CTW_MAX_TAPS);
    bool bias = ctw_key_bool(c, "conv_bias", false);
    check_tied(c);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "norm_eps", 1e-5);
    const struct ctw_qk_norms head_norms = {
        .form = norm, .q = "self_attn.q_layernorm", .k = "self_attn.k_layernorm"};
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .final_norm = "model.embedding_norm", .tied = true});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 1000000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "operator_norm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "ffn_norm", 0);
        if (convolution != NULL ? convolution[i] : attention != NULL && !attention[i])
            ctw_describe_short_conv(c, i, taps, bias);
        else
            ctw_describe_attention(c, i,
                                   &(struct ctw_attention_rules){.n_head = s.n_head,
                                                                 .n_kv = s.n_kv,
                                                                 .head = head,
                                                                 .rope = rope,
                                                                 .o = "self_attn.out_proj",
                                                                 .norms = &head_norms});
        ctw_describe_mlp(c, i,
                         &(struct ctw_mlp){.inner = inner,
                                           .act = CTW_ACT_SILU,
                                           .gate = "feed_forward.w1",
                                           .up = "feed_forward.w3",
                                           .down = "feed_forward.w2"});
    }
}

const struct ctw_family ctw_family_lfm2 = {
    .model_type = "lfm2", .architecture = "Lfm2ForCausalLM", .describe = describe};
