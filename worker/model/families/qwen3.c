/* Qwen 3 (dense): norms on the heads of q and k, an independent head_dim. Defaults: Qwen3Config. */
#include "worker/model/families/family.h"

extern const struct ctw_arch ctw_arch_qwen3;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(151936, 4096, 22016, 32, 32, 32, 32768),
    CTW_KEY_HEAD_DIM(128, CTW_NULL_REFUSED),
    CTW_KEY_ATTENTION_BIAS,
    CTW_KEYS_LAYER_WINDOWS,
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};

static const struct ctw_vector_row vectors[] = {
    CTW_NORMS_LLAMA,
    {CTW_V_Q_NORM, "self_attn.q_norm.weight", CTW_DIM_HEAD, CTW_ALWAYS},
    {CTW_V_K_NORM, "self_attn.k_norm.weight", CTW_DIM_HEAD, CTW_ALWAYS},
    CTW_BIASES_QKV(CTW_IF_ATTENTION_BIAS),
    CTW_BIAS_O(CTW_IF_ATTENTION_BIAS),
};

const struct ctw_arch ctw_arch_qwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    CTW_ARCH_AS_LLAMA,
    .window = CTW_WINDOW_FROM_LAYER,
};
