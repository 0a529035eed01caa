/*
 * Inkling, the text model inside a model of images and sounds: a normalised embedding, attention
 * with a learned bias by distance in place of RoPE, windows in most layers, convolutions of keys,
 * values and of both branches' outputs. A sigmoid router whose weights the shared experts take part
 * in. Defaults: InklingTextConfig.
 */
#include "kernels/conv.h"
#include "worker/model/families/family.h"

enum { NO = CTW_NULL_REFUSED };

struct inkling {
    struct ctw_norm_form norm;
    struct ctw_qk_norms qk_norms;
    struct ctw_attention_rules full, local;
    const bool *is_local;       /* by layer, or after an error NULL */
    bool all[CTW_MAX_DECODERS]; /* if no key says: all but every sixth layer */
    const bool *sparse;         /* likewise; NULL: those from dense_layers on */
    int64_t dense_layers;
    int taps;
    struct ctw_mlp dense;
    struct ctw_experts experts;
};

static struct ctw_attention_rules key_attention(struct ctw_config *c, const char *n_head,
                                                const char *n_kv, const char *head,
                                                const struct ctw_attention_rules *absent)
{
    struct ctw_attention_rules a = {.rope = -1,
                                    .q = "attn.wq_du",
                                    .k = "attn.wk_dv",
                                    .v = "attn.wv_dv",
                                    .o = "attn.wo_ud",
                                    .relative = "attn.wr_du",
                                    .relative_proj = "attn.rel_logits_proj.proj",
                                    .k_conv = "attn.k_sconv.weight",
                                    .v_conv = "attn.v_sconv.weight"};
    a.n_head = ctw_key_int(c, n_head, absent->n_head, NO, 1, 1 << 16);
    a.n_kv = ctw_key_int(c, n_kv, absent->n_kv, NO, 1, 1 << 16);
    a.head = ctw_key_int(c, head, absent->head, NO, 1, CTW_MAX_HEAD);
    a.scale = 1 / (double)a.head;
    if (c->status == CTW_OK && a.n_head % a.n_kv != 0)
        ctw_key_fail(c, n_kv, CTW_EFORMAT, "found %lld, expected a divisor of %s (%lld)",
                     (long long)a.n_kv, n_head, (long long)a.n_head);
    return a;
}

/* The factor of queries and of their biases in full layers. */
static void key_factors(struct ctw_config *c, struct inkling *m)
{
    const int64_t floor = ctw_key_int(c, "log_scaling_n_floor", 0, 0, 1, 1 << 30);
    const double alpha = ctw_key_number(c, "log_scaling_alpha", 0.1, NO, 0, 1e3);
    m->full.q_factors = floor > 0 && alpha > 0;
    if (!m->full.q_factors)
        return;
    c->model->q_factor_beta = alpha;
    c->model->q_factor_length = (double)floor;
    c->model->q_factor_first = 1;
    c->model->q_factor_smooth = true;
}

static void key_layers(struct ctw_config *c, const struct ctw_sizes *s, struct inkling *m)
{
    for (int64_t i = 0; i < s->n_layers; i++)
        m->all[i] = (i + 1) % 6 != 0;
    const bool *named =
        ctw_key_layers_called(c, "layer_types", s->n_layers, "hybrid_sliding", "hybrid");
    const bool *listed = ctw_key_layer_set(c, "local_layer_ids", s->n_layers);
    m->is_local = named != NULL ? named : listed != NULL ? listed : m->all;
    m->sparse = ctw_key_layers_called(c, "mlp_layer_types", s->n_layers, "sparse", "dense");
    m->dense_layers = ctw_key_int(c, "dense_mlp_idx", 0, NO, 0, 1 << 20);
}

static void key_mixer(struct ctw_config *c, struct inkling *m)
{
    const char *window = ctw_key_either(c, "sliding_window_size", "sliding_window");
    const char *taps = ctw_key_either(c, "sconv_kernel_size", "conv_kernel_size");
    m->full = key_attention(c, "num_attention_heads", "num_key_value_heads", "head_dim",
                            &(struct ctw_attention_rules){.n_head = 64, .n_kv = 8, .head = 128});
    m->local =
        key_attention(c, "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim",
                      &(struct ctw_attention_rules){.n_head = 64, .n_kv = 16, .head = 128});
    m->full.relative_rank = m->local.relative_rank =
        ctw_key_int(c, "d_rel", 16, NO, 1, CTW_MAX_RELATIVE);
    m->full.relative_extent = ctw_key_int(c, "rel_extent", 1024, NO, 1, 1 << 24);
    m->local.window = m->local.relative_extent = ctw_key_int(c, window, 512, NO, 1, 1 << 24);
    m->taps = (int)ctw_key_int(c, taps, 4, NO, 1, CTW_MAX_TAPS);
    m->full.conv_taps = m->local.conv_taps = m->taps;
    m->qk_norms = (struct ctw_qk_norms){.form = m->norm, .q = "attn.q_norm", .k = "attn.k_norm"};
    m->full.norms = m->local.norms = &m->qk_norms;
    key_factors(c, m);
}

