/*
 * LongCat Flash: each of the file's layers is two of ours, each latent attention and a dense MLP.
 * Beside the first MLP is a mixture, which reads what that MLP reads, and whose output joins the
 * stream behind the second MLP. The mixture's last experts give what they read. Defaults:
 * LongcatFlashConfig.
 */
#include <stdio.h>

#include "worker/model/families/latent_keys.h"

enum { MIXTURE = CTW_MLP + 1 }; /* the branch */

static const struct latent_absent absent = {.q_rank = 1536,
                                            .kv_rank = 512,
                                            .nope = 128,
                                            .rope = 64,
                                            .head_v = 128,
                                            .always_interleaved = true,
                                            .rope_rules = {.theta = 10000000.0}};

/* num_layers are the file's. transformers' num_hidden_layers are twice as many, and count. */
static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    static const char both[] = "num_hidden_layers";
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){.vocab = 131072,
                            .hidden = 6144,
                            .inner = 12288,
                            .n_layers = 28,
                            .n_head = 64,
                            .max_length = 131072},
        &(struct ctw_size_keys){.inner = ctw_key_either(c, "ffn_hidden_size", "intermediate_size"),
                                .n_layers = "num_layers"});
    const int64_t twice = 2 * s.n_layers;
    s.n_layers = ctw_key_int(c, both, twice, CTW_NULL_REFUSED, 2, CTW_MAX_DECODERS);
    if (s.n_layers != twice && (ctw_key_is_given(c, "num_layers") || s.n_layers % 2 != 0))
        ctw_key_fail(c, both, CTW_EFORMAT, "found %lld, expected twice num_layers (%lld)",
                     (long long)s.n_layers, (long long)twice / 2);
    if (s.n_layers > CTW_MAX_DECODERS)
        ctw_key_fail(c, "num_layers", CTW_EUNSUP, "more than %d are not supported",
                     CTW_MAX_DECODERS / 2);
    return s;
}

/* Keys that the makers' code reads, but transformers' class does not, and n-gram embeddings. */
static void check_rules(struct ctw_config *c)
{
    if (!ctw_key_bool(c, "mla_scale_q_lora", true))
        ctw_key_fail(c, "mla_scale_q_lora", CTW_EUNSUP, "only true is supported");
    if (!ctw_key_bool(c, "mla_scale_kv_lora", true))
        ctw_key_fail(c, "mla_scale_kv_lora", CTW_EUNSUP, "only true is supported");
    if (ctw_key_is_given(c, "ngram_vocab_size_ratio"))
        ctw_key_fail(c, "ngram_vocab_size_ratio", CTW_EUNSUP,
                     "n-gram embeddings are not supported");
    if (ctw_key_is_given(c, "oe_vocab_size_ratio"))
        ctw_key_fail(c, "oe_vocab_size_ratio", CTW_EUNSUP, "n-gram embeddings are not supported");
    if (ctw_key_is_true(c, "norm_topk_prob"))
        ctw_key_fail(c, "norm_topk_prob", CTW_EUNSUP, "only false is supported");
    if (ctw_key_is_true(c, "router_bias"))
        ctw_key_fail(c, "router_bias", CTW_EUNSUP, "only false is supported");
    if (ctw_key_is_given(c, "zero_expert_type") && !ctw_key_is(c, "zero_expert_type", "identity"))
        ctw_key_fail(c, "zero_expert_type", CTW_EUNSUP, "only \"identity\" is supported");
    if (ctw_key_is_given(c, "attention_method") && !ctw_key_is(c, "attention_method", "MLA"))
        ctw_key_fail(c, "attention_method", CTW_EUNSUP, "only \"MLA\" is supported");
}

