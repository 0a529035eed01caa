#include "kernels/dtype.h"

const char *ctw_dtype_name(enum ctw_dtype dtype)
{
    static const char *const names[CTW_N_DTYPES] = {
        [CTW_F32] = "F32",         [CTW_BF16] = "BF16",       [CTW_F16] = "F16",
        [CTW_F64] = "F64",         [CTW_F8_E4M3] = "F8_E4M3", [CTW_F8_E5M2] = "F8_E5M2",
        [CTW_F8_E8M0] = "F8_E8M0", [CTW_I8] = "I8",           [CTW_U8] = "U8",
        [CTW_I16] = "I16",         [CTW_U16] = "U16",         [CTW_I32] = "I32",
        [CTW_U32] = "U32",         [CTW_I64] = "I64",         [CTW_U64] = "U64",
        [CTW_BOOL] = "BOOL",
    };
    return (unsigned)dtype < CTW_N_DTYPES ? names[dtype] : "unknown";
}

const char *ctw_dtype_long_name(enum ctw_dtype dtype)
{
    return dtype == CTW_BF16 ? "bfloat16" : dtype == CTW_F16 ? "float16" : "float32";
}
