/*
 * Mistral: Llama's layers, and one sliding window for all layers. Defaults: MistralConfig.
 * transformers' AutoConfig loads a file with layer_types as Ministral, whose layers differ only in
 * whether layer_types gives them the window.
 */
#include "worker/model/families/family.h"

extern const struct ctw_arch ctw_arch_mistral;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(32000, 4096, 14336, 32, 32, 8, 131072),
    CTW_KEY_HEAD_DIM(0, 0),
    {"sliding_window", CTW_KEY_INT, CTW_CONFIG_FIELD(sliding_window), 4096, 0, 1, 1 << 30},
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};
static const struct ctw_vector_row vectors[] = {CTW_NORMS_LLAMA};

const struct ctw_arch ctw_arch_mistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    CTW_ARCH_AS_LLAMA,
    .window = CTW_WINDOW_ALL,
};
