/* Rotations of activations: their definition and arguments. See kernels/operations.h. */
#ifndef CTW_KERNELS_ROTATION_H
#define CTW_KERNELS_ROTATION_H

#include <stdbool.h>

#include "kernels/dtype.h"

/*
 * A row is blocks of `size` elements, each multiplied by the same matrix M: y[o] = factor * sum
 * over i of x[i] * M[i][o]. M is `matrix`, or Hadamard's of a power of two (Sylvester's): -1 to the
 * number of bits that i and o share, times signs[i], or, with signs_last, signs[o].
 */
struct ctw_rotation {
    int64_t size;
    const float *matrix; /* device [size, size]; NULL: Hadamard's */
    const float *signs;  /* device [size], with Hadamard's; NULL: ones */
    bool signs_last;
    float factor;
};

enum { CTW_MAX_HADAMARD = 16384 };

/* y[t] = x[rows[t]] (NULL: x[t]), rotated: in fp32, rounded once. */
struct ctw_op_rotate {
    const struct ctw_rotation *how; /* host; `size` divides dim */
    enum ctw_dtype dtype;
    int64_t n_tok, dim;
    const void *x; /* device [.., ldx] */
    int64_t ldx;
    const int32_t *rows; /* device [n_tok], or NULL */
    void *y;             /* device [n_tok, ldy], must not overlap x */
    int64_t ldy;
};

/* Is this a rotation of rows of dim elements? */
static inline bool ctw_rotation_ok(const struct ctw_rotation *r, int64_t dim)
{
    bool power = r->size > 0 && (r->size & (r->size - 1)) == 0;
    return r->size >= 1 && dim % r->size == 0 &&
           (r->matrix != NULL ? r->signs == NULL : power && r->size <= CTW_MAX_HADAMARD);
}

#endif