static void key_mlps(struct ctw_config *c, struct inkling *m)
{
    /* With this key, intermediate_size is that of the experts. */
    const bool apart = ctw_key_is_given(c, "dense_intermediate_size");
    const enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    const int64_t dense = ctw_key_int(c, apart ? "dense_intermediate_size" : "intermediate_size",
                                      24576, NO, 1, 1 << 24);
    const int64_t inner = ctw_key_int(c, apart ? "intermediate_size" : "moe_intermediate_size",
                                      apart ? 24576 : 3072, NO, 1, 1 << 24);
    const char *n = ctw_key_either(c, "n_routed_experts", "num_local_experts");
    if (!ctw_key_bool(c, "shared_expert_sink", true))
        ctw_key_fail(c, "shared_expert_sink", CTW_EUNSUP, "false is not supported");
    m->dense = (struct ctw_mlp){.inner = dense,
                                .act = act,
                                .fused = true,
                                .interleaved = true,
                                .gate_up = "mlp.w13_dn",
                                .down = "mlp.w2_md"};
    m->experts = (struct ctw_experts){
        .n = ctw_key_int(c, n, 256, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 6, NO, 1, CTW_MAX_CHOSEN),
        .inner = inner,
        .act = act,
        .stacked = true,
        .fused = true,
        .interleaved = true,
        .gate_up = "w13_weight",
        .down = "w2_weight",
        .n_always = ctw_key_int(c, "n_shared_experts", 2, NO, 1, CTW_MAX_CHOSEN - 1),
        .always = "mlp.shared_experts",
        .always_gate_up = "shared_w13_weight",
        .always_down = "shared_w2_weight",
        .router = {.module = "mlp.gate",
                   .correction = "mlp.gate.bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true,
                   .scale = ctw_key_number(c, "route_scale", 8, NO, 1e-6, 1e6)}};
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct inkling *m)
{
    const bool mixture = m->sparse != NULL ? m->sparse[i] : i >= m->dense_layers;
    ctw_describe_norm(c, i, CTW_AT_MIXER, &m->norm, "attn_norm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, &m->norm, "mlp_norm", 0);
    ctw_describe_attention(c, i, m->is_local[i] ? &m->local : &m->full);
    ctw_describe_out_conv(c, i, CTW_MIXER, "attn_sconv.weight", m->taps);
    if (mixture)
        ctw_describe_experts(c, i, &m->experts);
    else
        ctw_describe_mlp(c, i, &m->dense);
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MLP, CTW_V_FACTOR),
                        mixture ? "mlp.gate.global_scale" : "mlp.global_scale", 1);
    ctw_describe_out_conv(c, i, CTW_MLP, "mlp_sconv.weight", m->taps);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 201024, .hidden = 6144, .n_layers = 66, .n_head = 64, .max_length = 131072},
        &(struct ctw_size_keys){
            .inner = "",
            .n_head = "",
            .n_kv = "",
            .max_length = ctw_key_either(c, "model_max_length", "max_position_embeddings")});
    const char *width = ctw_key_either(c, "logits_mup_width_multiplier", "embedding_multiplier");
    struct inkling m = {.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6)};
    const int64_t unpadded = ctw_key_int(c, "unpadded_vocab_size", s.vocab, s.vocab, 1, 1 << 24);
    key_layers(c, &s, &m);
    key_mixer(c, &m);
    key_mlps(c, &m);
    ctw_describe_model(
        c, &s,
        &(struct ctw_model_rules){.embed = "model.embed",
                                  .norm = m.norm,
                                  .head_scale = 1 / ctw_key_number(c, width, 24, NO, 1e-6, 1e9)});
    if (c->model->tied)
        ctw_key_fail(c, "tie_word_embeddings", CTW_EUNSUP, "true is not supported");
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_EMBED, &m.norm, "model.embed_norm", 0);
    for (int64_t i = 0; i < s.n_layers && c->status == CTW_OK; i++)
        describe_layer(c, i, &m);
    /* The embedding and the head have further rows, which are no tokens. */
    if (unpadded < s.vocab)
        c->model->vocab = unpadded;
}

static const struct ctw_spelling spellings[] = {
    {"model.language_model.", "lm_head"}, {"model.llm.", "model.llm.unembed"}, {NULL, NULL}};

static const struct ctw_renamed in_memory[] = {
    {"attn.wq_du", "self_attn.q_proj"},
    {"attn.wk_dv", "self_attn.k_proj"},
    {"attn.wv_dv", "self_attn.v_proj"},
    {"attn.wr_du", "self_attn.r_proj"},
    {"attn.wo_ud", "self_attn.o_proj"},
    {"mlp.w2_md", "mlp.down_proj"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_inkling = {
    .model_type = "inkling_mm_model",
    .architecture = "InklingForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "inkling_text", .is_default = true},
    .spellings = spellings,
    .in_memory = in_memory,
    .describe = describe};
