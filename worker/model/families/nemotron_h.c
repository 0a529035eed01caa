/*
 * Nemotron H and Nemotron 3: each layer is one branch, a Mamba 2 layer, attention without
 * positions, a plain MLP or a mixture of plain experts, which may work in a latent space. Defaults:
 * NemotronHConfig.
 */
#include <stdio.h>

#include "worker/model/families/state_space_keys.h"

/* The letters of hybrid_override_pattern. */
enum { MAMBA = 'M', ATTENTION = '*', MLP = '-', MIXTURE = 'E' };

struct nemotron_h {
    char letters[CTW_MAX_DECODERS + 1]; /* what each layer is */
    struct ctw_state_space_rules mamba;
    struct ctw_attention_rules attention;
    struct ctw_mlp mlp, shared;
    struct ctw_experts experts;
};

static char letter_of(struct ctw_config *c, const struct ctw_json_node *node)
{
    static const struct {
        const char *name;
        char letter;
    } names[] = {{"mamba", MAMBA},
                 {"linear_attention", MAMBA},
                 {"attention", ATTENTION},
                 {"full_attention", ATTENTION},
                 {"mlp", MLP},
                 {"moe", MIXTURE}};
    const char *text = "";
    c->status = ctw_json_as_string(node, &text, &c->err);
    for (size_t i = 0; c->status == CTW_OK && i < CTW_COUNT(names); i++)
        if (strcmp(text, names[i].name) == 0)
            return names[i].letter;
    if (c->status == CTW_OK)
        c->status =
            ctw_json_fail(node, &c->err, CTW_EUNSUP,
                          "\"%s\" is not supported; supported: mamba, attention, mlp, moe", text);
    return MLP;
}

static void key_types(struct ctw_config *c, const char *name, char *letters)
{
    int64_t n = ctw_json_count(ctw_json_get(c->text, name)), i = 0;
    const struct ctw_json_node *node = ctw_key_list(c, name, n);
    if (c->status == CTW_OK && (n < 1 || n > CTW_MAX_DECODERS))
        ctw_key_fail(c, name, CTW_EFORMAT, "expected 1 to %d layers", CTW_MAX_DECODERS);
    for (; node != NULL && c->status == CTW_OK; node = ctw_json_next(node))
        letters[i++] = letter_of(c, node);
}

/* What each layer is. The list wins, as in transformers, over the letters, and either over
 * num_hidden_layers. */
static void key_layers(struct ctw_config *c, char *letters)
{
    static const char pattern[] = "hybrid_override_pattern";
    const char *types = ctw_key_either(c, "layers_block_type", "layer_types");
    if (ctw_key_is_given(c, types)) {
        key_types(c, types, letters);
        return;
    }
    const char *text = ctw_key_string(c, pattern, "ME*-");
    size_t n = strlen(text);
    if (n < 1 || n > CTW_MAX_DECODERS || strspn(text, "M*-E") != n)
        ctw_key_fail(c, pattern, CTW_EFORMAT, "expected 1 to %d letters, of M, *, - and E",
                     CTW_MAX_DECODERS);
    else
        (void)snprintf(letters, CTW_MAX_DECODERS + 1, "%s", text);
}

static int64_t key_either(struct ctw_config *c, const char *name, const char *older, int64_t absent,
                          int64_t most)
{
    return ssm_key(c, ctw_key_either(c, name, older), absent, most);
}

static void key_mamba(struct ctw_config *c, struct ctw_state_space_rules *r)
{
    const char *conv_bias = ctw_key_either(c, "use_conv_bias", "mamba_conv_bias");
    const char *least = ctw_key_either(c, "time_step_min", "mamba_dt_min");
    r->module = "mixer";
    r->is = (struct ctw_state_space){
        .n_head = ssm_key(c, "mamba_num_heads", 128, 1 << 16),
        .head = ssm_key(c, "mamba_head_dim", 64, 1 << 16),
        .n_groups = key_either(c, "n_groups", "mamba_n_groups", 8, 1 << 16),
        .n_state = ssm_key(c, "ssm_state_size", 128, CTW_MAX_STATE),
        .taps = (int)key_either(c, "conv_kernel", "mamba_d_conv", 4, CTW_MAX_TAPS),
        /* The class does not read time_step_limit. */
        .dt_min = (float)ctw_key_number(c, least, 0.001, CTW_NULL_REFUSED, 0, 1e9),
        .dt_max = INFINITY};
    r->is.norm_groups = r->is.n_groups;
    r->bias = r->out_bias = ctw_key_bool(c, "use_bias", false);
    r->conv_bias = ctw_key_bool(c, conv_bias, true);
    ssm_key_activation(c, "mamba_hidden_act");
}

