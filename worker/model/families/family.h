/*
 * A model family as data: config.json's keys with transformers' own defaults, the tensors of a
 * layer with their shapes in terms of the configuration, and the switches that differ between
 * families. A new family is one file with a `const struct ctw_arch` and one line in families.c.
 */
#ifndef CTW_WORKER_FAMILY_H
#define CTW_WORKER_FAMILY_H

#include <stddef.h>

#include "worker/model/config.h"
#include "worker/model/model.h"

/*
 * ---- keys of config.json ----
 *
 * One row per key that transformers' class for the family reads and that can change a score. A key
 * without a row is not read and `inspect` lists it (except for the keys that config.c, rope.c and
 * quant_config.c read for all families). So a missing row can make scores wrong: read the class's
 * configuration_*.py and modeling_*.py.
 */

enum ctw_key_type {
    CTW_KEY_INT,   /* int64_t */
    CTW_KEY_FLOAT, /* double, finite, within min..max */
    CTW_KEY_BOOL,
    CTW_KEY_ACT /* enum ctw_activation, under transformers' names */
};

/* What null means, if it does not mean the default. */
enum { CTW_NULL_REFUSED = -1 };

struct ctw_key {
    const char *name;
    enum ctw_key_type type;
    size_t field;    /* offset in struct ctw_config */
    double absent;   /* the default */
    double null;     /* the value for null; CTW_NULL_REFUSED: an error, as in transformers */
    double min, max; /* the accepted range, inclusive; not for bools */
};

#define CTW_CONFIG_FIELD(member) offsetof(struct ctw_config, member)

/*
 * Rows that all families so far share except for the defaults. n_kv 0: as many as query heads;
 * head 0: hidden / n_head.
 */
#define CTW_KEYS_DIMS(vocab_, hidden_, inner_, layers_, heads_, kv_, max_length_)                  \
    {"vocab_size", CTW_KEY_INT, CTW_CONFIG_FIELD(vocab), vocab_, CTW_NULL_REFUSED, 1, 1 << 24},    \
        {"hidden_size", CTW_KEY_INT, CTW_CONFIG_FIELD(hidden), hidden_, CTW_NULL_REFUSED, 1,       \
         1 << 18},                                                                                 \
        {"intermediate_size",                                                                      \
         CTW_KEY_INT,                                                                              \
         CTW_CONFIG_FIELD(inner),                                                                  \
         inner_,                                                                                   \
         CTW_NULL_REFUSED,                                                                         \
         1,                                                                                        \
         1 << 20},                                                                                 \
        {"num_hidden_layers",                                                                      \
         CTW_KEY_INT,                                                                              \
         CTW_CONFIG_FIELD(n_decoders),                                                             \
         layers_,                                                                                  \
         CTW_NULL_REFUSED,                                                                         \
         1,                                                                                        \
         4096},                                                                                    \
        {"num_attention_heads",                                                                    \
         CTW_KEY_INT,                                                                              \
         CTW_CONFIG_FIELD(n_head),                                                                 \
         heads_,                                                                                   \
         CTW_NULL_REFUSED,                                                                         \
         1,                                                                                        \
         4096},                                                                                    \
        {"num_key_value_heads", CTW_KEY_INT, CTW_CONFIG_FIELD(n_kv), kv_, 0, 1, 4096},             \
        {"max_position_embeddings",                                                                \
         CTW_KEY_INT,                                                                              \
         CTW_CONFIG_FIELD(max_length),                                                             \
         max_length_,                                                                              \
         CTW_NULL_REFUSED,                                                                         \
         1,                                                                                        \
         1 << 30},                                                                                 \
        {"hidden_act", CTW_KEY_ACT, CTW_CONFIG_FIELD(act), CTW_ACT_SILU, CTW_NULL_REFUSED, 0, 0},  \
        {"rms_norm_eps", CTW_KEY_FLOAT, CTW_CONFIG_FIELD(norm_eps), 1e-6, CTW_NULL_REFUSED, 0, 1}, \
    {                                                                                              \
        "tie_word_embeddings", CTW_KEY_BOOL, CTW_CONFIG_FIELD(tied), false, CTW_NULL_REFUSED, 0, 0 \
    }

/* config.c checks the range, as it does if the head size follows from hidden_size. */
#define CTW_KEY_HEAD_DIM(absent_, null_)                                                           \
    {                                                                                              \
        "head_dim", CTW_KEY_INT, CTW_CONFIG_FIELD(head), absent_, null_, 1, 1 << 18                \
    }
#define CTW_KEY_ATTENTION_BIAS                                                                     \
    {                                                                                              \
        "attention_bias", CTW_KEY_BOOL, CTW_CONFIG_FIELD(attention_bias), false, CTW_NULL_REFUSED, \
            0, 0                                                                                   \
    }

/*
 * Qwen's window keys. Unless use_sliding_window is true, sliding_window may be anything, since the
 * class ignores it.
 */
