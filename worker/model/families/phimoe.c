/*
 * Phi-3.5-MoE and Phi-mini-MoE: layer norms, biases, a head with a bias, and in all layers a
 * mixture with a router of its own (sparsemixer), which chooses two experts. RoPE's long factors
 * are for sequences of more than the original length, as in the models' own code; transformers 5
 * has the short ones at every length. Defaults: PhimoeConfig.
 */
#include "worker/model/families/family.h"

static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner)
{
    enum { NO = CTW_NULL_REFUSED };
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_local_experts", 16, NO, 2, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 2, NO, 2, 2),
        .inner = inner,
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .module = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = {.module = "block_sparse_moe.gate",
                   .score = CTW_SCORE_SPARSEMIXER,
                   .jitter = ctw_key_number(c, "router_jitter_noise", 0.01, NO, 0, 1e6)}};
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32064,
                                                                    .hidden = 4096,
                                                                    .inner = 6400,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool head_bias = ctw_key_bool(c, "lm_head_bias", false);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_experts experts = key_experts(c, s.inner);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .head_bias = head_bias});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){
               .head = head, .theta = 1000000.0, .old_longrope = true, .mscales = true});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .window = window, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_experts(c, i, &experts);
    }
}

static const struct ctw_renamed in_memory[] = {
    {"block_sparse_moe.gate", "mlp.router"},
    {"block_sparse_moe", "mlp"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_phimoe = {.model_type = "phimoe",
                                             .architecture = "PhimoeForCausalLM",
                                             .old_architecture = "PhiMoEForCausalLM",
                                             .in_memory = in_memory,
                                             .describe = describe};
