/* Shared by families with latent attention (MLA): the keys of the attention and of the mixtures. */
#ifndef CTW_WORKER_LATENT_H
#define CTW_WORKER_LATENT_H

#include <math.h>

#include "kernels/math.h"
#include "worker/model/families/family.h"

/* transformers' defaults. */
struct latent_absent {
    int64_t q_rank, kv_rank, nope, rope, head_v; /* rope 0: heads must have no part that turns */
    bool always_interleaved, always_halves;      /* the class does not read rope_interleave */
    struct ctw_rope_rules rope_rules; /* head 0: of the part that turns; 1: of the whole head */
    double mscale_all_dim;            /* of rope_rules.absent */
    int64_t n, chosen, inner, n_shared, n_groups, kept_groups;
    double scale;
    const char *n_key, *n_shared_key; /* further names of the keys, which win; NULL: none */
};

/* Of DeepSeek V3, and of V3.2 but for what it does not read. */
static inline struct latent_absent latent_deepseek_v3(void)
{
    return (struct latent_absent){.q_rank = 1536,
                                  .kv_rank = 512,
                                  .nope = 128,
                                  .rope = 64,
                                  .head_v = 128,
                                  .rope_rules = {.theta = 10000.0},
                                  .n = 256,
                                  .chosen = 8,
                                  .inner = 2048,
                                  .n_shared = 1,
                                  .n_groups = 8,
                                  .kept_groups = 4,
                                  .scale = 2.5};
}

/* Heads of `nope` + `rope` elements; reads the sizes of heads and latents. */
static inline struct ctw_latent_attention
latent_keys(struct ctw_config *c, const struct ctw_sizes *s, const struct latent_absent *absent)
{
    enum { MOST = 1 << 20 };
    struct ctw_latent_attention a = {
        .n_head = s->n_head,
        .kv_rank = ctw_key_int(c, "kv_lora_rank", absent->kv_rank, CTW_NULL_REFUSED, 1, MOST),
        .q_rank = ctw_key_int(c, "q_lora_rank", absent->q_rank, 0, 1, MOST),
        .nope = ctw_key_int(c, "qk_nope_head_dim", absent->nope, CTW_NULL_REFUSED, 1, CTW_MAX_HEAD),
        .rope = ctw_key_int(c, "qk_rope_head_dim", absent->rope, CTW_NULL_REFUSED,
                            absent->rope > 0 ? 2 : 0, absent->rope > 0 ? CTW_MAX_HEAD : 0),
        .head_v = ctw_key_int(c, "v_head_dim", absent->head_v, CTW_NULL_REFUSED, 1, CTW_MAX_HEAD),
        .bias = ctw_key_bool(c, "attention_bias", false),
        .norm = {.kind = CTW_NORM_RMS, .eps = 1e-6}, /* whatever rms_norm_eps is */
    };
    if (s->n_kv != s->n_head)
        ctw_key_fail(c, "num_key_value_heads", CTW_EUNSUP,
                     "found %lld, expected num_attention_heads (%lld): every head has its own keys",
                     (long long)s->n_kv, (long long)s->n_head);
    if (a.rope % 2 != 0)
        ctw_key_fail(c, "qk_rope_head_dim", CTW_EFORMAT, "found %lld, expected an even number",
                     (long long)a.rope);
    if (a.nope + a.rope > CTW_MAX_HEAD)
        ctw_key_fail(c, "qk_nope_head_dim", CTW_EUNSUP,
                     "attention heads of %lld elements; the maximum is %d",
                     (long long)(a.nope + a.rope), CTW_MAX_HEAD);
    return a;
}

/* The RoPE of the heads' turning parts, and what its type does to the scale of scores. */
static inline void latent_rope(struct ctw_config *c, struct ctw_latent_attention *a,
                               const struct latent_absent *absent)
{
    struct ctw_rope_rules rules = absent->rope_rules;
    bool interleaved = absent->always_interleaved ||
                       (!absent->always_halves && ctw_key_bool(c, "rope_interleave", true));
    if (rules.head <= 1)
        rules.head = rules.head == 0 ? a->rope : a->nope + a->rope;
    rules.pairing = interleaved ? CTW_ROPE_INTERLEAVED : CTW_ROPE_HALVES;
    a->rope_index = ctw_describe_rope(c, &rules);
    double weight =
        ctw_key_rope_number(c, "mscale_all_dim", ctw_key_has_rope(c) ? 0 : absent->mscale_all_dim);
    if (c->status != CTW_OK)
        return;
    const struct ctw_rope_params *p = &c->rope[c->n_ropes - 1];
    if (p->rot_dim != a->rope)
        ctw_key_fail(c, "partial_rotary_factor", CTW_EUNSUP,
                     "%d elements of a head are rotated, expected qk_rope_head_dim (%lld)",
                     p->rot_dim, (long long)a->rope);
    a->scale = 1 / sqrt((double)(a->nope + a->rope));
    if (p->type != CTW_ROPE_DEFAULT && p->factor > 1) {
        double m = 0.1 * weight * ctw_ln(p->factor) + 1;
        a->scale *= m * m;
    }
}

