/*
 * ERNIE 4.5's mixtures: its dense models' layers, with experts in some of them. A bias corrects the
 * choice among softmax scores. Defaults: Ernie4_5_MoeConfig.
 */
#include "worker/model/families/family.h"

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act)
{
    enum { NO = CTW_NULL_REFUSED };
    const char *n = ctw_key_either(c, "moe_num_experts", "num_experts");
    const char *chosen = ctw_key_either(c, "moe_k", "num_experts_per_tok");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 64, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, chosen, 6, NO, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 1536, NO, 1, 1 << 24),
        .act = act,
        .router = {.correction = "mlp.moe_statics.e_score_correction_bias",
                   .correction_is_row = true,
                   .score = CTW_SCORE_SOFTMAX,
                   .normalised = true,
                   .sum_least = ctw_key_number(c, "moe_norm_min", 1e-12, NO, 0, 1e6)}};
}

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 103424,
                                                                    .hidden = 2560,
                                                                    .inner = 12288,
                                                                    .n_layers = 28,
                                                                    .n_head = 20,
                                                                    .n_kv = 4,
                                                                    .max_length = 131072});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_is_true(c, "use_bias");
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct ctw_experts experts = key_experts(c, act);
    int64_t n_shared = ctw_key_int(c, "moe_num_shared_experts", 2, NO, 0, 1024);
    int64_t first = ctw_key_int(c, "moe_layer_start_index", 1, NO, 0, 1 << 20);
    int64_t last = ctw_key_int(c, "moe_layer_end_index", -1, NO, -1, 1 << 20);
    int64_t every = ctw_key_int(c, "moe_layer_interval", 1, NO, 1, 1 << 20);
    const struct ctw_mlp shared = {.inner = n_shared * experts.inner,
                                   .act = act,
                                   .bias = bias,
                                   .gate = "mlp.shared_experts.gate_proj",
                                   .up = "mlp.shared_experts.up_proj",
                                   .down = "mlp.shared_experts.down_proj"};
    experts.shared = n_shared > 0 ? &shared : NULL;
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.norm = norm, .tied = true, .head_bias = bias});
    int rope = ctw_describe_rope(
        c,
        &(struct ctw_rope_rules){.head = head, .pairing = CTW_ROPE_INTERLEAVED, .theta = 500000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        bool inside = i >= first && (last == -1 || i <= last);
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        if (inside && (i + 1) % every == 0)
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .bias = bias});
    }
}

static const struct ctw_renamed in_memory[] = {
    {"mlp.moe_statics", "mlp.gate.moe_statics"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_ernie4_5_moe = {.model_type = "ernie4_5_moe",
                                                   .architecture = "Ernie4_5_MoeForCausalLM",
                                                   .in_memory = in_memory,
                                                   .describe = describe};
