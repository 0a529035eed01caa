/*
 * MiniMax Text 01 and M1: lightning attention in most layers, softmax attention in the others, and
 * a mixture in all. A branch's sum with the stream is normed, and the norm is the stream from there
 * on. Defaults: MiniMaxConfig. Also as the makers' own code has it, with keys of other names and
 * RoPE on the first rotary_dim elements of each head.
 */
#include <math.h>
#include <string.h>

#include "kernels/ssm.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/lightning.h"

/*
 * n = norm(alpha n + beta branch(n)) is described as norm(n + factor branch(n)), the norm's eps
 * divided by alpha^2, which is the same number: then a branch has one factor, as all branches have.
 */
struct weights {
    double alpha, factor;
};

/* Keys that transformers and the makers' code name differently. */
struct names {
    const char *alpha[3], *beta[3];
};

enum { FULL, LIGHTNING, MLP };

static const struct names by_transformers = {
    {"full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"},
    {"full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"}};

static const struct names by_makers = {
    {"layernorm_full_attention_alpha", "layernorm_linear_attention_alpha", "layernorm_mlp_alpha"},
    {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"}};

static void key_weights(struct ctw_config *c, const struct names *names, struct weights out[3])
{
    for (int i = 0; i < 3; i++) {
        out[i].alpha = ctw_key_number(c, names->alpha[i], 1, CTW_NULL_REFUSED, 1e-6, 1e6);
        out[i].factor =
            ctw_key_number(c, names->beta[i], 1, CTW_NULL_REFUSED, 1e-6, 1e6) / out[i].alpha;
    }
}

struct minimax {
    struct ctw_sizes sizes;
    int64_t head;
    bool makers;
    bool full[CTW_MAX_DECODERS]; /* which layers have softmax attention */
    struct weights weights[3];
    double eps;
    enum ctw_activation act;
};

static void key_layers(struct ctw_config *c, struct minimax *m)
{
    static const char list[] = "attn_type_list";
    const int64_t n = m->sizes.n_layers;
    if (m->makers && !ctw_key_is_given(c, list))
        ctw_key_fail(c, list, CTW_EFORMAT, "expected 0 (lightning) or 1 (full) for each layer");
    const bool *full = m->makers ? ctw_key_layers(c, list, n, 1)
                                 : ctw_key_layers_called(c, "layer_types", n, "full_attention",
                                                         "linear_attention");
    for (int64_t i = 0; i < n; i++)
        m->full[i] = full != NULL ? full[i] : i % 2 == 0;
}

/* What the makers' code has beside transformers' class. */
static void check_makers(struct ctw_config *c, const struct minimax *m)
{
    if (!ctw_key_bool(c, "postnorm", false))
        ctw_key_fail(c, "postnorm", CTW_EUNSUP, "only true is supported");
    if (ctw_key_int(c, "shared_intermediate_size", 0, 0, 0, 1 << 24) != 0)
        ctw_key_fail(c, "shared_intermediate_size", CTW_EUNSUP, "a shared expert is not supported");
    if ((m->sizes.n_head & (m->sizes.n_head - 1)) != 0)
        ctw_key_fail(c, "num_attention_heads", CTW_EUNSUP,
                     "only a power of two is supported with lightning attention");
}

/* Of a layer's rates: less from layer to layer, to almost none. */
static double rate_of(const struct minimax *m, int64_t i)
{
    const double last = (double)(m->sizes.n_layers - 1);
    const double all = m->makers ? fmax(last, 1) : last + 1e-5;
    return 1 - (double)i / all + 1e-5;
}

static struct ctw_norm_form norm_after(const struct minimax *m, const struct weights *w)
{
    return (struct ctw_norm_form){.kind = CTW_NORM_RMS, .eps = m->eps / (w->alpha * w->alpha)};
}

static int describe_rope(struct ctw_config *c, const struct minimax *m)
{
    const int64_t rotated = ctw_key_int(c, "rotary_dim", m->head, m->head, 2, 1 << 20);
    return ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = m->head,
                                    .theta = 1000000.0,
                                    .rotated = rotated < m->head ? rotated : m->head});
}