/* The mixture of latent attention's families: a shared expert, and a router that may have groups.
 * *shared is the mixture's. */
static inline struct ctw_experts latent_mixture(struct ctw_config *c,
                                                const struct latent_absent *absent,
                                                enum ctw_activation act, struct ctw_mlp *shared)
{
    const char *n_key = ctw_key_either(c, "n_routed_experts", "num_local_experts");
    const char *shared_key = "n_shared_experts";
    if (absent->n_key != NULL)
        n_key = ctw_key_either(c, n_key, absent->n_key);
    if (absent->n_shared_key != NULL)
        shared_key = ctw_key_either(c, shared_key, absent->n_shared_key);
    int64_t n = ctw_key_int(c, n_key, absent->n, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS);
    int64_t chosen = ctw_key_int(c, "num_experts_per_tok", absent->chosen, CTW_NULL_REFUSED, 1,
                                 n < CTW_MAX_CHOSEN ? n : CTW_MAX_CHOSEN);
    int64_t inner =
        ctw_key_int(c, "moe_intermediate_size", absent->inner, CTW_NULL_REFUSED, 1, 1 << 24);
    int64_t n_shared = ctw_key_int(c, shared_key, absent->n_shared, CTW_NULL_REFUSED, 1, 1024);
    *shared = (struct ctw_mlp){.inner = inner * n_shared,
                               .act = act,
                               .gate = "mlp.shared_experts.gate_proj",
                               .up = "mlp.shared_experts.up_proj",
                               .down = "mlp.shared_experts.down_proj"};
    return (struct ctw_experts){
        .n = n,
        .chosen = chosen,
        .inner = inner,
        .act = act,
        .router = {.scale = ctw_key_number(c, "routed_scaling_factor", absent->scale,
                                           CTW_NULL_REFUSED, 1e-6, 1e6)},
        .shared = shared,
    };
}

/* Reads n_group and topk_group. */
static inline void latent_groups(struct ctw_config *c, const struct latent_absent *absent,
                                 struct ctw_experts *x)
{
    int64_t groups = ctw_key_int(c, "n_group", absent->n_groups, CTW_NULL_REFUSED, 1, x->n);
    int64_t kept = ctw_key_int(c, "topk_group", absent->kept_groups, CTW_NULL_REFUSED, 1, groups);
    x->router.n_groups = groups;
    x->router.kept_groups = kept;
}

/* DeepSeek-V3's router: sigmoid scores, whose correction counts for the choice only. */
static inline void latent_sigmoid(struct ctw_config *c, struct ctw_experts *x)
{
    x->router.score = CTW_SCORE_SIGMOID;
    x->router.correction = "mlp.gate.e_score_correction_bias";
    x->router.group_best = 2;
    x->router.normalised = ctw_key_bool(c, "norm_topk_prob", true);
    x->router.sum_add = 1e-20;
}

/* Layer i; experts NULL: it has the MLP. */
static inline void latent_layer(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm,
                                const struct ctw_latent_attention *attention,
                                const struct ctw_mlp *mlp, const struct ctw_experts *experts)
{
    ctw_describe_norms(c, i, norm);
    ctw_describe_latent_attention(c, i, attention);
    if (experts == NULL)
        ctw_describe_mlp(c, i, mlp);
    else
        ctw_describe_experts(c, i, experts);
}

/* DeepSeek V3's model: the first layers are dense (by default, so many), and there may be layers
 * for drafts. */
static inline void latent_describe_v3(struct ctw_config *c, const struct ctw_sizes *s,
                                      const struct latent_absent *absent, int64_t n_dense,
                                      int64_t n_drafts)
{
    const char *drafts = ctw_key_either(c, "num_nextn_predict_layers", "num_mtp_layers");
    struct ctw_latent_attention attention = latent_keys(c, s, absent);
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", n_dense, CTW_NULL_REFUSED, 0, 1 << 20);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    struct ctw_mlp shared,
        mlp = {.inner = s->inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = latent_mixture(c, absent, mlp.act, &shared);
    latent_groups(c, absent, &experts);
    latent_sigmoid(c, &experts);
    ctw_describe_model(c, s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, drafts, n_drafts, 0, 0, 64));
    latent_rope(c, &attention, absent);
    for (int64_t i = 0; i < s->n_layers; i++)
        latent_layer(c, i, &norm, &attention, &mlp, i < dense ? NULL : &experts);
}

#endif
