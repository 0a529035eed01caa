/* Mistral: Llama's layers, and one sliding window for all of them. Defaults: MistralConfig. */
#include <stddef.h>

#include "worker/arch/arch.h"

extern const struct ctw_arch ctw_arch_mistral;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(32000, 4096, 14336, 32, 32, 8, 131072),
    {"head_dim", CTW_KEY_INT, CTW_CONFIG_FIELD(head), 0, 0, 2, 1024},
    {"sliding_window", CTW_KEY_INT, CTW_CONFIG_FIELD(sliding_window), 4096, 0, 1, 1 << 30},
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};
static const struct ctw_vector_row vectors[] = {CTW_NORMS_LLAMA};

const struct ctw_arch ctw_arch_mistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .keys = keys,
    .n_keys = CTW_COUNT(keys),
    .layers = "model.layers",
    .matrices = matrices,
    .n_matrices = CTW_COUNT(matrices),
    .vectors = vectors,
    .n_vectors = CTW_COUNT(vectors),
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .pairing = CTW_ROPE_HALVES,
    .window = CTW_WINDOW_ALL,
    .rope_theta = 10000.0,
};
