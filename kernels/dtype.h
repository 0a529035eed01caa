/*
 * Element types, and exact conversions between the 16-bit floats, FP8 codes and fp32.
 * Everything here is plain C that CUDA also compiles. Rounding is to nearest, ties to even;
 * subnormals are kept; NaN stays NaN.
 */
#ifndef CTW_KERNELS_DTYPE_H
#define CTW_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CTW_HD static inline __host__ __device__
#else
#define CTW_HD static inline
#endif

enum ctw_dtype {
    CTW_F32 = 0,
    CTW_BF16,
    CTW_F16,
    CTW_F64,
    CTW_F8_E4M3,
    CTW_F8_E5M2,
    CTW_F8_E8M0,
    CTW_I8,
    CTW_U8,
    CTW_I16,
    CTW_U16,
    CTW_I32,
    CTW_U32,
    CTW_I64,
    CTW_U64,
    CTW_BOOL,
    CTW_N_DTYPES
};

/* Bytes of one element. */
CTW_HD size_t ctw_dtype_bytes(enum ctw_dtype dtype)
{
    switch (dtype) {
    case CTW_F64:
    case CTW_I64:
    case CTW_U64:
        return 8;
    case CTW_F32:
    case CTW_I32:
    case CTW_U32:
        return 4;
    case CTW_BF16:
    case CTW_F16:
    case CTW_I16:
    case CTW_U16:
        return 2;
    default:
        return 1;
    }
}

CTW_HD float ctw_bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

CTW_HD uint32_t ctw_f32_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

CTW_HD float ctw_bf16_to_f32(uint16_t h)
{
    return ctw_bits_to_f32((uint32_t)h << 16);
}

CTW_HD uint16_t ctw_f32_to_bf16(float f)
{
    uint32_t u = ctw_f32_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

CTW_HD float ctw_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31)
        return ctw_bits_to_f32(sign | 0x7f800000u | (man << 13));
    if (exp != 0)
        return ctw_bits_to_f32(sign | ((exp + 112u) << 23) | (man << 13));
    float f = (float)man * 5.9604644775390625e-8f; /* man * 2^-24, exact */
    return sign != 0 ? -f : f;
}

CTW_HD uint16_t ctw_f32_to_f16(float f)
{
    uint32_t u = ctw_f32_to_bits(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 leaves round(f * 2^24) in the low
                              bits */
        uint32_t sum = ctw_f32_to_bits(ctw_bits_to_f32(u) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

/* E4M3FN: bias 7, no infinity, 0x7f and 0xff are NaN, largest 448, subnormals m * 2^-9. */
CTW_HD float ctw_e4m3_to_f32(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, exp = (c >> 3) & 15u, man = c & 7u;
    if (exp == 15 && man == 7)
        return ctw_bits_to_f32(sign | 0x7fc00000u);
    if (exp != 0)
        return ctw_bits_to_f32(sign | ((exp + 120u) << 23) | (man << 20));
    float f = (float)man * 0.001953125f;
    return sign != 0 ? -f : f;
}

/* Load and store one element of an F32, BF16 or F16 array: widened exactly / rounded once. */
CTW_HD float ctw_load_float(const void *p, enum ctw_dtype dtype, int64_t i)
{
    uint16_t h;
    float f;
    if (dtype == CTW_F32) {
        memcpy(&f, (const char *)p + 4 * i, sizeof(f));
        return f;
    }
    memcpy(&h, (const char *)p + 2 * i, sizeof(h));
    return dtype == CTW_BF16 ? ctw_bf16_to_f32(h) : ctw_f16_to_f32(h);
}

CTW_HD void ctw_store_float(void *p, enum ctw_dtype dtype, int64_t i, float f)
{
    if (dtype == CTW_F32) {
        memcpy((char *)p + 4 * i, &f, sizeof(f));
        return;
    }
    uint16_t h = dtype == CTW_BF16 ? ctw_f32_to_bf16(f) : ctw_f32_to_f16(f);
    memcpy((char *)p + 2 * i, &h, sizeof(h));
}

/* f rounded to dtype (F32, BF16 or F16) and widened again. */
CTW_HD float ctw_round_float(float f, enum ctw_dtype dtype)
{
    return dtype == CTW_F32    ? f
           : dtype == CTW_BF16 ? ctw_bf16_to_f32(ctw_f32_to_bf16(f))
                               : ctw_f16_to_f32(ctw_f32_to_f16(f));
}

#ifdef __cplusplus
extern "C" {
#endif
/* "F32", "BF16", ...: as files name them; never NULL. */
const char *ctw_dtype_name(enum ctw_dtype dtype);
/* "bfloat16", "float16", "float32": the spelling of --dtype, config.json and `info`. */
const char *ctw_dtype_long_name(enum ctw_dtype dtype);
#ifdef __cplusplus
}
#endif

#endif
