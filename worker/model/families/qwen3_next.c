/*
 * Qwen 3 Next, and Qwen 3.5 and later, dense and with mixtures: gated delta rules, and attention
 * with gates in some layers; norms that multiply by 1 + weight. Defaults: Qwen3NextConfig,
 * Qwen3_5TextConfig, Qwen3_5MoeTextConfig.
 */
#include <string.h>

#include "kernels/conv.h"
#include "kernels/delta.h"
#include "worker/model/families/qwen.h"
#include "worker/model/recipe/delta_rule.h"

struct keys {
    struct ctw_sizes s;
    int64_t head;
    bool bias;
    const bool *linear; /* which layers have delta rules; NULL: all but every fourth */
    int64_t interval;
    struct ctw_norm_form norm, heads_norm; /* heads_norm: of the delta rule's output */
    struct ctw_delta_rule delta;
};

static int key_count(struct ctw_config *c, const char *name, int64_t absent, int64_t most)
{
    return (int)ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, most);
}

/* Qwen 3.8 has the key, which transformers' class does not read; "swish" is SiLU. */
static enum ctw_activation key_gate(struct ctw_config *c)
{
    static const char name[] = "output_gate_type";
    if (!ctw_key_is_given(c, name))
        return CTW_ACT_SILU;
    const char *type = ctw_key_string(c, name, "silu");
    if (strcmp(type, "sigmoid") == 0)
        return CTW_ACT_SIGMOID;
    if (strcmp(type, "swish") != 0 && strcmp(type, "silu") != 0)
        ctw_key_fail(c, name, CTW_EUNSUP,
                     "\"%s\" is not supported; supported: swish, silu, sigmoid", type);
    return CTW_ACT_SILU;
}

static struct ctw_delta_rule key_delta(struct ctw_config *c, bool by_head)
{
    /* GGUF files of Qwen 3 Next have q, k, v and z in Qwen 3.5's order. */
    const bool apart = ctw_files_find(c, ".linear_attn.in_proj_qkv.") != NULL;
    struct ctw_delta_rule d = {
        .by_head = by_head && !apart, .ba_by_head = by_head, .gate = key_gate(c)};
    d.n_key = key_count(c, "linear_num_key_heads", 16, 4096);
    d.n_value = key_count(c, "linear_num_value_heads", 32, 4096);
    d.key = key_count(c, "linear_key_head_dim", 128, CTW_MAX_DELTA_HEAD);
    d.value = key_count(c, "linear_value_head_dim", 128, CTW_MAX_DELTA_HEAD);
    d.taps = key_count(c, "linear_conv_kernel_dim", 4, CTW_MAX_TAPS);
    if (d.n_value % d.n_key != 0)
        ctw_key_fail(c, "linear_num_value_heads", CTW_EFORMAT,
                     "found %d, expected a multiple of linear_num_key_heads = %d", d.n_value,
                     d.n_key);
    return d;
}

static struct keys read_keys(struct ctw_config *c, const struct ctw_sizes *absent, bool by_head)
{
    static const struct ctw_size_keys no_inner = {.inner = ""};
    static const struct ctw_size_keys all;
    struct keys k = {.s = ctw_key_sizes_as(c, absent, absent->inner == 0 ? &no_inner : &all)};
    k.head = ctw_key_head_dim(c, &k.s, 256, CTW_NULL_REFUSED);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.interval = ctw_key_int(c, "full_attention_interval", 4, CTW_NULL_REFUSED, 1, 1 << 20);
    k.linear =
        ctw_key_layers_called(c, "layer_types", k.s.n_layers, "linear_attention", "full_attention");
    k.norm = k.heads_norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    k.norm.offset = ctw_files_by_mlx(c) ? 0 : 1; /* mlx-lm adds the 1 to the weights */
    k.delta = key_delta(c, by_head);
    if (ctw_key_activation(c, "hidden_act", CTW_ACT_SILU) != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "delta rules have silu alone");
    return k;
}

static void describe_mixers(struct ctw_config *c, const struct keys *k)
{
    const struct ctw_qk_norms qk_norms = {.form = k->norm};
    ctw_describe_model(c, &k->s, &(struct ctw_model_rules){.norm = k->norm});
    const struct ctw_attention_rules attention = {
        .n_head = k->s.n_head,
        .n_kv = k->s.n_kv,
        .head = k->head,
        .rope =
            ctw_describe_rope(c, &(struct ctw_rope_rules){.head = k->head,
                                                          .theta = 10000.0,
                                                          .partial_key = "partial_rotary_factor",
                                                          .partial = 0.25}),
        .qkv_bias = k->bias,
        .o_bias = k->bias,
        .norms = &qk_norms,
        .gate = CTW_GATE_SIGMOID,
        .gate_in_q = true};
    for (int64_t i = 0; i < k->s.n_layers; i++) {
        ctw_describe_norms(c, i, &k->norm);
        if (k->linear != NULL ? k->linear[i] : (i + 1) % k->interval != 0)
            ctw_describe_delta_rule(c, i, &k->delta, &k->heads_norm);
        else
            ctw_describe_attention(c, i, &attention);
    }
}

