/*
 * GLM 5 Next (GLM 5.3 Flash), the text model: several residual streams, mixed around each branch;
 * delta rules with a decay for each channel (KDA), and in some layers latent attention without
 * positions over pools of keys that an indexer of this layer or of one before chooses; clamped
 * MLPs, sigmoid routing. Defaults: Glm5NextTextConfig.
 */
#include <string.h>

#include "kernels/pool.h"
#include "kernels/streams.h"
#include "worker/model/families/indexer_keys.h"
#include "worker/model/families/kda_keys.h"

enum { NO = CTW_NULL_REFUSED };

static const struct ctw_delta_names names = {.module = "self_attn", .a = "f", .out = "o_proj"};

/* Which layers have delta rules. Versions of transformers differ in the others' name. */
static void key_linear(struct ctw_config *c, int64_t n, bool *linear)
{
    static const char *const others[] = {"deepseek_sparse_attention", "indexed_attention",
                                         "full_attention"};
    const struct ctw_json_node *node =
        ctw_key_is_given(c, "layer_types") ? ctw_key_list(c, "layer_types", n) : NULL;
    const bool named = node != NULL;
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        const char *name = "linear_attention";
        linear[i] = i % 4 != 3;
        if (!named)
            continue;
        c->status = ctw_json_as_string(node, &name, &c->err);
        linear[i] = strcmp(name, "linear_attention") == 0;
        bool known = linear[i];
        for (size_t j = 0; j < CTW_COUNT(others); j++)
            known |= strcmp(name, others[j]) == 0;
        if (c->status == CTW_OK && !known)
            ctw_key_fail(c, "layer_types", CTW_EUNSUP,
                         "layer %lld is \"%s\"; supported: linear_attention, %s, %s, %s",
                         (long long)i, name, others[0], others[1], others[2]);
        node = ctw_json_next(node);
    }
}

static struct ctw_delta_rule key_delta(struct ctw_config *c)
{
    static const char bound[] = "linear_lower_bound";
    static const char in_object[] = "linear_attn_config.gate_lower_bound";
    struct ctw_delta_rule d = kda_delta(c, 64);
    d.least_log = (float)ctw_key_number(c, bound, -5, 0, -1e3, -1e-3);
    d.least_log = (float)ctw_key_number(c, in_object, (double)d.least_log, 0, -1e3, -1e-3);
    if (ctw_key_is_given(c, "linear_attn_config") && d.least_log == 0 &&
        ctw_key_bool(c, "linear_attn_config.safe_gate", true))
        d.least_log = -5;
    return d;
}

static struct ctw_latent_attention key_attention(struct ctw_config *c, const struct ctw_sizes *s,
                                                 const struct latent_absent *absent, double eps)
{
    struct ctw_latent_attention a = latent_keys(c, s, absent);
    a.rope_index = -1;
    a.norm.eps = eps;
    a.index = indexer_keys(c, 32, &a);
    a.index.rope = -1;
    a.index.pool = (int)ctw_key_int(c, "index_kpool", 16, NO, 1, CTW_MAX_POOL);
    if (c->status == CTW_OK && a.index.chosen % a.index.pool != 0)
        ctw_key_fail(c, "index_topk", CTW_EFORMAT,
                     "found %lld, expected a multiple of index_kpool (%d)",
                     (long long)a.index.chosen, a.index.pool);
    if (!ctw_key_bool(c, "index_kpool_always_select_tail", true))
        ctw_key_fail(c, "index_kpool_always_select_tail", CTW_EUNSUP,
                     "false is not supported: a sequence's first tokens would see no keys");
    return a;
}

static struct ctw_streams key_streams(struct ctw_config *c, const struct ctw_norm_form *norm)
{
    return (struct ctw_streams){.n = (int)ctw_key_int(c, "hc_mult", 4, NO, 1, CTW_MAX_STREAMS),
                                .n_sinkhorn =
                                    (int)ctw_key_int(c, "hc_sinkhorn_iters", 20, NO, 1, 1000),
                                .eps = (float)ctw_key_number(c, "hc_eps", 1e-6, NO, 0, 1),
                                .norm_eps = (float)norm->eps};
}

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {.q_rank = 1536,
                                                .kv_rank = 512,
                                                .nope = 256,
                                                .head_v = 256,
                                                .n = 288,
                                                .chosen = 8,
                                                .inner = 2048,
                                                .n_shared = 1,
                                                .n_groups = 1,
                                                .kept_groups = 1,
                                                .scale = 2.5};
    bool own[CTW_MAX_DECODERS];
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 154880,
                                                                    .hidden = 4096,
                                                                    .inner = 12288,
                                                                    .n_layers = 45,
                                                                    .n_head = 64,
                                                                    .n_kv = 64,
                                                                    .max_length = 1048576});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    struct ctw_latent_attention attention = key_attention(c, &s, &absent, norm.eps);
    const struct ctw_delta_rule delta = key_delta(c);
    const double limit = ctw_key_number(c, "swiglu_limit", 10, NO, 1e-6, 1e9);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = kda_activation(c),
                                .glu = {.kind = CTW_GLU_CLAMPED, .limit = (float)limit}};
    struct ctw_mlp shared;
    struct ctw_experts experts = latent_mixture(c, &absent, mlp.act, &shared);
    latent_groups(c, &absent, &experts);
    latent_sigmoid(c, &experts);
    experts.glu = shared.glu = mlp.glu;
    const struct ctw_streams streams = key_streams(c, &norm);
    struct kda_layers layers = {.norm = &norm,
                                .delta = &delta,
                                .names = &names,
                                .attention = &attention,
                                .mlp = &mlp,
                                .experts = &experts};
    key_linear(c, s.n_layers, layers.linear);
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    for (int64_t i = 0; i < s.n_layers; i++)
        layers.dense[i] = sparse != NULL ? !sparse[i] : i < 3;
    indexer_layers(c, s.n_layers, true, 1, own);
    indexer_check_layers(c, s.n_layers, layers.linear, own);
    layers.own_choice = own;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, "num_nextn_predict_layers", 1, 0, 0, 64));
    ctw_describe_streams(c, &streams);
    kda_describe(c, s.n_layers, &layers);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_mix(c, i, CTW_MIXER, "hc_attn");
        ctw_describe_mix(c, i, CTW_MLP, "hc_ffn");
    }
}

const struct ctw_family ctw_family_glm5_next = {
    .model_type = "glm5_next",
    .architecture = "Glm5NextForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "glm5_next_text", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
