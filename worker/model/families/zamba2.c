/*
 * Zamba 2: Mamba 2 layers. In hybrid layers a shared transformer comes first, which reads the
 * stream and the embedding side by side; its output, projected, is added to the Mamba layer's input
 * alone. A few shared transformers take turns; in each use, adapters of its own are added to their
 * projections. Defaults: Zamba2Config.
 */
#include <stdio.h>

#include "worker/model/families/state_space_keys.h"

enum { ATTENTION = CTW_MIXER, FEED_FORWARD = CTW_MLP, PROJECTION, MAMBA, MAX_NAME = 96 };

struct zamba2 {
    bool hybrid[CTW_MAX_DECODERS];
    int64_t n_blocks; /* shared transformers */
    bool adapts_attention;
    struct ctw_norm_form norm, gated_norm;
    struct ctw_state_space_rules mamba;
    struct ctw_attention_rules attention;
    struct ctw_mlp mlp;
};

/* Which of n layers are hybrid; absent or null: those of Zamba2-2.7B. */
static void key_layers(struct ctw_config *c, int64_t n, bool *hybrid)
{
    enum { DEFAULT_LAYERS = 54 };
    static const int absent[] = {6, 12, 18, 24, 30, 36, 42, 47, 51};
    const char *text, *name = ctw_key_either(c, "layers_block_type", "layer_types");
    if (!ctw_key_is_given(c, name)) {
        if (n != DEFAULT_LAYERS)
            ctw_key_fail(c, name, CTW_EFORMAT, "expected a name for each of num_hidden_layers");
        for (size_t i = 0; i < CTW_COUNT(absent); i++)
            hybrid[absent[i]] = true;
        return;
    }
    const struct ctw_json_node *node = ctw_key_list(c, name, n);
    for (; node != NULL && c->status == CTW_OK; node = ctw_json_next(node)) {
        c->status = ctw_json_as_string(node, &text, &c->err);
        if (c->status != CTW_OK)
            return;
        *hybrid++ = strcmp(text, "hybrid") == 0;
        if (!hybrid[-1] && strcmp(text, "mamba") != 0 && strcmp(text, "linear_attention") != 0)
            c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP,
                                      "\"%s\" is not supported; supported: mamba, hybrid", text);
    }
}

static void key_mamba(struct ctw_config *c, int64_t hidden, struct zamba2 *m)
{
    double expand = ctw_key_number(c, "mamba_expand", 2, CTW_NULL_REFUSED, 1e-3, 1e3);
    const int64_t inner = (int64_t)(expand * (double)hidden);
    const int64_t n_head = ssm_key(c, "n_mamba_heads", 8, 1 << 16);
    m->mamba.is = (struct ctw_state_space){
        .n_head = n_head,
        .head = inner / n_head,
        .n_groups = ssm_key(c, "mamba_ngroups", 1, 1 << 16),
        .n_state = ssm_key(c, "mamba_d_state", 64, CTW_MAX_STATE),
        .taps = (int)ssm_key(c, "mamba_d_conv", 4, CTW_MAX_TAPS),
        .dt_min = (float)ctw_key_number(c, "time_step_min", 0.001, CTW_NULL_REFUSED, 0, 1e9),
        .dt_max = INFINITY};
    m->mamba.is.norm_groups = m->mamba.is.n_groups;
    m->mamba.conv_bias = true; /* use_conv_bias is not read by the class */
    m->gated_norm = (struct ctw_norm_form){.kind = CTW_NORM_RMS, .eps = 1e-5};
    m->mamba.norm = &m->gated_norm;
    if (inner % n_head != 0)
        ctw_key_fail(c, "n_mamba_heads", CTW_EFORMAT,
                     "expected a divisor of mamba_expand * hidden_size");
}

/* Attention's heads are of the stream and the embedding together; its RoPE comes later. */
static void key_attention(struct ctw_config *c, const struct ctw_sizes *s, struct zamba2 *m)
{
    struct ctw_sizes both = *s;
    both.hidden *= 2;
    const int64_t head = ctw_head_of(c, &both);
    m->attention = (struct ctw_attention_rules){.head = head,
                                                .rope = -1,
                                                .scale = 1 / sqrt((double)head / 2),
                                                .input = both.hidden,
                                                .q = "shared_transformer.self_attn.q_proj",
                                                .k = "shared_transformer.self_attn.k_proj",
                                                .v = "shared_transformer.self_attn.v_proj",
                                                .o = "shared_transformer.self_attn.o_proj"};
    m->adapts_attention = ctw_key_bool(c, "use_shared_attention_adapter", false);
    m->attention.adapter_rank = ssm_key(c, "adapter_rank", 128, 1 << 16);
    m->mlp = (struct ctw_mlp){.inner = s->inner,
                              .act = ctw_key_activation(c, "hidden_act", CTW_ACT_GELU),
                              .fused = true,
                              .gate_up = "shared_transformer.feed_forward.gate_up_proj",
                              .down = "shared_transformer.feed_forward.down_proj",
                              .adapter_rank = m->attention.adapter_rank};
}

