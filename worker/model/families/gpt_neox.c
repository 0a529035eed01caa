/*
 * GPT-NeoX and Pythia: layer norms, mixer and MLP side by side, one projection whose rows are each
 * head's query, key and value, RoPE on a part of each head. Defaults: GPTNeoXConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    static const char *const masks[] = {".attention.bias", ".attention.masked_bias", NULL};
    const struct ctw_sizes s = ctw_key_sizes_as(c,
                                                &(struct ctw_sizes){.vocab = 50432,
                                                                    .hidden = 6144,
                                                                    .inner = 24576,
                                                                    .n_layers = 44,
                                                                    .n_head = 64,
                                                                    .max_length = 2048},
                                                &(struct ctw_size_keys){.n_kv = ""});
    int64_t head = ctw_key_same_head(c, &s);
    bool bias = ctw_key_bool(c, "attention_bias", true);
    bool parallel = ctw_key_bool(c, "use_parallel_residual", true);
    const struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_GELU);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "gpt_neox.layers",
                                                 .embed = "gpt_neox.embed_in",
                                                 .final_norm = "gpt_neox.final_layer_norm",
                                                 .norm = norm});
    ctw_describe_buffers(c, masks);
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                             .theta = 10000.0,
                                                             .theta_key = "rotary_emb_base",
                                                             .partial_key = "rotary_pct",
                                                             .partial = 0.25});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MLP)->beside = parallel;
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .order = CTW_QKV_BY_HEAD,
                                                             .qkv = "attention.query_key_value",
                                                             .o = "attention.dense",
                                                             .qkv_bias = bias,
                                                             .o_bias = bias});
        ctw_describe_mlp(c, i,
                         &(struct ctw_mlp){.inner = s.inner,
                                           .act = act,
                                           .plain = true,
                                           .bias = true,
                                           .up = "mlp.dense_h_to_4h",
                                           .down = "mlp.dense_4h_to_h"});
    }
}

/* Files call the head embed_out, transformers lm_head. */
static const struct ctw_spelling spellings[] = {
    {"gpt_neox.", "embed_out"}, {"gpt_neox.", "lm_head"}, {0}};

const struct ctw_family ctw_family_gpt_neox = {.model_type = "gpt_neox",
                                               .architecture = "GPTNeoXForCausalLM",
                                               .prefix = "gpt_neox.",
                                               .spellings = spellings,
                                               .describe = describe};
