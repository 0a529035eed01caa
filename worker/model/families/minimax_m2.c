/*
 * MiniMax M2: one norm over all heads of q, another over all heads of k, RoPE on a part of each
 * head, a mixture in all layers. Defaults: MiniMaxM2Config.
 */
#include "worker/model/families/family.h"

/* Files of the makers have rotary_dim in place of a share. */
static int describe_rope(struct ctw_config *c, int64_t head)
{
    int64_t rotated = ctw_key_int(c, "rotary_dim", 0, 0, 2, head);
    double partial = rotated != 0 ? (double)rotated / (double)head : 1;
    return ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                         .theta = 5000000.0,
                                                         .partial_key = "partial_rotary_factor",
                                                         .partial = partial});
}

static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner)
{
    const char *n = ctw_key_either(c, "num_local_experts", "num_experts");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 256, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 8, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = inner,
        .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
        .module = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = {.module = "block_sparse_moe.gate",
                   .correction = "block_sparse_moe.e_score_correction_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true}};
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 200064,
                                                                    .hidden = 3072,
                                                                    .inner = 1536,
                                                                    .n_layers = 62,
                                                                    .n_head = 48,
                                                                    .n_kv = 8,
                                                                    .max_length = 196608});
    int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_WIDE};
    const struct ctw_experts experts = key_experts(c, s.inner);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = describe_rope(c, head);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i, &(struct ctw_attention_rules){.head = head, .rope = rope, .norms = &qk_norms});
        ctw_describe_experts(c, i, &experts);
    }
}

static const struct ctw_renamed in_memory[] = {
    {"block_sparse_moe", "mlp"},
    {NULL, NULL},
};

const struct ctw_family ctw_family_minimax_m2 = {.model_type = "minimax_m2",
                                                 .architecture = "MiniMaxM2ForCausalLM",
                                                 .in_memory = in_memory,
                                                 .describe = describe};