/* Use number `use` of a shared transformer, whose names are those of layer `first`. */
static void describe_shared(struct ctw_config *c, int64_t i, int64_t first, int64_t use,
                            struct zamba2 *m)
{
    char name[4][MAX_NAME];
    for (int j = 0; j < 3; j++) {
        (void)snprintf(name[j], MAX_NAME, "shared_transformer.self_attn.linear_%c_adapter_list.%d",
                       "qkv"[j], (int)use);
        m->attention.adapters[j] = m->adapts_attention ? name[j] : NULL;
    }
    (void)snprintf(name[3], MAX_NAME,
                   "shared_transformer.feed_forward.gate_up_proj_adapter_list.%d", (int)use);
    m->mlp.adapter = name[3];
    ctw_describe_named_as(c, first);
    ctw_describe_norm(c, i, ctw_norm_at(ATTENTION, CTW_AT_IN), &m->norm,
                      "shared_transformer.input_layernorm", m->attention.input);
    ctw_describe_norm(c, i, ctw_norm_at(FEED_FORWARD, CTW_AT_IN), &m->norm,
                      "shared_transformer.pre_ff_layernorm", 0);
    ctw_describe_attention(c, i, &m->attention);
    ctw_describe_mlp(c, i, &m->mlp);
    ctw_describe_named_as(c, -1);
    ctw_describe_projection(c, i, PROJECTION, "linear");
    ctw_describe_aside(c, i, ATTENTION, CTW_READS_BOTH, CTW_JOINS_ASIDE);
    ctw_describe_aside(c, i, FEED_FORWARD, CTW_READS_ASIDE, CTW_JOINS_ASIDE);
    ctw_describe_aside(c, i, PROJECTION, CTW_READS_ASIDE, CTW_JOINS_STREAM_ASIDE);
    ctw_describe_aside(c, i, MAMBA, CTW_READS_ASIDE, CTW_JOINS_STREAM);
}

static void describe_layers(struct ctw_config *c, int64_t n, struct zamba2 *m)
{
    int64_t uses = 0, first[CTW_MAX_DECODERS];
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        const bool hybrid = m->hybrid[i];
        if (hybrid) {
            first[uses] = uses < m->n_blocks ? i : first[uses - m->n_blocks];
            describe_shared(c, i, first[uses], uses, m);
            uses++;
        }
        m->mamba.branch = hybrid ? MAMBA : CTW_MIXER;
        m->mamba.module = hybrid ? "mamba_decoder.mamba" : "mamba";
        ctw_describe_norm(c, i, ctw_norm_at(m->mamba.branch, CTW_AT_IN), &m->norm,
                          hybrid ? "mamba_decoder.input_layernorm" : "input_layernorm", 0);
        ctw_describe_state_space(c, i, &m->mamba);
    }
}

static void describe(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 32000, .hidden = 2560, .n_layers = 54, .n_head = 32, .max_length = 4096},
        &(struct ctw_size_keys){.inner = ""});
    s.inner = ctw_key_int(c, "intermediate_size", 4 * s.hidden, 4 * s.hidden, 1, 1 << 20);
    struct zamba2 m = {.n_blocks = ssm_key(c, "num_mem_blocks", 1, CTW_MAX_DECODERS),
                       .norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5)};
    key_layers(c, s.n_layers, m.hybrid);
    key_mamba(c, s.hidden, &m);
    key_attention(c, &s, &m);
    if (ctw_key_bool(c, "add_bias_linear", false))
        ctw_key_fail(c, "add_bias_linear", CTW_EUNSUP, "true is not supported");
    if (ctw_key_bool(c, "use_long_context", false))
        ctw_key_fail(c, "use_long_context", CTW_EUNSUP,
                     "true is not supported: versions of transformers disagree about its RoPE");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .final_norm = "model.final_layernorm", .norm = m.norm, .tied = true});
    ctw_describe_beside_embedding(c);
    if (ctw_key_bool(c, "use_mem_rope", false))
        m.attention.rope = ctw_describe_rope(
            c, &(struct ctw_rope_rules){.head = m.attention.head, .theta = 10000.0});
    describe_layers(c, s.n_layers, &m);
}

const struct ctw_family ctw_family_zamba2 = {
    .model_type = "zamba2", .architecture = "Zamba2ForCausalLM", .describe = describe};
