/* Mixtral: Mistral's attention, and a mixture of experts in every layer. Defaults: MixtralConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32000,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const char *n_experts = ctw_key_either(c, "num_local_experts", "num_experts");
    const struct ctw_experts experts = {
        .n = ctw_key_int(c, n_experts, 8, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 2, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = s.inner,
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .module = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = {
            .module = "block_sparse_moe.gate", .score = CTW_SCORE_SOFTMAX, .normalised = true}};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 1000000.0}),
        .window = window};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_experts(c, i, &experts);
    }
}

static const struct ctw_renamed in_memory[] = {
    {"block_sparse_moe", "mlp"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_mixtral = {.model_type = "mixtral",
                                              .architecture = "MixtralForCausalLM",
                                              .in_memory = in_memory,
                                              .describe = describe};
