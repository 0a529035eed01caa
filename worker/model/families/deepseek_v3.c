/* DeepSeek V3 and R1, and Kimi K2, which is the same class under another model_type: latent
 * attention, grouped sigmoid routing. Defaults: DeepseekV3Config. Also Kimi K2.5's text model. */
#include "worker/model/families/latent_keys.h"

static void describe(struct ctw_config *c)
{
    const struct latent_absent absent = latent_deepseek_v3();
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 129280,
                                                                    .hidden = 7168,
                                                                    .inner = 18432,
                                                                    .n_layers = 61,
                                                                    .n_head = 128,
                                                                    .n_kv = 128,
                                                                    .max_length = 4096});
    latent_describe_v3(c, &s, &absent, 3, 1);
}

const struct ctw_family ctw_family_deepseek_v3 = {
    .model_type = "deepseek_v3", .architecture = "DeepseekV3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_kimi_k2 = {
    .model_type = "kimi_k2", .architecture = "DeepseekV3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_kimi_k25 = {.model_type = "kimi_k25",
                                               .architecture = "KimiK25ForConditionalGeneration",
                                               /* that of the class in transformers 5 */
                                               .old_architecture =
                                                   "Kimi_K25ForConditionalGeneration",
                                               .wrapper = &(const struct ctw_wrapper){.tied = true},
                                               .spellings = ctw_wrapped_spellings,
                                               .describe = describe};