static struct ctw_experts key_experts(struct ctw_config *c, struct ctw_mlp *shared, int64_t n,
                                      int64_t chosen)
{
    *shared = (struct ctw_mlp){.inner = ctw_key_int(c, "shared_expert_intermediate_size", 512,
                                                    CTW_NULL_REFUSED, 1, CTW_MAX_DIM),
                               .act = CTW_ACT_SILU,
                               .gate = "mlp.shared_expert.gate_proj",
                               .up = "mlp.shared_expert.up_proj",
                               .down = "mlp.shared_expert.down_proj"};
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_experts", n, CTW_NULL_REFUSED, 0, CTW_MAX_EXPERTS),
        .chosen =
            ctw_key_int(c, "num_experts_per_tok", chosen, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 512, CTW_NULL_REFUSED, 1, CTW_MAX_DIM),
        .act = CTW_ACT_SILU,
        .router = {.score = CTW_SCORE_SOFTMAX, .normalised = true},
        .shared = shared,
        .shared_gate = "mlp.shared_expert_gate"};
}

static void describe_next(struct ctw_config *c)
{
    const struct keys k = read_keys(c,
                                    &(struct ctw_sizes){.vocab = 151936,
                                                        .hidden = 2048,
                                                        .inner = 5632,
                                                        .n_layers = 48,
                                                        .n_head = 16,
                                                        .n_kv = 2,
                                                        .max_length = 32768},
                                    true);
    bool sparse[CTW_MAX_DECODERS];
    struct ctw_mlp shared;
    struct ctw_experts experts = key_experts(c, &shared, 512, 10);
    experts.router.normalised = ctw_key_bool(c, "norm_topk_prob", true);
    qwen_sparse_layers(c, k.s.n_layers, experts.n, sparse);
    describe_mixers(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        if (sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = k.s.inner, .act = CTW_ACT_SILU});
}

static void describe_dense(struct ctw_config *c)
{
    const struct keys k = read_keys(c,
                                    &(struct ctw_sizes){.vocab = 248320,
                                                        .hidden = 4096,
                                                        .inner = 12288,
                                                        .n_layers = 32,
                                                        .n_head = 16,
                                                        .n_kv = 4,
                                                        .max_length = 32768},
                                    false);
    describe_mixers(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = k.s.inner, .act = CTW_ACT_SILU});
}

static void describe_moe(struct ctw_config *c)
{
    const struct keys k = read_keys(c,
                                    &(struct ctw_sizes){.vocab = 248320,
                                                        .hidden = 2048,
                                                        .n_layers = 40,
                                                        .n_head = 16,
                                                        .n_kv = 2,
                                                        .max_length = 32768},
                                    false);
    struct ctw_mlp shared;
    struct ctw_experts experts = key_experts(c, &shared, 256, 8);
    experts.stacked = experts.fused = true;
    describe_mixers(c, &k);
    for (int64_t i = 0; i < k.s.n_layers; i++)
        ctw_describe_experts(c, i, &experts);
}

const struct ctw_family ctw_family_qwen3_next = {
    .model_type = "qwen3_next", .architecture = "Qwen3NextForCausalLM", .describe = describe_next};

const struct ctw_family ctw_family_qwen3_5_text = {.model_type = "qwen3_5_text",
                                                   .architecture = "Qwen3_5ForCausalLM",
                                                   .old_architecture =
                                                       "Qwen3_5ForConditionalGeneration",
                                                   .spellings = ctw_wrapped_spellings,
                                                   .describe = describe_dense};

const struct ctw_family ctw_family_qwen3_5 = {.model_type = "qwen3_5",
                                              .architecture = "Qwen3_5ForConditionalGeneration",
                                              .wrapper = &(const struct ctw_wrapper){0},
                                              .spellings = ctw_wrapped_spellings,
                                              .describe = describe_dense};

const struct ctw_family ctw_family_qwen3_5_moe_text = {.model_type = "qwen3_5_moe_text",
                                                       .architecture = "Qwen3_5MoeForCausalLM",
                                                       .old_architecture =
                                                           "Qwen3_5MoeForConditionalGeneration",
                                                       .spellings = ctw_wrapped_spellings,
                                                       .describe = describe_moe};

const struct ctw_family ctw_family_qwen3_5_moe = {.model_type = "qwen3_5_moe",
                                                  .architecture =
                                                      "Qwen3_5MoeForConditionalGeneration",
                                                  .wrapper = &(const struct ctw_wrapper){0},
                                                  .spellings = ctw_wrapped_spellings,
                                                  .describe = describe_moe};