static void key_mlps(struct ctw_config *c, int64_t inner, struct nemotron_h *m)
{
    const enum ctw_activation act = ctw_key_activation(c, "mlp_hidden_act", CTW_ACT_RELU2);
    const bool bias = ctw_key_bool(c, "mlp_bias", false);
    m->mlp = (struct ctw_mlp){.inner = inner,
                              .act = act,
                              .plain = true,
                              .bias = bias,
                              .up = "mixer.up_proj",
                              .down = "mixer.down_proj"};
    if (strchr(m->letters, MIXTURE) == NULL)
        return;
    m->shared = m->mlp;
    m->shared.inner = ssm_key(c, "moe_shared_expert_intermediate_size", 7688, 1 << 24);
    m->shared.up = "mixer.shared_experts.up_proj";
    m->shared.down = "mixer.shared_experts.down_proj";
    m->experts = (struct ctw_experts){
        .n = key_either(c, "n_routed_experts", "num_local_experts", 8, CTW_MAX_EXPERTS),
        .chosen = ssm_key(c, "num_experts_per_tok", 2, CTW_MAX_CHOSEN),
        .inner = ssm_key(c, "moe_intermediate_size", 7688, 1 << 24),
        .act = act,
        .plain = true,
        .module = "mixer.experts",
        .latent = ctw_key_int(c, "moe_latent_size", 0, 0, 1, 1 << 18),
        .latent_in = "mixer.fc1_latent_proj",
        .latent_out = "mixer.fc2_latent_proj",
        .latent_bias = bias,
        .shared = &m->shared,
        .router = {.module = "mixer.gate",
                   .correction = "mixer.gate.e_score_correction_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .n_groups = ssm_key(c, "n_group", 1, CTW_MAX_EXPERTS),
                   .kept_groups = ssm_key(c, "topk_group", 1, CTW_MAX_EXPERTS),
                   .group_best = 2,
                   .normalised = ctw_key_bool(c, "norm_topk_prob", true),
                   .sum_add = 1e-20,
                   .scale =
                       ctw_key_number(c, "routed_scaling_factor", 1, CTW_NULL_REFUSED, 1e-6, 1e6)}};
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct nemotron_h *m,
                           const struct ctw_norm_form *norm)
{
    const char letter = m->letters[i];
    bool mixes = letter == MAMBA || letter == ATTENTION;
    ctw_describe_norm(c, i, mixes ? CTW_AT_MIXER : CTW_AT_MLP, norm, "norm", 0);
    if (letter == MAMBA)
        ctw_describe_state_space(c, i, &m->mamba);
    else if (letter == ATTENTION)
        ctw_describe_attention(c, i, &m->attention);
    else if (letter == MLP)
        ctw_describe_mlp(c, i, &m->mlp);
    else
        ctw_describe_experts(c, i, &m->experts);
}

static void describe(struct ctw_config *c)
{
    struct nemotron_h m = {.letters = ""};
    key_layers(c, m.letters);
    const struct ctw_sizes s =
        ctw_key_sizes_as(c,
                         &(struct ctw_sizes){.vocab = 131072,
                                             .hidden = 4096,
                                             .inner = 21504,
                                             .n_layers = (int64_t)strlen(m.letters),
                                             .n_head = 32,
                                             .n_kv = 8,
                                             .max_length = 4096},
                         &(struct ctw_size_keys){.n_layers = ""});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "layer_norm_epsilon", 1e-5);
    key_mamba(c, &m.mamba);
    m.mamba.norm = &norm;
    m.attention = (struct ctw_attention_rules){.head = ctw_key_head_dim(c, &s, 128, 0),
                                               .rope = -1,
                                               .q = "mixer.q_proj",
                                               .k = "mixer.k_proj",
                                               .v = "mixer.v_proj",
                                               .o = "mixer.o_proj"};
    key_mlps(c, s.inner, &m);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.embed = "model.embeddings",
                                                 .final_norm = "model.norm_f",
                                                 .norm = norm});
    for (int64_t i = 0; i < s.n_layers; i++)
        describe_layer(c, i, &m, &norm);
}

static const struct ctw_spelling spellings[] = {
    {"model.", "lm_head"}, {"backbone.", "lm_head"}, {NULL, NULL}};

const struct ctw_family ctw_family_nemotron_h = {.model_type = "nemotron_h",
                                                 .architecture = "NemotronHForCausalLM",
                                                 .spellings = spellings,
                                                 .describe = describe};
