/* The names of activation dtypes as --dtype, config.json and `info` spell them. */
#ifndef CTW_WORKER_DTYPE_NAME_H
#define CTW_WORKER_DTYPE_NAME_H

#include "kernels/dtype.h"

/* "bfloat16", "float16", "float32". */
static inline const char *ctw_dtype_long_name(enum ctw_dtype dtype)
{
    return dtype == CTW_BF16 ? "bfloat16" : dtype == CTW_F16 ? "float16" : "float32";
}

#endif
