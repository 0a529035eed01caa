/*
 * Hunyuan 4: several residual streams, which branches do not mix with each other; latent attention
 * with sinks and a gate of each value, over keys that an indexer of this layer or of one before
 * chooses; sigmoid routing, with clamped experts. The head is fp32 in 16-bit runs, too. Also the
 * text model of its vision model, whose defaults are larger. Defaults: HYV4Config,
 * HYV4VLTextConfig.
 */
#include "kernels/streams.h"
#include "worker/model/families/indexer_keys.h"

enum { NO = CTW_NULL_REFUSED };

struct rules {
    struct latent_absent absent;
    struct ctw_sizes sizes;
    int64_t index_heads;
};

/* Not at 0 or below. */
static struct ctw_glu key_clamp(struct ctw_config *c)
{
    const double limit = ctw_key_number(c, "swiglu_limit", 10, NO, -1e9, 1e9);
    return limit > 0 ? (struct ctw_glu){.kind = CTW_GLU_CLAMPED, .limit = (float)limit}
                     : (struct ctw_glu){0};
}

static struct ctw_streams key_streams(struct ctw_config *c, const struct ctw_norm_form *norm)
{
    const float eps = (float)ctw_key_number(c, "hc_eps", 1e-6, NO, 0, 1);
    return (struct ctw_streams){.n = (int)ctw_key_int(c, "hc_mult", 4, NO, 1, CTW_MAX_STREAMS),
                                .eps = eps,
                                .norm_eps = (float)norm->eps,
                                .post_factor =
                                    (float)ctw_key_number(c, "hc_magnitude", 2, NO, 1e-6, 1e6),
                                .post_eps = eps};
}

static void describe_with(struct ctw_config *c, const struct rules *r)
{
    bool own[CTW_MAX_DECODERS];
    /* Whatever num_key_value_heads is, every head has its own keys. */
    struct ctw_sizes s = ctw_key_sizes_as(c, &r->sizes, &(struct ctw_size_keys){.n_kv = ""});
    s.n_kv = s.n_head;
    struct ctw_latent_attention attention = latent_keys(c, &s, &r->absent);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    attention.gate = "linear_gate";
    attention.gate_values = true;
    attention.sinks = "self_attn.learnable_sink_param";
    attention.index = indexer_keys(c, r->index_heads, &attention);
    attention.index.turns_last = true;
    attention.index_eps = norm.eps;
    indexer_layers(c, s.n_layers, false, 4, own);
    indexer_check_layers(c, s.n_layers, NULL, own);
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    struct ctw_mlp shared,
        mlp = {.inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = latent_mixture(c, &r->absent, mlp.act, &shared);
    latent_groups(c, &r->absent, &experts);
    latent_sigmoid(c, &experts);
    experts.glu = key_clamp(c);
    const struct ctw_streams streams = key_streams(c, &norm);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .wide_head = true});
    ctw_describe_streams(c, &streams);
    ctw_describe_mix(c, s.n_layers, 0, "model.hc_pre.hc_head.hc_head");
    latent_rope(c, &attention, &r->absent);
    attention.index.rope = attention.rope_index;
    for (int64_t i = 0; i < s.n_layers && c->status == CTW_OK; i++) {
        attention.index.shared = !own[i];
        const bool alone = sparse != NULL ? !sparse[i] : i < 1;
        latent_layer(c, i, &norm, &attention, &mlp, alone ? NULL : &experts);
        ctw_describe_mix(c, i, CTW_MIXER, "hc_pre.hc_attn_layer.hc");
        ctw_describe_mix(c, i, CTW_MLP, "hc_pre.hc_mlp_layer.hc");
    }
}

static struct rules rules_of(void)
{
    return (struct rules){.absent = {.q_rank = 1536,
                                     .kv_rank = 512,
                                     .nope = 192,
                                     .rope = 64,
                                     .head_v = 256,
                                     .always_halves = true,
                                     .rope_rules = {.theta = 10000.0},
                                     .n = 256,
                                     .chosen = 8,
                                     .inner = 768,
                                     .n_shared = 1,
                                     .n_groups = 1,
                                     .kept_groups = 1,
                                     .scale = 2.827},
                          .sizes = {.vocab = 120832,
                                    .hidden = 2816,
                                    .inner = 6912,
                                    .n_layers = 34,
                                    .n_head = 32,
                                    .n_kv = 1,
                                    .max_length = 262144},
                          .index_heads = 16};
}

static void describe(struct ctw_config *c)
{
    const struct rules rules = rules_of();
    describe_with(c, &rules);
}

static void describe_vl(struct ctw_config *c)
{
    struct rules rules = rules_of();
    rules.absent.q_rank = 2048;
    rules.absent.inner = 2048;
    rules.sizes.hidden = 6144;
    rules.sizes.inner = 18432;
    rules.sizes.n_layers = 78;
    rules.sizes.n_head = 64;
    rules.index_heads = 32;
    describe_with(c, &rules);
}

static const struct ctw_renamed in_memory[] = {
    {"self_attn.learnable_sink_param", "self_attn.sinks"},
    {"self_attn.linear_gate", "self_attn.gate_proj"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_hy_v4 = {.model_type = "hy_v4",
                                            .architecture = "HYV4ForCausalLM",
                                            .in_memory = in_memory,
                                            .describe = describe};

const struct ctw_family ctw_family_hy_v4_vl = {
    .model_type = "hy_v4_vl",
    .architecture = "HYV4VLForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "hy_v4_vl_text", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .in_memory = in_memory,
    .describe = describe_vl};
