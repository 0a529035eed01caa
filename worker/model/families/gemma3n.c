/*
 * Gemma 3n, the text model: four residual streams with alternating updates (AltUp), a low-rank map
 * beside attention (Laurel), an input of its own for each layer, and the last layers share keys and
 * values. The first MLPs keep what of the gate lies above a cutoff. Norms multiply by the weight
 * itself, values are normalised, and scores are not scaled. Defaults: Gemma3nTextConfig.
 */
#include "kernels/math.h"
#include "kernels/streams.h"
#include "worker/model/families/gemma.h"

enum { NO = CTW_NULL_REFUSED };

struct keys {
    struct ctw_sizes s;
    struct ctw_norm_form norm;
    enum ctw_activation act;
    int64_t head, input;
    const int64_t *windows;
    int64_t n_shared;       /* the last layers, which have no keys and values of their own */
    const double *inner;    /* of each layer's MLP; NULL: 16384 */
    const double *sparsity; /* of each layer's gate; NULL: the class's own */
    struct ctw_alternating altup;
    bool bias;
};

/* The number of standard deviations below which the share p of a normal distribution lies, where
 * the class computes with p in fp32. */
static double deviations(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 64; i++) {
        const double middle = (low + high) / 2;
        if (ctw_erfc(-middle * M_SQRT1_2) / 2 < (float)p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double cutoff_of(const struct keys *k, int64_t i)
{
    const double absent = k->s.n_layers > 10 && i < 10 ? 0.95 : 0;
    const double share = k->sparsity != NULL ? k->sparsity[i] : absent;
    return share > 0 ? deviations(share) : 0;
}

static bool is_full(const struct keys *k, int64_t i)
{
    return k->windows[i] == 0;
}

/* Is i the last layer of its kind that has its own keys and values? */
static bool is_last_own(const struct keys *k, int64_t i)
{
    const int64_t own = k->s.n_layers - k->n_shared;
    for (int64_t j = i + 1; j < own; j++)
        if (is_full(k, j) == is_full(k, i))
            return false;
    return i < own;
}

static void check_shared(struct ctw_config *c, const struct keys *k)
{
    bool kept[2] = {false, false};
    for (int64_t i = 0; i < k->s.n_layers; i++) {
        if (i < k->s.n_layers - k->n_shared)
            kept[is_full(k, i)] = true;
        else if (!kept[is_full(k, i)])
            ctw_key_fail(c, "num_kv_shared_layers", CTW_EFORMAT,
                         "found %lld, but no earlier layer is of the type of layer %lld",
                         (long long)k->n_shared, (long long)i);
    }
}

static struct ctw_alternating key_altup(struct ctw_config *c, double eps)
{
    const int64_t n = ctw_key_int(c, "altup_num_inputs", 4, NO, 1, CTW_MAX_STREAMS);
    return (struct ctw_alternating){.n = (int)n,
                                    .active =
                                        (int)ctw_key_int(c, "altup_active_idx", 0, NO, 0, n - 1),
                                    .eps = (float)eps,
                                    .scales = ctw_key_bool(c, "altup_correct_scale", true),
                                    .low = ctw_key_int(c, "laurel_rank", 64, NO, 1, 1 << 16)};
}

static struct keys read_keys(struct ctw_config *c)
{
    const struct ctw_sizes absent = {.vocab = 262400,
                                     .hidden = 2048,
                                     .n_layers = 35,
                                     .n_head = 8,
                                     .n_kv = 2,
                                     .max_length = 32768};
    struct keys k = {.s = ctw_key_sizes_as(c, &absent, &(struct ctw_size_keys){.inner = ""})};
    const int64_t n = k.s.n_layers;
    k.head = ctw_key_head_dim(c, &k.s, 256, NO);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    k.act = ctw_key_activation(c, "hidden_activation", CTW_ACT_GELU_TANH);
    k.inner = ctw_key_layer_numbers(c, "intermediate_size", n, 1, 1 << 24);
    k.sparsity = ctw_key_layer_numbers(c, "activation_sparsity_pattern", n, 0, 0.999999);
    int64_t window = ctw_key_int(c, "sliding_window", 512, NO, 1, 1 << 30);
    k.windows = ctw_key_windows(c, n, window, &(struct ctw_window_rule){.every = 5});
    k.n_shared = ctw_key_int(c, "num_kv_shared_layers", 15, NO, 0, n);
    k.input = ctw_key_int(c, "hidden_size_per_layer_input", 256, NO, 1, 1 << 16);
    k.altup = key_altup(c, k.norm.eps);
    check_shared(c, &k);
    return k;
}

static void describe_attention(struct ctw_config *c, int64_t i, const struct keys *k)
{
    const bool full = is_full(k, i), shared = i >= k->s.n_layers - k->n_shared;
    struct ctw_norm_form v_norm = k->norm;
    v_norm.weightless = true;
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){
                               .head = k->head,
                               .window = k->windows[i],
                               .rope = gemma_describe_rope(c, k->head, !full),
                               .scale = 1,
                               .qkv_bias = k->bias,
                               .o_bias = k->bias,
                               .norms = &(const struct ctw_qk_norms){.form = k->norm},
                               .v_norm = &v_norm,
                               .uses = shared ? 1 + full : 0,
                               .keeps = k->n_shared > 0 && is_last_own(k, i) ? 1 + full : 0});
    if (!shared)
        return;
    ctw_describe_unused(c, i, "self_attn.k_proj");
    ctw_describe_unused(c, i, "self_attn.v_proj");
    ctw_describe_unused(c, i, "self_attn.k_norm");
}

