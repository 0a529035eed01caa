/*
 * Falcon H1: attention and Mamba 2 side by side on the same input, then a gated MLP, with factors
 * almost everywhere. Defaults: FalconH1Config.
 */
#include "worker/model/families/state_space_keys.h"

enum { ATTENTION = CTW_MIXER, MAMBA, FEED_FORWARD };

/* The factors of attention's input and keys, and of its output, become its own: of scores, and of
 * values. */
struct factors {
    double attention_in, attention_out, key, ssm_in, ssm_out, embed, head;
    double mlp[2], ssm[CTW_N_SSM_PARTS];
};

static double key_factor(struct ctw_config *c, const char *name)
{
    return ctw_key_number(c, name, 1, 1, -1e9, 1e9);
}

/* n factors; absent or null: ones. */
static void key_factors(struct ctw_config *c, const char *name, int n, double *out)
{
    for (int i = 0; i < n; i++)
        out[i] = 1;
    if (!ctw_key_is_given(c, name))
        return;
    const struct ctw_json_node *node = ctw_key_list(c, name, n);
    for (int i = 0; i < n && node != NULL && c->status == CTW_OK; i++, node = ctw_json_next(node)) {
        c->status = ctw_json_as_double(node, &out[i], &c->err);
        if (c->status == CTW_OK && out[i] == 0)
            c->status = ctw_json_fail(node, &c->err, CTW_EUNSUP, "a factor of 0 is not supported");
    }
}

static struct factors key_all_factors(struct ctw_config *c)
{
    if (c->status == CTW_OK && ctw_files_by_mlx(c))
        c->status = ctw_fail(&c->err, CTW_EUNSUP,
                             "%s: the convolutions of the files have MLX's shape: mlx-lm has "
                             "multiplied some of the factors into the weights, which is not "
                             "supported; give the model that the files were converted from",
                             c->file);
    struct factors f = {.attention_in = key_factor(c, "attention_in_multiplier"),
                        .attention_out = key_factor(c, "attention_out_multiplier"),
                        .key = key_factor(c, "key_multiplier"),
                        .ssm_in = key_factor(c, "ssm_in_multiplier"),
                        .ssm_out = key_factor(c, "ssm_out_multiplier"),
                        .embed = key_factor(c, "embedding_multiplier"),
                        .head = key_factor(c, "lm_head_multiplier")};
    key_factors(c, "mlp_multipliers", 2, f.mlp);
    key_factors(c, "ssm_multipliers", CTW_N_SSM_PARTS, f.ssm);
    return f;
}

static void key_mamba(struct ctw_config *c, int64_t hidden, const struct factors *f,
                      struct ctw_norm_form *norm, struct ctw_state_space_rules *r)
{
    double expand = ctw_key_number(c, "mamba_expand", 2, CTW_NULL_REFUSED, 1e-3, 1e3);
    int64_t all = (int64_t)(expand * (double)hidden);
    int64_t inner = ctw_key_int(c, "mamba_d_ssm", 1024, all, 1, 1 << 20);
    r->branch = MAMBA;
    r->module = "mamba";
    r->is.n_head = ssm_key(c, "mamba_n_heads", 128, 1 << 16);
    r->is.head = ssm_key_auto(c, "mamba_d_head", inner / r->is.n_head);
    r->is.n_groups = ssm_key(c, "mamba_n_groups", 1, 1 << 16);
    r->is.n_state = ssm_key(c, "mamba_d_state", 256, CTW_MAX_STATE);
    r->is.taps = (int)ssm_key(c, "mamba_d_conv", 4, CTW_MAX_TAPS);
    r->conv_bias = ctw_key_bool(c, "mamba_conv_bias", true);
    r->bias = ctw_key_bool(c, "mamba_proj_bias", false);
    r->out_bias = ctw_key_bool(c, "projectors_bias", false);
    bool before = ctw_key_bool(c, "mamba_norm_before_gate", true);
    if (ctw_key_bool(c, "mamba_rms_norm", false)) {
        r->norm = norm;
        r->is.norm_groups = r->is.n_groups;
        r->is.norm_first = before;
    }
    for (int i = 0; i < CTW_N_SSM_PARTS; i++)
        r->is.factor[i] = (float)(f->ssm_in * f->ssm[i]);
    ssm_key_limit(c, &r->is);
    if (c->status == CTW_OK && ctw_ssm_inner(&r->is) != inner)
        ctw_key_fail(c, "mamba_d_head", CTW_EFORMAT, "expected mamba_d_ssm / mamba_n_heads");
    if (r->bias && f->ssm_in != 1)
        ctw_key_fail(c, "mamba_proj_bias", CTW_EUNSUP, "not supported with ssm_in_multiplier");
}

/* silu(factor * g) * u, but for one factor, which the branch's factor has. */
static struct ctw_glu glu_of(double factor)
{
    if (factor == 1)
        return (struct ctw_glu){.kind = CTW_GLU_PLAIN};
    return (struct ctw_glu){.kind = CTW_GLU_SLOPED, .limit = INFINITY, .alpha = (float)factor};
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct factors *f,
                           const struct ctw_norm_form *norm,
                           const struct ctw_attention_rules *attention,
                           const struct ctw_state_space_rules *mamba, const struct ctw_mlp *mlp)
{
    ctw_describe_branch(c, i, MAMBA)->beside = true;
    ctw_describe_branch(c, i, MAMBA)->factor = (float)f->ssm_out;
    ctw_describe_branch(c, i, FEED_FORWARD)->factor =
        (float)(f->mlp[1] * (mlp->glu.kind == CTW_GLU_SLOPED ? f->mlp[0] : 1));
    ctw_describe_norm(c, i, ctw_norm_at(ATTENTION, CTW_AT_IN), norm, "input_layernorm", 0);
    ctw_describe_norm(c, i, ctw_norm_at(FEED_FORWARD, CTW_AT_IN), norm, "pre_ff_layernorm", 0);
    ctw_describe_attention(c, i, attention);
    ctw_describe_state_space(c, i, mamba);
    ctw_describe_mlp(c, i, mlp);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128000,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 8192});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct factors f = key_all_factors(c);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    struct ctw_state_space_rules mamba = {0};
    key_mamba(c, s.hidden, &f, &norm, &mamba);
    const enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    if (act != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "only silu is supported in Mamba layers");
    if (bias && (f.attention_in != 1 || f.attention_out != 1 || f.key != 1))
        ctw_key_fail(c, "attention_bias", CTW_EUNSUP, "not supported with multipliers");
    const struct ctw_mlp mlp = {.branch = FEED_FORWARD,
                                .inner = s.inner,
                                .act = act,
                                .bias = ctw_key_bool(c, "mlp_bias", false),
                                .glu = glu_of(f.mlp[0]),
                                .gate = "feed_forward.gate_proj",
                                .up = "feed_forward.up_proj",
                                .down = "feed_forward.down_proj"};
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.final_norm = "model.final_layernorm",
                                                 .norm = norm,
                                                 .embed_scale = f.embed,
                                                 .head_scale = f.head});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0}),
        .scale = f.attention_in * f.attention_in * f.key / sqrt((double)head),
        .v_factor = f.attention_in * f.attention_out,
        .qkv_bias = bias,
        .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers; i++)
        describe_layer(c, i, &f, &norm, &attention, &mamba, &mlp);
}

const struct ctw_family ctw_family_falcon_h1 = {
    .model_type = "falcon_h1", .architecture = "FalconH1ForCausalLM", .describe = describe};