static struct ctw_latent_attention key_attention(struct ctw_config *c, const struct ctw_sizes *s)
{
    struct ctw_latent_attention a = latent_keys(c, s, &absent);
    const int64_t head = a.nope + a.rope;
    if (a.q_rank == 0)
        ctw_key_fail(c, "q_lora_rank", CTW_EUNSUP, "null is not supported");
    if (ctw_key_int(c, "head_dim", a.rope, a.rope, 1, 1 << 20) != a.rope)
        ctw_key_fail(c, "head_dim", CTW_EUNSUP, "expected qk_rope_head_dim (%lld), or none",
                     (long long)a.rope);
    if (ctw_key_int(c, "qk_head_dim", head, head, 1, 1 << 20) != head)
        ctw_key_fail(c, "qk_head_dim", CTW_EUNSUP,
                     "expected qk_nope_head_dim + qk_rope_head_dim (%lld), or none",
                     (long long)head);
    a.kv_factor = sqrt((double)s->hidden / (double)a.kv_rank);
    return a;
}

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act)
{
    const char *n = ctw_key_either(c, "n_routed_experts", "num_local_experts");
    const char *chosen = ctw_key_either(c, "moe_topk", "num_experts_per_tok");
    const char *inner = ctw_key_either(c, "expert_ffn_hidden_size", "moe_intermediate_size");
    const double scale = ctw_key_number(c, "routed_scaling_factor", 6, CTW_NULL_REFUSED, 1e-6, 1e6);
    return (struct ctw_experts){
        .branch = MIXTURE,
        .n = ctw_key_int(c, n, 512, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .n_identity = ctw_key_int(c, "zero_expert_num", 256, CTW_NULL_REFUSED, 0, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, chosen, 12, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, inner, 2048, CTW_NULL_REFUSED, 1, 1 << 24),
        .act = act,
        .router = {.module = "mlp.router.classifier",
                   .correction = "mlp.router.e_score_correction_bias",
                   .score = CTW_SCORE_SOFTMAX,
                   .scale = scale}};
}

/* transformers 5 saves gate and up of experts that have none. */
static void describe_unused(struct ctw_config *c, int64_t i, const struct ctw_experts *x)
{
    char name[64];
    (void)snprintf(name, sizeof(name), ".experts.%lld.", (long long)x->n);
    if (x->n_identity == 0 || ctw_files_find(c, name) == NULL)
        return;
    for (int64_t e = x->n; e < x->n + x->n_identity; e++) {
        (void)snprintf(name, sizeof(name), "mlp.experts.%lld", (long long)e);
        ctw_describe_unused(c, i, name);
    }
}

/* Half 0 or 1 of one of the file's layers. */
struct half {
    const char *attention, *mixer_norm, *mlp_norm, *gate, *up, *down;
};

static const struct half halves[2] = {
    {"self_attn.0", "input_layernorm.0", "post_attention_layernorm.0", "mlps.0.gate_proj",
     "mlps.0.up_proj", "mlps.0.down_proj"},
    {"self_attn.1", "input_layernorm.1", "post_attention_layernorm.1", "mlps.1.gate_proj",
     "mlps.1.up_proj", "mlps.1.down_proj"}};

static void describe_half(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm,
                          struct ctw_latent_attention attention, struct ctw_mlp mlp)
{
    const struct half *half = &halves[i % 2];
    attention.module = half->attention;
    mlp.gate = half->gate;
    mlp.up = half->up;
    mlp.down = half->down;
    ctw_describe_norm(c, i, CTW_AT_MIXER, norm, half->mixer_norm, 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, norm, half->mlp_norm, 0);
    ctw_describe_latent_attention(c, i, &attention);
    ctw_describe_mlp(c, i, &mlp);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = key_sizes(c);
    struct ctw_latent_attention attention = key_attention(c, &s);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    const struct ctw_experts experts = key_experts(c, mlp.act);
    check_rules(c);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_shortcuts(c);
    latent_rope(c, &attention, &absent);
    attention.scale *= sqrt((double)s.hidden / (double)attention.q_rank);
    for (int64_t i = 0; i < s.n_layers && c->status == CTW_OK; i++) {
        ctw_describe_named_as(c, i / 2);
        describe_half(c, i, &norm, attention, mlp);
        if (i % 2 == 0) {
            ctw_describe_experts(c, i, &experts);
            describe_unused(c, i, &experts);
            ctw_describe_branch(c, i, MIXTURE)->beside = true;
            ctw_describe_shortcut(c, i, MIXTURE, i + 1, CTW_MLP);
        }
        ctw_describe_named_as(c, -1);
    }
}

const struct ctw_family ctw_family_longcat_flash = {
    .model_type = "longcat_flash", .architecture = "LongcatFlashForCausalLM", .describe = describe};
