/*
 * A.X K1: DeepSeek V3's layers, with a norm of the mixtures' output. Norms that a file has for
 * dense layers are not used. The router's correction may be missing. Defaults: AXK1Config.
 */
#include "worker/model/families/latent_keys.h"

/* mlp_layer_types, or what older files have instead. */
static void key_sparse(struct ctw_config *c, int64_t n, bool sparse[CTW_MAX_DECODERS])
{
    const bool *listed = ctw_key_layers_called(c, "mlp_layer_types", n, "sparse", "dense");
    const int64_t dense = ctw_key_int(c, "first_k_dense_replace", 1, CTW_NULL_REFUSED, 0, 1 << 20);
    const int64_t every = ctw_key_int(c, "moe_layer_freq", 1, CTW_NULL_REFUSED, 1, 1 << 20);
    for (int64_t i = 0; i < n; i++)
        sparse[i] = listed != NULL ? listed[i] : i >= dense && i % every == 0;
}

static void describe(struct ctw_config *c)
{
    static const char after[] = "post_mlp_layernorm";
    struct latent_absent absent = latent_deepseek_v3();
    absent.n = 192;
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 163840,
                                                                    .hidden = 7168,
                                                                    .inner = 18432,
                                                                    .n_layers = 61,
                                                                    .n_head = 64,
                                                                    .n_kv = 64,
                                                                    .max_length = 32768});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    if (attention.q_rank == 0)
        ctw_key_fail(c, "q_lora_rank", CTW_EUNSUP, "expected a number: queries have a latent");
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_mlp shared;
    struct ctw_experts experts = latent_mixture(c, &absent, mlp.act, &shared);
    latent_groups(c, &absent, &experts);
    latent_sigmoid(c, &experts);
    if (ctw_files_find(c, ".e_score_correction_bias") == NULL)
        experts.router.correction = NULL;
    bool sparse[CTW_MAX_DECODERS];
    key_sparse(c, s.n_layers, sparse);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    latent_rope(c, &attention, &absent);
    for (int64_t i = 0; i < s.n_layers; i++) {
        latent_layer(c, i, &norm, &attention, &mlp, sparse[i] ? &experts : NULL);
        if (sparse[i])
            ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &norm, after, 0);
        else
            ctw_describe_unused(c, i, after);
    }
}

static const struct ctw_renamed in_memory[] = {{"post_mlp_layernorm", "mlp.post_mlp_layernorm"},
                                               {NULL, NULL}};

const struct ctw_family ctw_family_axk1 = {.model_type = "axk1",
                                           .architecture = "AXK1ForCausalLM",
                                           .in_memory = in_memory,
                                           .describe = describe};
