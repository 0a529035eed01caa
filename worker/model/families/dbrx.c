/*
 * DBRX: layer norms without biases, one projection for q, k and v, which are clamped, and a mixture
 * in every layer, whose experts' rows lie one after another in three matrices. Defaults:
 * DbrxConfig, DbrxAttentionConfig and DbrxFFNConfig.
 */
#include "worker/model/families/family.h"

enum { NO = CTW_NULL_REFUSED };

static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){.vocab = 32000,
                            .hidden = 2048,
                            .n_layers = 24,
                            .n_head = 16,
                            .n_kv = 1,
                            .max_length = 2048},
        &(struct ctw_size_keys){.hidden = ctw_key_either(c, "d_model", "hidden_size"),
                                .inner = "",
                                .n_layers = ctw_key_either(c, "n_layers", "num_hidden_layers"),
                                .n_head = ctw_key_either(c, "n_heads", "num_attention_heads"),
                                .n_kv = "attn_config.kv_n_heads",
                                .max_length =
                                    ctw_key_either(c, "max_seq_len", "max_position_embeddings")});
    s.inner = ctw_key_int(c, "ffn_config.ffn_hidden_size", 3584, NO, 1, 1 << 20);
    return s;
}

/* mlx-lm's files have a module for each expert. */
static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner)
{
    static const char order[] = "ffn_config.moe_normalize_expert_weights";
    const double norm = ctw_key_number(c, order, 1, 0, 0, 1e9);
    if (norm != 0 && norm != 1)
        ctw_key_fail(c, order, CTW_EUNSUP, "expected 1, the sum of the weights, or null");
    const bool apart = ctw_files_find(c, ".ffn.experts.0.w1.") != NULL;
    return (struct ctw_experts){
        .n = ctw_key_int(c, "ffn_config.moe_num_experts", 4, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "ffn_config.moe_top_k", 1, NO, 1, CTW_MAX_CHOSEN),
        .inner = inner,
        .act = ctw_key_activation(c, "ffn_config.ffn_act_fn.name", CTW_ACT_SILU),
        .stacked = !apart,
        .flat = !apart,
        .module = apart ? "ffn.experts" : "ffn.experts.mlp",
        .gate = "w1",
        .up = "v1",
        .down = "w2",
        .router = {
            .module = "ffn.router.layer", .score = CTW_SCORE_SOFTMAX, .normalised = norm == 1}};
}

/*
 * The model's own code and transformers 4 read theta from attn_config, transformers 5 only where
 * other models have it: without such a key it computes with 10000, whatever attn_config says.
 */
static int describe_rope(struct ctw_config *c, int64_t head)
{
    static const char key[] = "attn_config.rope_theta";
    const double theta = ctw_key_number(c, key, 10000, NO, 1, 1e12);
    const int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = theta});
    if (c->status == CTW_OK && ctw_key_is_given(c, key) && c->rope[0].theta != theta)
        ctw_key_fail(c, key, CTW_EFORMAT,
                     "found %g, but rope_theta is %g outside of attn_config: remove the value "
                     "that the model was not trained with",
                     theta, c->rope[0].theta);
    return rope;
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = key_sizes(c);
    const int64_t head = ctw_key_same_head(c, &s);
    const struct ctw_norm_form norm = {.kind = CTW_NORM_LAYER, .eps = 1e-5};
    const double limit = ctw_key_number(c, "attn_config.clip_qkv", 0, 0, 0, 1e9);
    const struct ctw_experts experts = key_experts(c, s.inner);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.blocks",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.norm_f",
                                                 .norm = norm});
    const struct ctw_attention_rules attention = {.head = head,
                                                  .rope = describe_rope(c, head),
                                                  .limit = limit,
                                                  .order = CTW_QKV_IN_ORDER,
                                                  .qkv = "norm_attn_norm.attn.Wqkv",
                                                  .o = "norm_attn_norm.attn.out_proj"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "norm_attn_norm.norm_1", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "norm_attn_norm.norm_2", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_dbrx = {
    .model_type = "dbrx", .architecture = "DbrxForCausalLM", .describe = describe};
