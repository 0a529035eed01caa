/*
 * Ministral 3: Mistral's layers, with queries that grow with their position. Also the text model of
 * Mistral 3's wrapper. Defaults: Ministral3Config.
 */
#include "worker/model/families/ministral.h"

/* transformers' RoPE for a file without one. */
static const char absent_rope[] =
    "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
    "\"original_max_position_embeddings\": 16384, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
    "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}";

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 131072,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 34,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 262144});
    int64_t head = ctw_key_head_dim(c, &s, 128, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 0, 0, 1, 1 << 30);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0, .absent = absent_rope});
    ministral_query_factor(c, 16384);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .q_factors = true, .window = window});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_ministral3 = {
    .model_type = "ministral3", .architecture = "Ministral3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_mistral3_ministral3 = {
    .model_type = "mistral3",
    .architecture = "Mistral3ForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "ministral3", .tied = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