/* The table of the layers' own inputs has no rows for tokens of images and sounds; the class then
 * takes its first. */
static void describe_inputs(struct ctw_config *c, const struct keys *k)
{
    int64_t vocab = ctw_key_int(c, "vocab_size_per_layer_input", 262144, NO, 1, 1 << 24);
    int64_t all = k->s.n_layers * k->input;
    struct ctw_norm_form norm = k->norm;
    if (c->status != CTW_OK)
        return;
    /* The class divides the projection by sqrt(hidden) before the norm, which cancels but for eps.
     */
    norm.eps *= (double)k->s.hidden;
    c->model->input_dim = k->input;
    c->model->input_embed_scale = (float)(gemma_embed_scale(k->input) * M_SQRT1_2);
    ctw_describe_table(c, CTW_M_INPUT_EMBED, "model.embed_tokens_per_layer", vocab, all);
    ctw_describe_linear(c, CTW_EMBEDDING, 0,
                        &(struct ctw_linear_rules){CTW_P_INPUTS, CTW_M_INPUTS_PROJ, 0,
                                                   "model.per_layer_model_projection", all,
                                                   k->s.hidden});
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_INPUTS, &norm, "model.per_layer_projection_norm",
                      k->input);
}

static void describe(struct ctw_config *c)
{
    const struct keys k = read_keys(c);
    double cap = ctw_key_number(c, "final_logit_softcapping", 30, 0, 1e-6, 1e9);
    ctw_describe_model(c, &k.s,
                       &(struct ctw_model_rules){.norm = k.norm,
                                                 .tied = true,
                                                 .embed_scale = gemma_embed_scale(k.s.hidden),
                                                 .head_softcap = cap});
    describe_inputs(c, &k);
    ctw_describe_altup(c, &k.altup);
    for (int64_t i = 0; i < k.s.n_layers && c->status == CTW_OK; i++) {
        gemma_describe_norms(c, i, &k.norm);
        describe_attention(c, i, &k);
        ctw_describe_mlp(c, i,
                         &(struct ctw_mlp){.inner = k.inner != NULL ? (int64_t)k.inner[i] : 16384,
                                           .act = k.act,
                                           .cutoff = cutoff_of(&k, i)});
        ctw_describe_own_input(c, i, k.act, &k.norm);
        ctw_describe_altup_layer(c, i, &k.norm);
    }
}

const struct ctw_family ctw_family_gemma3n_text = {
    .model_type = "gemma3n_text", .architecture = "Gemma3nForCausalLM", .describe = describe};

const struct ctw_family ctw_family_gemma3n = {
    .model_type = "gemma3n",
    .architecture = "Gemma3nForConditionalGeneration",
    .wrapper =
        &(const struct ctw_wrapper){.text_type = "gemma3n_text", .is_default = true, .tied = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
