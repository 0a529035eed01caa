/* Arcee: Llama's attention, a plain MLP with the square of relu. Defaults: ArceeConfig. */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32000,
                                                                    .hidden = 2560,
                                                                    .inner = 18432,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 4096});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_RELU2),
                                .plain = true,
                                .bias = ctw_key_bool(c, "mlp_bias", false)};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_arcee = {
    .model_type = "arcee", .architecture = "ArceeForCausalLM", .describe = describe};
