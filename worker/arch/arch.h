/*
 * A model family as data: which tensors a layer has, their shapes in terms of the configuration,
 * and the switches that differ. New family = one file with a `const struct ctw_arch` and one line
 * in registry.c.
 */
#ifndef CTW_WORKER_ARCH_H
#define CTW_WORKER_ARCH_H

#include "worker/model.h"

/* Shapes, resolved against the configuration. */
enum ctw_dim { CTW_DIM_HIDDEN, CTW_DIM_Q, CTW_DIM_KV, CTW_DIM_HEAD, CTW_DIM_INNER, CTW_DIM_VOCAB };

/* When a tensor is there. */
enum ctw_when { CTW_ALWAYS, CTW_IF_ATTENTION_BIAS, CTW_IF_MLP_BIAS };

struct ctw_matrix_row {
    enum ctw_matrix_role role;
    const char *name; /* module path; %d: layer number */
    enum ctw_dim n, k;
};

struct ctw_vector_row {
    enum ctw_vector_role role;
    const char *name; /* full tensor name; %d: layer number */
    enum ctw_dim n;
    enum ctw_when when;
};

/* Which config.json key decides a layer's sliding window. */
enum ctw_window_rule {
    CTW_WINDOW_NONE,
    CTW_WINDOW_ALL,         /* Mistral: sliding_window, if not null, in every layer */
    CTW_WINDOW_LAYER_TYPES  /* Qwen2, Qwen3: layer_types, or max_window_layers and use_sliding_window */
};

struct ctw_arch {
    const char *architecture; /* config.json's architectures[0] */
    const char *model_type;
    const struct ctw_matrix_row *matrices; /* of a decoder layer */
    int n_matrices;
    const struct ctw_vector_row *vectors;
    int n_vectors;
    const char *embed, *final_norm, *head; /* "model.embed_tokens", ... */
    enum ctw_rope_pairing pairing;
    enum ctw_window_rule window;
    float default_rope_theta; /* transformers' own default where the file has none */
    /* further defaults and accepted keys as the loader needs them */
};

/* NULL-terminated. */
extern const struct ctw_arch *const ctw_archs[];

#endif
