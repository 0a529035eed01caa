/* Llama 1 to 3, and the many models stored as Llama. Defaults: transformers' LlamaConfig. */
#include "worker/model/families/family.h"

extern const struct ctw_arch ctw_arch_llama;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(32000, 4096, 11008, 32, 32, 0, 2048),
    CTW_KEY_HEAD_DIM(0, 0),
    CTW_KEY_ATTENTION_BIAS,
    {"mlp_bias", CTW_KEY_BOOL, CTW_CONFIG_FIELD(mlp_bias), false, CTW_NULL_REFUSED, 0, 0},
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};

static const struct ctw_vector_row vectors[] = {
    CTW_NORMS_LLAMA,
    CTW_BIASES_QKV(CTW_IF_ATTENTION_BIAS),
    CTW_BIAS_O(CTW_IF_ATTENTION_BIAS),
    {CTW_V_GATE_BIAS, "mlp.gate_proj.bias", CTW_DIM_INNER, CTW_IF_MLP_BIAS},
    {CTW_V_UP_BIAS, "mlp.up_proj.bias", CTW_DIM_INNER, CTW_IF_MLP_BIAS},
    {CTW_V_DOWN_BIAS, "mlp.down_proj.bias", CTW_DIM_HIDDEN, CTW_IF_MLP_BIAS},
};

const struct ctw_arch ctw_arch_llama = {
    .architecture = "LlamaForCausalLM",
    .old_architecture = "LLaMAForCausalLM",
    .model_type = "llama",
    CTW_ARCH_AS_LLAMA,
    .window = CTW_WINDOW_NONE,
};
