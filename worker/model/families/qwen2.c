/* Qwen 2 and 2.5: biases on q, k and v always; windows by layer. Defaults: Qwen2Config. */
#include "worker/model/families/family.h"

extern const struct ctw_arch ctw_arch_qwen2;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(151936, 4096, 22016, 32, 32, 32, 32768),
    CTW_KEY_HEAD_DIM(0, 0), /* not a field of the class, but read if present */
    CTW_KEYS_LAYER_WINDOWS,
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};

static const struct ctw_vector_row vectors[] = {
    CTW_NORMS_LLAMA,
    CTW_BIASES_QKV(CTW_ALWAYS),
};

const struct ctw_arch ctw_arch_qwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    CTW_ARCH_AS_LLAMA,
    .window = CTW_WINDOW_FROM_LAYER,
};