static struct ctw_experts key_experts(struct ctw_config *c, const struct minimax *m)
{
    const char *n = ctw_key_either(c, "num_local_experts", "num_experts");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 8, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 2, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = m->sizes.inner,
        .act = m->act,
        .module = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = {
            .module = "block_sparse_moe.gate", .score = CTW_SCORE_SOFTMAX, .normalised = true}};
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct minimax *m,
                           const struct ctw_attention_rules *attention,
                           const struct ctw_experts *experts)
{
    static const struct ctw_norm_form inner = {.kind = CTW_NORM_RMS, .eps = 1e-6};
    static const struct ctw_lightning_names lightning = {.qkv = "self_attn.qkv_proj",
                                                         .gate = "self_attn.output_gate",
                                                         .norm = "self_attn.norm",
                                                         .out = "self_attn.out_proj"};
    const struct weights *mixer = &m->weights[m->full[i] ? FULL : LIGHTNING],
                         *mlp = &m->weights[MLP];
    const struct ctw_norm_form after_mixer = norm_after(m, mixer), after_mlp = norm_after(m, mlp);
    ctw_describe_branch(c, i, CTW_MIXER)->factor = (float)mixer->factor;
    ctw_describe_branch(c, i, CTW_MLP)->factor = (float)mlp->factor;
    ctw_describe_norm(c, i, CTW_AT_MIXER_SUM, &after_mixer, "post_attention_layernorm", 0);
    if (i + 1 < m->sizes.n_layers) { /* the stream of the next layer */
        ctw_describe_named_as(c, i + 1);
        ctw_describe_norm(c, i, CTW_AT_MLP_SUM, &after_mlp, "input_layernorm", 0);
        ctw_describe_named_as(c, -1);
    }
    if (m->full[i])
        ctw_describe_attention(c, i, attention);
    else
        ctw_describe_lightning(
            c, i,
            &(struct ctw_lightning_rules){
                .is = {.n_head = m->sizes.n_head, .head = m->head, .by_head = true, .act = m->act},
                .names = &lightning,
                .norm = &inner,
                .rate = rate_of(m, i)});
    ctw_describe_experts(c, i, experts);
}

static void describe_as(struct ctw_config *c, bool makers)
{
    /* transformers' class stores what it computes of the rates. */
    static const char *const buffers[] = {".slope_rate", ".query_decay", ".key_decay",
                                          ".diagonal_decay", NULL};
    struct minimax m = {.makers = makers,
                        .sizes = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32000,
                                                                      .hidden = 4096,
                                                                      .inner = 14336,
                                                                      .n_layers = 32,
                                                                      .n_head = 32,
                                                                      .n_kv = 8,
                                                                      .max_length = 131072})};
    m.head = ctw_key_head_dim(c, &m.sizes, 0, 0);
    if (m.head > CTW_MAX_STATE)
        ctw_key_fail(c, "head_dim", CTW_EUNSUP, "lightning attention has heads of up to 256");
    const int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    const struct ctw_norm_form first = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    m.eps = first.eps;
    m.act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    key_layers(c, &m);
    key_weights(c, makers ? &by_makers : &by_transformers, m.weights);
    if (makers)
        check_makers(c, &m);
    const struct ctw_experts experts = key_experts(c, &m);
    ctw_describe_model(c, &m.sizes,
                       &(struct ctw_model_rules){.norm = norm_after(&m, &m.weights[MLP])});
    ctw_describe_buffers(c, buffers);
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_EMBED, &first, "model.layers.0.input_layernorm", 0);
    const struct ctw_attention_rules attention = {
        .head = m.head, .rope = describe_rope(c, &m), .window = window};
    for (int64_t i = 0; i < m.sizes.n_layers; i++)
        describe_layer(c, i, &m, &attention, &experts);
}

static void describe(struct ctw_config *c)
{
    describe_as(c, false);
}

static void describe_makers(struct ctw_config *c)
{
    describe_as(c, true);
}

static const struct ctw_renamed in_memory[] = {
    {"block_sparse_moe", "mlp"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_minimax = {.model_type = "minimax",
                                              .architecture = "MiniMaxForCausalLM",
                                              .in_memory = in_memory,
                                              .describe = describe};

const struct ctw_family ctw_family_minimax_text_01 = {.model_type = "minimax_text_01",
                                                      .architecture = "MiniMaxText01ForCausalLM",
                                                      .in_memory = in_memory,
                                                      .describe = describe_makers};

const struct ctw_family ctw_family_minimax_m1 = {.model_type = "minimax_m1",
                                                 .architecture = "MiniMaxM1ForCausalLM",
                                                 /* of the first release's files */
                                                 .old_architecture = "MiniMaxText01ForCausalLM",
                                                 .in_memory = in_memory,
                                                 .describe = describe_makers};
