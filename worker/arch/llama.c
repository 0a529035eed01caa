/* Llama 1 to 3, and the many that are stored as one. Defaults: transformers' LlamaConfig. */
#include <stddef.h>

#include "worker/arch/arch.h"

extern const struct ctw_arch ctw_arch_llama;

static const struct ctw_key keys[] = {
    CTW_KEYS_DIMS(32000, 4096, 11008, 32, 32, 0, 2048),
    {"head_dim", CTW_KEY_INT, CTW_CONFIG_FIELD(head), 0, 0, 2, 1024},
    {"attention_bias", CTW_KEY_BOOL, CTW_CONFIG_FIELD(attention_bias), false, CTW_NULL_REFUSED, 0,
     0},
    {"mlp_bias", CTW_KEY_BOOL, CTW_CONFIG_FIELD(mlp_bias), false, CTW_NULL_REFUSED, 0, 0},
};

static const struct ctw_matrix_row matrices[] = {CTW_MATRICES_LLAMA};

static const struct ctw_vector_row vectors[] = {
    CTW_NORMS_LLAMA,
    {CTW_V_Q_BIAS, "self_attn.q_proj.bias", CTW_DIM_Q, CTW_IF_ATTENTION_BIAS},
    {CTW_V_K_BIAS, "self_attn.k_proj.bias", CTW_DIM_KV, CTW_IF_ATTENTION_BIAS},
    {CTW_V_V_BIAS, "self_attn.v_proj.bias", CTW_DIM_KV, CTW_IF_ATTENTION_BIAS},
    {CTW_V_O_BIAS, "self_attn.o_proj.bias", CTW_DIM_HIDDEN, CTW_IF_ATTENTION_BIAS},
    {CTW_V_GATE_BIAS, "mlp.gate_proj.bias", CTW_DIM_INNER, CTW_IF_MLP_BIAS},
    {CTW_V_UP_BIAS, "mlp.up_proj.bias", CTW_DIM_INNER, CTW_IF_MLP_BIAS},
    {CTW_V_DOWN_BIAS, "mlp.down_proj.bias", CTW_DIM_HIDDEN, CTW_IF_MLP_BIAS},
};

const struct ctw_arch ctw_arch_llama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
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
    .window = CTW_WINDOW_NONE,
    .rope_theta = 10000.0,
};
