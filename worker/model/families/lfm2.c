/*
 * LFM 2: short convolutions, and attention in some layers, with norms on the heads of q and k. Its
 * mixtures, and the text model of LFM 2 VL. Defaults: Lfm2Config, Lfm2MoeConfig, and LFM2 of the
 * hub, whose keys are older.
 */
#include "kernels/conv.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/short_conv.h"

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

/* What both have; the MLPs are the families' own. */
struct lfm2 {
    struct ctw_sizes sizes;
    const bool *attention, *convolution; /* by layer, or NULL */
    int taps;
    bool bias;
    struct ctw_norm_form norm;
    struct ctw_attention_rules attends;
};

static struct lfm2 begin(struct ctw_config *c, const struct ctw_sizes *absent)
{
    struct lfm2 m = {.sizes = ctw_key_sizes(c, absent)};
    m.convolution = key_convolutions(c, m.sizes.n_layers, &m.attention);
    m.taps = (int)ctw_key_int(c, "conv_L_cache", 3, CTW_NULL_REFUSED, 1, CTW_MAX_TAPS);
    m.bias = ctw_key_bool(c, "conv_bias", false);
    check_tied(c);
    m.norm = ctw_key_rms_norm(c, "norm_eps", 1e-5);
    m.attends = (struct ctw_attention_rules){.n_head = m.sizes.n_head,
                                             .n_kv = m.sizes.n_kv,
                                             .head = ctw_head_of(c, &m.sizes),
                                             .o = "self_attn.out_proj"};
    ctw_describe_model(c, &m.sizes,
                       &(struct ctw_model_rules){
                           .norm = m.norm, .final_norm = "model.embedding_norm", .tied = true});
    m.attends.rope =
        ctw_describe_rope(c, &(struct ctw_rope_rules){.head = m.attends.head, .theta = 1000000.0});
    return m;
}

static void describe_mixer(struct ctw_config *c, int64_t i, const struct lfm2 *m)
{
    const struct ctw_qk_norms head_norms = {
        .form = m->norm, .q = "self_attn.q_layernorm", .k = "self_attn.k_layernorm"};
    struct ctw_attention_rules attends = m->attends;
    attends.norms = &head_norms;
    ctw_describe_norm(c, i, CTW_AT_MIXER, &m->norm, "operator_norm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, &m->norm, "ffn_norm", 0);
    if (m->convolution != NULL ? m->convolution[i] : m->attention != NULL && !m->attention[i])
        ctw_describe_short_conv(c, i, m->taps, m->bias);
    else
        ctw_describe_attention(c, i, &attends);
}

static struct ctw_mlp mlp_of(int64_t inner)
{
    return (struct ctw_mlp){.inner = inner,
                            .act = CTW_ACT_SILU,
                            .gate = "feed_forward.w1",
                            .up = "feed_forward.w3",
                            .down = "feed_forward.w2"};
}

static void describe(struct ctw_config *c)
{
    const struct lfm2 m = begin(c, &(struct ctw_sizes){.vocab = 65536,
                                                       .hidden = 2560,
                                                       .inner = 12288,
                                                       .n_layers = 32,
                                                       .n_head = 32,
                                                       .n_kv = 8,
                                                       .max_length = 128000});
    const struct ctw_mlp mlp = mlp_of(key_inner(c, m.sizes.inner));
    for (int64_t i = 0; i < m.sizes.n_layers; i++) {
        describe_mixer(c, i, &m);
        ctw_describe_mlp(c, i, &mlp);
    }
}

static void describe_moe(struct ctw_config *c)
{
    const struct lfm2 m = begin(c, &(struct ctw_sizes){.vocab = 65536,
                                                       .hidden = 2048,
                                                       .inner = 7168,
                                                       .n_layers = 32,
                                                       .n_head = 32,
                                                       .n_kv = 8,
                                                       .max_length = 128000});
    const int64_t dense = ctw_key_int(c, "num_dense_layers", 2, CTW_NULL_REFUSED, 0, 1 << 20);
    const bool corrected = ctw_key_bool(c, "use_expert_bias", true);
    const struct ctw_mlp mlp = mlp_of(m.sizes.inner);
    const struct ctw_experts experts = {
        .n = ctw_key_int(c, "num_experts", 32, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 4, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 1792, CTW_NULL_REFUSED, 1, 1 << 24),
        .act = CTW_ACT_SILU,
        .module = "feed_forward.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = {.module = "feed_forward.gate",
                   .correction = corrected ? "feed_forward.expert_bias" : NULL,
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = ctw_key_bool(c, "norm_topk_prob", true),
                   .sum_add = 1e-6,
                   .scale =
                       ctw_key_number(c, "routed_scaling_factor", 1, CTW_NULL_REFUSED, 1e-6, 1e6)}};
    for (int64_t i = 0; i < m.sizes.n_layers; i++) {
        describe_mixer(c, i, &m);
        if (i < dense)
            ctw_describe_mlp(c, i, &mlp);
        else
            ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_lfm2 = {
    .model_type = "lfm2", .architecture = "Lfm2ForCausalLM", .describe = describe};

/* As mlx-lm renames them. */
static const struct ctw_renamed in_mlx[] = {{"feed_forward.w1", "feed_forward.gate_proj"},
                                            {"feed_forward.w3", "feed_forward.up_proj"},
                                            {"feed_forward.w2", "feed_forward.down_proj"},
                                            {NULL, NULL}};

const struct ctw_family ctw_family_lfm2_moe = {.model_type = "lfm2_moe",
                                               .architecture = "Lfm2MoeForCausalLM",
                                               .in_memory = in_mlx,
                                               .describe = describe_moe};

static const struct ctw_wrapper vision = {.text_type = "lfm2", .is_default = true, .tied = true};

const struct ctw_family ctw_family_lfm2_vl = {.model_type = "lfm2_vl",
                                              .architecture = "Lfm2VlForConditionalGeneration",
                                              .wrapper = &vision,
                                              .spellings = ctw_wrapped_spellings,
                                              .describe = describe};
