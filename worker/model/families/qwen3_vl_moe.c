/*
 * The text model of Qwen 3 VL's mixtures: Qwen 3's layers without windows. The makers' files store
 * a stack of experts as [n, inputs, outputs], files of transformers 5 as [n, outputs, inputs].
 * Defaults: Qwen3VLMoeTextConfig.
 */
#include "worker/checkpoint/container/container.h"
#include "worker/model/families/qwen.h"

/* Has the first stack of this name n inputs as its last dimension? */
static bool ends_in_inputs(const struct ctw_config *c, const char *name, int64_t n)
{
    const struct ctw_tensor *t = ctw_files_find(c, name);
    return t != NULL && t->n_dims == 3 && t->shape[2] == n;
}

static struct ctw_experts key_experts(struct ctw_config *c, int64_t hidden, enum ctw_activation act)
{
    struct ctw_experts experts = qwen_experts(c, act, &(struct qwen_absent){60, 4, 1408, false});
    experts.stacked = experts.fused = true;
    /* One of the two is not square. */
    experts.transposed = !(ends_in_inputs(c, ".experts.gate_up_proj", hidden) &&
                           ends_in_inputs(c, ".experts.down_proj", experts.inner));
    experts.router.normalised = true; /* whatever norm_topk_prob says, as in the class */
    return experts;
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 2048,
                                                                    .inner = 5632,
                                                                    .n_layers = 24,
                                                                    .n_head = 16,
                                                                    .n_kv = 16,
                                                                    .max_length = 128000});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_mlp dense = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    const struct ctw_experts experts = key_experts(c, s.hidden, dense.act);
    bool sparse[CTW_MAX_DECODERS];
    qwen_sparse_layers(c, s.n_layers, experts.n, sparse);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const struct ctw_qk_norms head_norms = {.form = norm};
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 500000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .norms = &head_norms});
        if (sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &dense);
    }
}

const struct ctw_family ctw_family_qwen3_vl_moe = {.model_type = "qwen3_vl_moe",
                                                   .architecture =
                                                       "Qwen3VLMoeForConditionalGeneration",
                                                   .wrapper = &(const struct ctw_wrapper){0},
                                                   .spellings = ctw_wrapped_spellings,
                                                   .describe = describe};
