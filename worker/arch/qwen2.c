/* Qwen 2 and 2.5: biases on q, k and v always; windows by layer. Defaults: Qwen2Config. */
#include <stddef.h>

#include "worker/arch/arch.h"

extern const struct ctw_arch ctw_arch_qwen2;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(151936, 4096, 22016, 32, 32, 32, 32768),
    {"head_dim", CTW_KEY_INT, CTW_CONFIG_FIELD(head), 0, 0, 2,
     1024}, /* not its own, but used if there */
    CTW_KEYS_LAYER_WINDOWS,
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};

static const struct ctw_vector_row vectors[] = {
    CTW_NORMS_LLAMA,
    {CTW_V_Q_BIAS, "self_attn.q_proj.bias", CTW_DIM_Q, CTW_ALWAYS},
    {CTW_V_K_BIAS, "self_attn.k_proj.bias", CTW_DIM_KV, CTW_ALWAYS},
    {CTW_V_V_BIAS, "self_attn.v_proj.bias", CTW_DIM_KV, CTW_ALWAYS},
};

const struct ctw_arch ctw_arch_qwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
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
    .window = CTW_WINDOW_LAYER_TYPES,
    .rope_theta = 10000.0,
};
