/* A learned bias of attention's scores by distance. Part of operations.h. */
#ifndef CTW_KERNELS_RELATIVE_H
#define CTW_KERNELS_RELATIVE_H

#include <stdint.h>

#include "kernels/dtype.h"

enum { CTW_MAX_RELATIVE = 64 }; /* elements of a head's state */

/*
 * A learned bias by distance: for d = i - j below `extent`, the bias of the query at position i and
 * the key at position j is factor[i] * (state . proj[.., d]), in fp32; from `extent` on 0.
 */
struct ctw_relative {
    int rank; /* elements of a query head's state, at most CTW_MAX_RELATIVE; 0: there is no bias */
    int64_t extent;
    const void *states; /* device [rows of q, ld] of the op's dtype: head h's are the columns from h
                           * rank on */
    int64_t ld;
    const void *proj; /* device [rank, extent] of proj_dtype */
    enum ctw_dtype proj_dtype;
    const float *factor; /* device [max position + 1], or NULL: ones */
};

#endif