#define CTW_KEYS_LAYER_WINDOWS                                                                     \
    {"use_sliding_window",                                                                         \
     CTW_KEY_BOOL,                                                                                 \
     CTW_CONFIG_FIELD(use_sliding_window),                                                         \
     false,                                                                                        \
     CTW_NULL_REFUSED,                                                                             \
     0,                                                                                            \
     0},                                                                                           \
        {"sliding_window", CTW_KEY_INT, CTW_CONFIG_FIELD(sliding_window), 4096, 0,                 \
         -(1 << 30),       1 << 30},                                                               \
    {                                                                                              \
        "max_window_layers", CTW_KEY_INT, CTW_CONFIG_FIELD(max_window_layers), 28,                 \
            CTW_NULL_REFUSED, 0, 1 << 20                                                           \
    }

/* ---- tensors ---- */

/* Dimensions, resolved against the configuration. */
enum ctw_dim { CTW_DIM_HIDDEN, CTW_DIM_Q, CTW_DIM_KV, CTW_DIM_HEAD, CTW_DIM_INNER };

/* The condition for a tensor to be present. */
enum ctw_when { CTW_ALWAYS, CTW_IF_ATTENTION_BIAS, CTW_IF_MLP_BIAS };

struct ctw_matrix_row {
    enum ctw_matrix_role role;
    const char *name; /* module path in a decoder layer: "self_attn.q_proj" */
    enum ctw_dim n, k;
};

struct ctw_vector_row {
    enum ctw_vector_role role;
    const char *name; /* tensor name in a decoder layer: "self_attn.q_proj.bias" */
    enum ctw_dim n;
    enum ctw_when when;
};

/* The matrices of a layer that has separate q, k, v and gate, up projections. */
#define CTW_MATRICES_LLAMA                                                                         \
    {CTW_M_Q, "self_attn.q_proj", CTW_DIM_Q, CTW_DIM_HIDDEN},                                      \
        {CTW_M_K, "self_attn.k_proj", CTW_DIM_KV, CTW_DIM_HIDDEN},                                 \
        {CTW_M_V, "self_attn.v_proj", CTW_DIM_KV, CTW_DIM_HIDDEN},                                 \
        {CTW_M_O, "self_attn.o_proj", CTW_DIM_HIDDEN, CTW_DIM_Q},                                  \
        {CTW_M_GATE, "mlp.gate_proj", CTW_DIM_INNER, CTW_DIM_HIDDEN},                              \
        {CTW_M_UP, "mlp.up_proj", CTW_DIM_INNER, CTW_DIM_HIDDEN},                                  \
    {                                                                                              \
        CTW_M_DOWN, "mlp.down_proj", CTW_DIM_HIDDEN, CTW_DIM_INNER                                 \
    }

#define CTW_NORMS_LLAMA                                                                            \
    {CTW_V_ATTN_NORM, "input_layernorm.weight", CTW_DIM_HIDDEN, CTW_ALWAYS},                       \
    {                                                                                              \
        CTW_V_MLP_NORM, "post_attention_layernorm.weight", CTW_DIM_HIDDEN, CTW_ALWAYS              \
    }

#define CTW_BIASES_QKV(when_)                                                                      \
    {CTW_V_Q_BIAS, "self_attn.q_proj.bias", CTW_DIM_Q, when_},                                     \
        {CTW_V_K_BIAS, "self_attn.k_proj.bias", CTW_DIM_KV, when_},                                \
    {                                                                                              \
        CTW_V_V_BIAS, "self_attn.v_proj.bias", CTW_DIM_KV, when_                                   \
    }
#define CTW_BIAS_O(when_)                                                                          \
    {                                                                                              \
        CTW_V_O_BIAS, "self_attn.o_proj.bias", CTW_DIM_HIDDEN, when_                               \
    }

/* ---- the family ---- */

/* How config.json decides a layer's sliding window. */
enum ctw_window_rule {
    CTW_WINDOW_NONE,
    /* sliding_window, if not null, in the layers that layer_types names. Without layer_types: */
    CTW_WINDOW_ALL,       /* Mistral: in every layer */
    CTW_WINDOW_FROM_LAYER /* Qwen: if use_sliding_window, from layer max_window_layers on */
};

struct ctw_arch {
    const char *architecture;     /* config.json's architectures[0] */
    const char *old_architecture; /* an older spelling; NULL: none */
    const char *model_type;
    const struct ctw_key *keys;
    int n_keys;
    const char *layers;                    /* "model.layers": prefix of ".0." and a row's name */
    const struct ctw_matrix_row *matrices; /* of a decoder layer */
    int n_matrices;
    const struct ctw_vector_row *vectors;
    int n_vectors;
    const char *embed, *final_norm, *head; /* modules: "model.embed_tokens", ... */
    enum ctw_rope_pairing pairing;
    enum ctw_window_rule window;
    double rope_theta; /* if config.json has none */
};

/*
 * For a family with Llama's module names and RoPE pairing, whose tables are keys[], matrices[] and
 * vectors[] of its file.
 */
#define CTW_ARCH_AS_LLAMA                                                                          \
    .keys = keys, .n_keys = CTW_COUNT(keys), .layers = "model.layers", .matrices = matrices,       \
    .n_matrices = CTW_COUNT(matrices), .vectors = vectors, .n_vectors = CTW_COUNT(vectors),        \
    .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",                  \
    .pairing = CTW_ROPE_HALVES, .rope_theta = 10000.0

/* NULL-terminated. */
extern const struct ctw_arch *const ctw_archs[];

#endif
