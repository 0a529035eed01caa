/*
 * gpt-oss: attention with sinks, windows in every other layer, and in all layers a mixture with
 * biases whose gate and up are clamped and joined in a way of its own. Defaults: GptOssConfig.
 */
#include "worker/model/families/family.h"

/* transformers' RoPE for a file without one, but for theta, which may be at the top level. */
static const char absent_rope[] =
    "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
    "\"truncate\": false, \"original_max_position_embeddings\": 4096}";

static struct ctw_experts key_experts(struct ctw_config *c, int64_t inner)
{
    const char *n = ctw_key_either(c, "num_local_experts", "num_experts");
    double alpha = ctw_key_number(c, "swiglu_alpha", 1.702, CTW_NULL_REFUSED, 1e-6, 1e6);
    double limit = ctw_key_number(c, "swiglu_limit", 7, CTW_NULL_REFUSED, 1e-6, 1e6);
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 128, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 4, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = inner,
        .glu = {.kind = CTW_GLU_OFFSET, .limit = (float)limit, .alpha = (float)alpha},
        .bias = true,
        .stacked = true,
        .transposed = ctw_files_find(c, ".experts.gate_up_proj_blocks") == NULL, /* MXFP4 is not */
        .fused = true,
        .interleaved = true,
        .router = {.module = "mlp.router", .bias = true, .score = CTW_SCORE_SOFTMAX_CHOSEN}};
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 201088,
                                                                    .hidden = 2880,
                                                                    .inner = 2880,
                                                                    .n_layers = 36,
                                                                    .n_head = 64,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 64, 0);
    bool bias = ctw_key_bool(c, "attention_bias", true);
    int64_t window = ctw_key_int(c, "sliding_window", 128, 0, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = 2});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_experts experts = key_experts(c, s.inner);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = 150000.0, .absent = absent_rope});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .window = windows[i],
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .sinks = "self_attn.sinks"});
        ctw_describe_experts(c, i, &experts);
    }
}

const struct ctw_family ctw_family_gpt_oss = {
    .model_type = "gpt_oss", .architecture = "GptOssForCausalLM", .describe = describe};
