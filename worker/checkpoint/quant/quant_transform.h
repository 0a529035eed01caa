/*
 * quantization_config's transform_config: matrices that compressed-tensors applies to activations
 * while a model runs. Those that are fused into the weights are checked and left out.
 */
#ifndef CTW_WORKER_QUANT_TRANSFORM_H
#define CTW_WORKER_QUANT_TRANSFORM_H

#include "worker/checkpoint/quant/match.h"

enum ctw_transform_type {
    CTW_TRANSFORM_HADAMARD, /* Sylvester's */
    CTW_TRANSFORM_RANDOM_HADAMARD,
    CTW_TRANSFORM_RANDOM_MATRIX
};

enum ctw_transform_place {
    CTW_TRANSFORM_INPUT, /* of a module */
    CTW_TRANSFORM_OUTPUT,
    CTW_TRANSFORM_QUERIES, /* of an attention module, after RoPE */
    CTW_TRANSFORM_KEYS
};

/* Where a transform is applied. */
struct ctw_transform_use {
    enum ctw_transform_place place;
    const char *location; /* its name in the file, also of tensors: "input" */
    bool inverse;
    struct ctw_patterns targets, ignore;
};

struct ctw_transform {
    const char *name;
    enum ctw_transform_type type;
    bool permuted;    /* `randomize`: rows and columns alike, by a stored permutation */
    int64_t head_dim; /* size of the matrix; 0: the width of the activations */
    struct ctw_transform_use *uses;
    int64_t n_uses;
};

/* node: NULL, null, or the object. The caller closes *out, also after a failure. */
enum ctw_status ctw_transforms_read(struct ctw_transform **out, int64_t *n,
                                    const struct ctw_json_node *node,
                                    struct ctw_err *err) CTW_MUST_CHECK;
void ctw_transforms_close(struct ctw_transform *transforms, int64_t n);

#endif
