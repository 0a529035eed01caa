/*
 * Hunyuan 3: Qwen 3's attention, a dense first layer, then mixtures with a sigmoid router and a
 * shared expert. Defaults: HYV3Config.
 */
#include "worker/model/families/family.h"

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act)
{
    enum { NO = CTW_NULL_REFUSED };
    const char *n = ctw_key_either(c, "num_experts", "num_local_experts");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 192, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 8, NO, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 1536, NO, 1, 1 << 24),
        .act = act,
        .router = {.module = "mlp.router.gate",
                   .correction = "mlp.expert_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true,
                   .sum_add = 1e-20,
                   .scale = ctw_key_number(c, "router_scaling_factor", 2.826, NO, 1e-6, 1e6)}};
}

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 120832,
                                                                    .hidden = 4096,
                                                                    .inner = 13312,
                                                                    .n_layers = 80,
                                                                    .n_head = 64,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 128, NO);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    struct ctw_mlp dense = {.inner = s.inner,
                            .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                            .bias = ctw_key_bool(c, "mlp_bias", false)};
    struct ctw_experts experts = key_experts(c, dense.act);
    int64_t n_shared = ctw_key_int(c, "num_shared_experts", 1, NO, 0, 1024);
    const struct ctw_mlp shared = {.inner = n_shared * experts.inner,
                                   .act = dense.act,
                                   .bias = dense.bias,
                                   .gate = "mlp.shared_mlp.gate_proj",
                                   .up = "mlp.shared_mlp.up_proj",
                                   .down = "mlp.shared_mlp.down_proj"};
    experts.shared = n_shared > 0 ? &shared : NULL;
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 11158840.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias, .norms = &qk_norms});
        if (sparse != NULL ? sparse[i] : i > 0)
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &dense);
    }
}

static const struct ctw_renamed in_memory[] = {
    {"mlp.router.gate", "mlp.gate"},
    {"mlp.expert_bias", "mlp.e_score_correction_bias"},
    {"mlp.shared_mlp", "mlp.shared_experts"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_hy_v3 = {.model_type = "hy_v3",
                                            .architecture = "HYV3ForCausalLM",
                                            .in_memory = in_memory,
                                            .describe = describe};
