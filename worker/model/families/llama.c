/*
 * Llama 1 to 3, and the many models stored as Llama. IQuest Coder, which is the same class under
 * another model_type; its Loop models, which run their layers twice, are not. Defaults:
 * LlamaConfig, IQuestCoderConfig.
 */
#include "worker/model/families/family.h"

static void describe_with(struct ctw_config *c, const struct ctw_sizes *absent, int64_t absent_head,
                          double absent_eps)
{
    const struct ctw_sizes s = ctw_key_sizes(c, absent);
    int64_t head = ctw_key_head_dim(c, &s, absent_head, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    bool mlp_bias = ctw_key_bool(c, "mlp_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", absent_eps);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act, .bias = mlp_bias});
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c,
                  &(struct ctw_sizes){.vocab = 32000,
                                      .hidden = 4096,
                                      .inner = 11008,
                                      .n_layers = 32,
                                      .n_head = 32,
                                      .n_kv = 0,
                                      .max_length = 2048},
                  0, 1e-6);
}

/* What the makers' class could do, and transformers' refuses. */
static void describe_iquest(struct ctw_config *c)
{
    if (ctw_key_is_given(c, "clip_qkv"))
        ctw_key_fail(c, "clip_qkv", CTW_EUNSUP, "a number is not supported, as in transformers");
    if (ctw_key_is_true(c, "use_sliding_window"))
        ctw_key_fail(c, "use_sliding_window", CTW_EUNSUP,
                     "true is not supported, as in transformers");
    describe_with(c,
                  &(struct ctw_sizes){.vocab = 76800,
                                      .hidden = 5120,
                                      .inner = 27648,
                                      .n_layers = 80,
                                      .n_head = 40,
                                      .n_kv = 8,
                                      .max_length = 131072},
                  128, 1e-5);
}

const struct ctw_family ctw_family_llama = {.model_type = "llama",
                                            .architecture = "LlamaForCausalLM",
                                            .old_architecture = "LLaMAForCausalLM",
                                            .describe = describe};

const struct ctw_family ctw_family_iquestcoder = {.model_type = "iquestcoder",
                                                  .architecture = "IQuestCoderForCausalLM",
                                                  /* that of the class in transformers 5 */
                                                  .old_architecture = "LlamaForCausalLM",
                                                  .describe = describe_iquest};
