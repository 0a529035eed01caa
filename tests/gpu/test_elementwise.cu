/*
 * Decoding on a GPU against the formats' reference decoders, bit by bit, and what the weights of a
 * product's slot are; the rates of decoding and of elementwise operations, compared with a device
 * copy.
 *
 * Built with the backend (target gpu_tests). test_elementwise rates [WORD]: instead of the checks,
 * the rates; with WORD, only those of decoding weights whose name contains the word, or of `streams`
 * or `recurrent`.
 */
#include "gpu_weights.h"

static struct ctw_cuda *cu;
static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

extern "C" ctw_cuda_ops_fn ctw_cuda_ops;

static void backend_open(void)
{
    struct ctw_backend_options opt = {};
    struct ctw_backend *be;
    opt.cuda_variant = getenv("CTW_TEST_CUDA_VARIANT");
    OK(ctw_cuda_ops()->open(&be, &opt, &last_err));
    cu = (struct ctw_cuda *)be;
    printf("%s, %s\n", cu->name, cu->numerics);
}

#include "elementwise_rates.h"

/* ---- decoding ----------------------------------------------------------------------------- */

/* clang-format off */
static const struct kind kinds[] = {
    /* name, format, bits, dtype, group, zeros, indexed, whole, misalign, n, k */
    {"bf16", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 37, 1536},
    {"fp16", DENSE, 16, CTW_F16, 0, NO_ZEROS, false, false, 0, 33, 1032},
    {"fp32", DENSE, 32, CTW_F32, 0, NO_ZEROS, false, false, 0, 35, 2056},
    {"bf16 odd k", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 31, 777},
    {"fp16 odd k, odd address", DENSE, 16, CTW_F16, 0, NO_ZEROS, false, false, 1, 9, 301},
    {"fp32 odd address", DENSE, 32, CTW_F32, 0, NO_ZEROS, false, false, 6, 19, 512},
    {"int4 g128", PACK, 4, CTW_BF16, 128, NO_ZEROS, false, false, 0, 66, 2048},
    {"int4 g128 fp16", PACK, 4, CTW_F16, 128, NO_ZEROS, false, false, 0, 33, 1152},
    {"int4 g32 packed zeros", PACK, 4, CTW_BF16, 32, PACKED_ZEROS, false, false, 0, 37, 1056},
    {"int4 g64 int8 zeros", PACK, 4, CTW_F16, 64, INT8_ZEROS, false, false, 0, 21, 1088},
    {"int4 channel packed zeros", PACK, 4, CTW_BF16, 0, PACKED_ZEROS, false, false, 0, 43, 2040},
    {"int4 tensor int8 zero", PACK, 4, CTW_BF16, -1, INT8_ZEROS, false, false, 0, 17, 264},
    {"int4 g12", PACK, 4, CTW_BF16, 12, PACKED_ZEROS, false, false, 0, 33, 1044},
    {"int4 fp32 scales", PACK, 4, CTW_F32, 0, PACKED_ZEROS, false, false, 0, 19, 45},
    {"int4 odd address", PACK, 4, CTW_BF16, 32, PACKED_ZEROS, false, false, 3, 19, 512},
    {"int4 activation order", PACK, 4, CTW_BF16, 128, PACKED_ZEROS, true, false, 0, 21, 1024},
    {"int8 channel", PACK, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 39, 2048},
    {"int8 g32 packed zeros fp16", PACK, 8, CTW_F16, 32, PACKED_ZEROS, false, false, 0, 37, 1056},
    {"int8 g128 int8 zeros", PACK, 8, CTW_BF16, 128, INT8_ZEROS, false, false, 0, 18, 1280},
    {"int8 k 301", PACK, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 7, 301},
    {"int1 g64", PACK, 1, CTW_BF16, 64, PACKED_ZEROS, false, false, 0, 40, 320},
    {"int2 g16", PACK, 2, CTW_F16, 16, PACKED_ZEROS, false, false, 0, 21, 528},
    {"int2 k 299", PACK, 2, CTW_BF16, 0, NO_ZEROS, false, false, 0, 5, 299},
    {"int3 g40", PACK, 3, CTW_F16, 40, PACKED_ZEROS, false, false, 0, 43, 1000},
    {"int3 g40 whole codes", PACK, 3, CTW_F16, 40, PACKED_ZEROS, false, true, 0, 43, 1000},
    {"int3 activation order", PACK, 3, CTW_F16, 40, NO_ZEROS, true, false, 0, 12, 400},
    {"int5 whole codes", PACK, 5, CTW_BF16, 0, NO_ZEROS, false, true, 2, 9, 333},
    {"int5 k 333", PACK, 5, CTW_BF16, 0, PACKED_ZEROS, false, false, 0, 41, 333},
    {"int6 g128", PACK, 6, CTW_BF16, 128, INT8_ZEROS, false, false, 0, 23, 1024},
    {"int7 g96", PACK, 7, CTW_F32, 96, PACKED_ZEROS, false, false, 1, 37, 960},
    {"int1 channel", PACK, 1, CTW_F16, 0, INT8_ZEROS, false, false, 0, 9, 1032},
    {"int2 channel", PACK, 2, CTW_BF16, 0, PACKED_ZEROS, false, false, 0, 35, 1096},
    {"int2 activation order", PACK, 2, CTW_BF16, 16, INT8_ZEROS, true, false, 0, 34, 2064},
    {"int3 g128", PACK, 3, CTW_BF16, 128, PACKED_ZEROS, false, false, 0, 70, 1152},
    {"int3 whole codes", PACK, 3, CTW_BF16, 0, INT8_ZEROS, false, true, 0, 34, 1096},
    {"int3 activation order, whole codes", PACK, 3, CTW_BF16, 40, PACKED_ZEROS, true, true, 0, 45, 2000},
    {"int4 activation order, odd address", PACK, 4, CTW_F16, 32, NO_ZEROS, true, false, 4, 33, 1056},
    {"int4 activation order, k 1044", PACK, 4, CTW_BF16, 12, PACKED_ZEROS, true, false, 0, 35, 1044},
    {"int4 activation order, int8 zeros", PACK, 4, CTW_BF16, 32, INT8_ZEROS, true, false, 0, 35, 4224},
    {"int4 by index, 576 groups, fp16", PACK, 4, CTW_F16, 32, PACKED_ZEROS, true, false, 0, 12, 18432},
    {"int8 by index, packed zeros, fp16", PACK, 8, CTW_F16, 64, PACKED_ZEROS, true, false, 0, 22, 2176},
    {"int1 by index, int8 zeros", PACK, 1, CTW_F16, 16, INT8_ZEROS, true, false, 0, 13, 528},
    {"int6 by index, packed zeros", PACK, 6, CTW_BF16, 64, PACKED_ZEROS, true, false, 0, 35, 1088},
    {"int7 by index, whole codes", PACK, 7, CTW_F16, 32, PACKED_ZEROS, true, true, 0, 21, 1056},
    {"int8 by index, int8 zeros", PACK, 8, CTW_BF16, 128, INT8_ZEROS, true, false, 0, 30, 4352},
    {"int4 by index, odd index", PACK, 4, CTW_BF16, 32, NO_ZEROS, true, false, -4, 35, 1056},
    {"int4 odd scales", PACK, 4, CTW_BF16, 32, NO_ZEROS, false, false, -1, 35, 1056},
    {"int4 blocks", PACK, 4, CTW_BF16, -128, NO_ZEROS, false, false, 0, 300, 1152},
    {"int4 ragged blocks, int8 zeros", PACK, 4, CTW_F16, -56, INT8_ZEROS, false, false, 0, 70, 1096},
    {"int3 blocks, whole codes", PACK, 3, CTW_BF16, -64, INT8_ZEROS, false, true, 0, 100, 1088},
    {"int4 blocks of 12", PACK, 4, CTW_BF16, -12, INT8_ZEROS, false, false, 1, 50, 333},
    {"int8 blocks, fp32 scales", PACK, 8, CTW_F32, -128, INT8_ZEROS, false, false, 0, 130, 260},
    {"int4 odd zeros", PACK, 4, CTW_BF16, 32, PACKED_ZEROS, false, false, -2, 35, 1056},
    /* The fewest columns of which unit * per_unit >> 31 is not the group of all. */
    {"int4 channel, k 371280", PACK, 4, CTW_BF16, 0, NO_ZEROS, false, false, 0, 13, 371280},
    {"int4 many rows", PACK, 4, CTW_BF16, 0, NO_ZEROS, false, false, 0, 131081, 8},
    {"int5 g64", PACK, 5, CTW_BF16, 64, PACKED_ZEROS, false, false, 0, 37, 1088},
    {"int5 g64 whole codes", PACK, 5, CTW_F16, 64, PACKED_ZEROS, false, true, 0, 37, 1088},
    {"int2 symmetric activation order", PACK, 2, CTW_BF16, 16, NO_ZEROS, true, false, 0, 34, 2064},
    {"int8 symmetric activation order, fp16", PACK, 8, CTW_F16, 64, NO_ZEROS, true, false, 0, 23, 2112},
    {"int5 activation order", PACK, 5, CTW_BF16, 64, PACKED_ZEROS, true, false, 0, 37, 320},
    {"int6 packed zeros", PACK, 6, CTW_F16, 56, PACKED_ZEROS, false, false, 0, 39, 1064},
    {"int6 whole codes", PACK, 6, CTW_BF16, 56, PACKED_ZEROS, false, true, 0, 39, 1064},
    {"int7 g96 bf16", PACK, 7, CTW_BF16, 96, PACKED_ZEROS, false, false, 0, 41, 1056},
    {"int7 whole codes", PACK, 7, CTW_F16, 96, PACKED_ZEROS, false, true, 0, 41, 1056},
    {"int8 tensor", PACK, 8, CTW_F16, -1, INT8_ZEROS, false, false, 0, 33, 1032},
    {"int8 at 4 mod 8", PACK, 8, CTW_BF16, 64, PACKED_ZEROS, false, false, 4, 33, 1088},
    {"int8 activation order", PACK, 8, CTW_BF16, 32, INT8_ZEROS, true, false, 0, 34, 1056},
    {"nvfp4", NVFP4, 4, CTW_F32, 3210, NO_ZEROS, false, false, 0, 35, 2064},
    {"nvfp4 small global scale", NVFP4, 4, CTW_F32, 37, NO_ZEROS, false, false, 0, 34, 528},
    {"nvfp4 without a global scale", NVFP4, 4, CTW_F32, 0, NO_ZEROS, false, false, 0, 35, 528},
    {"nvfp4 odd address", NVFP4, 4, CTW_BF16, 37, NO_ZEROS, false, false, 5, 35, 544},
    {"nvfp4 modelopt", NVFP4_MODELOPT, 4, CTW_F32, 3210, NO_ZEROS, false, false, 0, 35, 2064},
    {"nvfp4 modelopt large factor", NVFP4_MODELOPT, 4, CTW_F32, 37, NO_ZEROS, false, false, 0, 34, 528},
    {"nvfp4 modelopt odd address", NVFP4_MODELOPT, 4, CTW_BF16, 37, NO_ZEROS, false, false, 5, 35, 544},
    {"nvfp4 modelopt, groups of 32", NVFP4_MODELOPT, 4, CTW_F32, 37, NO_ZEROS, false, true, 0, 35, 2080},
    {"nvfp4 mlx", NVFP4_MLX, 4, CTW_F32, 3210, NO_ZEROS, false, false, 0, 35, 2064},
    {"nvfp4 mlx, large factor", NVFP4_MLX, 4, CTW_F32, 37, NO_ZEROS, false, false, 0, 34, 528},
    {"nvfp4 mlx, odd address", NVFP4_MLX, 4, CTW_BF16, 37, NO_ZEROS, false, false, 5, 35, 544},
    {"modelopt awq", MODELOPT_AWQ, 4, CTW_F32, 128, NO_ZEROS, false, false, 0, 36, 1152},
    {"modelopt awq odd address", MODELOPT_AWQ, 4, CTW_F32, 48, NO_ZEROS, false, false, 5, 34, 336},
    {"nvfp4 odd scales, fp16 global scale", NVFP4, 4, CTW_F16, 3210, NO_ZEROS, false, false, -5, 35, 544},
    {"fp8 channel", FLOAT8, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 39, 2048},
    {"fp8 channel, fp16", FLOAT8, 8, CTW_F16, 0, NO_ZEROS, false, false, 0, 33, 1032},
    {"fp8 channel, fp32 scales", FLOAT8, 8, CTW_F32, 0, NO_ZEROS, false, false, 0, 19, 264},
    {"fp8 tensor", FLOAT8, 8, CTW_BF16, -1, NO_ZEROS, false, false, 0, 21, 1088},
    {"fp8 blocks", FLOAT8, 8, CTW_BF16, -128, NO_ZEROS, false, false, 0, 300, 1160},
    {"fp8 blocks of 24, fp32 scales", FLOAT8, 8, CTW_F32, -24, NO_ZEROS, false, false, 0, 50, 600},
    {"fp8 blocks of 20", FLOAT8, 8, CTW_F16, -20, NO_ZEROS, false, false, 0, 50, 600},
    {"fp8 g56, fp16", FLOAT8, 8, CTW_F16, 56, NO_ZEROS, false, false, 0, 23, 1064},
    {"fp8 odd address", FLOAT8, 8, CTW_BF16, 0, NO_ZEROS, false, false, 3, 35, 544},
    {"fp8 odd scales", FLOAT8, 8, CTW_BF16, 32, NO_ZEROS, false, false, -1, 35, 544},
    {"fp8 k 301", FLOAT8, 8, CTW_BF16, -128, NO_ZEROS, false, false, 0, 131, 301},
    {"fp8 activation order", FLOAT8, 8, CTW_BF16, 32, NO_ZEROS, true, false, 0, 21, 1056},
    {"fp8 many rows", FLOAT8, 8, CTW_BF16, -128, NO_ZEROS, false, false, 0, 131081, 8},
    {"fp8 blocks, exponents", FLOAT8, 8, CTW_F8_E8M0, -128, NO_ZEROS, false, false, 0, 300, 1160},
    {"fp8 blocks of 24, exponents", FLOAT8, 8, CTW_U8, -24, NO_ZEROS, false, false, 0, 50, 600},
    {"fp8 blocks of 20, exponents", FLOAT8, 8, CTW_F8_E8M0, -20, NO_ZEROS, false, false, 0, 50, 600},
    {"fp8 tensor, exponent", FLOAT8, 8, CTW_F8_E8M0, -1, NO_ZEROS, false, false, 0, 21, 1088},
    {"fp8 odd exponents", FLOAT8, 8, CTW_F8_E8M0, 64, NO_ZEROS, false, false, -1, 35, 576},
    {"int8 bytes channel", INT8, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 39, 2048},
    {"int8 bytes channel, zeros, fp16", INT8, 8, CTW_F16, 0, INT8_ZEROS, false, false, 0, 33, 1032},
    {"int8 bytes g32, zeros", INT8, 8, CTW_BF16, 32, INT8_ZEROS, false, false, 0, 37, 1056},
    {"int8 bytes tensor, zero", INT8, 8, CTW_BF16, -1, INT8_ZEROS, false, false, 0, 9, 520},
    {"int8 bytes, fp32 scales, zeros", INT8, 8, CTW_F32, 64, INT8_ZEROS, false, false, 0, 19, 512},
    {"int8 bytes g12, odd scales", INT8, 8, CTW_BF16, 12, INT8_ZEROS, false, false, -1, 33, 1044},
    {"int8 bytes activation order", INT8, 8, CTW_F16, 64, INT8_ZEROS, true, false, 0, 23, 2112},
    {"mxfp8", MXFP8, 8, CTW_BF16, 32, NO_ZEROS, false, false, 0, 37, 1056},
    {"mxfp8, F8_E8M0", MXFP8, 8, CTW_F8_E8M0, 32, NO_ZEROS, false, false, 0, 37, 1056},
    {"mxfp8 odd address", MXFP8, 8, CTW_BF16, 32, NO_ZEROS, false, false, 3, 35, 544},
    {"mxfp6", MXFP6, 6, CTW_BF16, 32, NO_ZEROS, false, false, 0, 35, 2080},
    {"mxfp6, F8_E8M0", MXFP6, 6, CTW_F8_E8M0, 32, NO_ZEROS, false, false, 0, 35, 2080},
    {"mxfp6 odd address", MXFP6, 6, CTW_BF16, 32, NO_ZEROS, false, false, 5, 35, 544},
    {"mxfp4", MXFP4, 4, CTW_BF16, 32, NO_ZEROS, false, false, 0, 35, 2080},
    {"mxfp4, F8_E8M0", MXFP4, 4, CTW_F8_E8M0, 32, NO_ZEROS, false, false, 0, 35, 2080},
    {"mxfp4 odd address", MXFP4, 4, CTW_BF16, 32, NO_ZEROS, false, false, 5, 35, 544},
    {"gptq int4 g32", GPTQ, 4, CTW_F16, 32, PACKED_ZEROS, false, false, 0, 40, 576},
    {"gptq int4 by index", GPTQ, 4, CTW_BF16, 16, NO_ZEROS, true, false, 0, 35, 528},
    {"gptq int3 channel", GPTQ, 3, CTW_F16, 0, PACKED_ZEROS, false, false, 0, 64, 320},
    {"gptq int2", GPTQ, 2, CTW_F32, 48, PACKED_ZEROS, false, false, 1, 32, 288},
    {"gptq int8", GPTQ, 8, CTW_F16, 64, NO_ZEROS, false, false, 0, 33, 320},
    {"awq", AWQ, 4, CTW_F16, 64, PACKED_ZEROS, false, false, 0, 40, 576},
    {"gptq int4 g128", GPTQ, 4, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 301, 1152},
    {"gptq int4 g24 bf16", GPTQ, 4, CTW_BF16, 24, PACKED_ZEROS, false, false, 0, 33, 288},
    {"gptq int4 channel", GPTQ, 4, CTW_F16, 0, NO_ZEROS, false, false, 0, 64, 1056},
    {"gptq int4 odd scales", GPTQ, 4, CTW_F16, 64, NO_ZEROS, false, false, -1, 40, 320},
    {"gptq int4 g128 by index", GPTQ, 4, CTW_F16, 128, PACKED_ZEROS, true, false, 0, 312, 1152},
    {"gptq int4 g32 by index, bf16", GPTQ, 4, CTW_BF16, 32, NO_ZEROS, true, false, 0, 40, 4224},
    {"gptq int4 odd index", GPTQ, 4, CTW_F16, 32, PACKED_ZEROS, true, false, -4, 40, 320},
    {"gptq int8 g128", GPTQ, 8, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 203, 1152},
    {"gptq int8 g32 bf16", GPTQ, 8, CTW_BF16, 32, PACKED_ZEROS, false, false, 0, 37, 288},
    {"awq g128", AWQ, 4, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 392, 1160},
    {"awq g32 bf16", AWQ, 4, CTW_BF16, 32, PACKED_ZEROS, false, false, 0, 136, 288},
    {"awq channel", AWQ, 4, CTW_F16, 0, PACKED_ZEROS, false, false, 0, 128, 520},
    {"awq scales at 4 mod 16", AWQ, 4, CTW_F16, 64, PACKED_ZEROS, false, false, -4, 40, 320},
    {"awq channel, odd k", AWQ, 4, CTW_BF16, 0, PACKED_ZEROS, false, false, 5, 48, 301},
    {"bf16 transposed", TRANSPOSED, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 197, 1544},
    {"fp16 transposed, odd k", TRANSPOSED, 16, CTW_F16, 0, NO_ZEROS, false, false, 2, 64, 129},
    {"fp32 transposed", TRANSPOSED, 32, CTW_F32, 0, NO_ZEROS, false, false, 4, 131, 64},
    {"bf16 transposed, odd address", TRANSPOSED, 16, CTW_BF16, 0, NO_ZEROS, false, false, 1, 35, 300},
    {"GGUF Q4_0", GGML, CTW_BLOCK_Q4_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 37, 1056},
    {"GGUF Q4_1", GGML, CTW_BLOCK_Q4_1, CTW_F32, 0, NO_ZEROS, false, false, 0, 21, 544},
    {"GGUF Q5_0", GGML, CTW_BLOCK_Q5_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 5, 2080},
    {"GGUF Q5_1", GGML, CTW_BLOCK_Q5_1, CTW_F32, 0, NO_ZEROS, false, false, 0, 66, 96},
    {"GGUF Q8_0", GGML, CTW_BLOCK_Q8_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 35, 1056},
    {"GGUF IQ4_NL", GGML, CTW_BLOCK_IQ4_NL, CTW_F32, 0, NO_ZEROS, false, false, 0, 19, 4128},
    {"GGUF MXFP4", GGML, CTW_BLOCK_MXFP4, CTW_F32, 0, NO_ZEROS, false, false, 0, 36, 1056},
    {"GGUF NVFP4", GGML, CTW_BLOCK_NVFP4, CTW_F32, 0, NO_ZEROS, false, false, 0, 33, 1088},
    {"GGUF Q2_K", GGML, CTW_BLOCK_Q2_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 37, 1536},
    {"GGUF Q3_K", GGML, CTW_BLOCK_Q3_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 21, 1280},
    {"GGUF Q4_K", GGML, CTW_BLOCK_Q4_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 37, 1536},
    {"GGUF Q5_K", GGML, CTW_BLOCK_Q5_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 5, 4352},
    {"GGUF Q6_K", GGML, CTW_BLOCK_Q6_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 67, 1280},
    {"GGUF IQ4_XS", GGML, CTW_BLOCK_IQ4_XS, CTW_F32, 0, NO_ZEROS, false, false, 0, 35, 2304},
    {"GGUF IQ1_S", GGML, CTW_BLOCK_IQ1_S, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF IQ1_M", GGML, CTW_BLOCK_IQ1_M, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF IQ2_XXS", GGML, CTW_BLOCK_IQ2_XXS, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF IQ2_XS", GGML, CTW_BLOCK_IQ2_XS, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF IQ2_S", GGML, CTW_BLOCK_IQ2_S, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF IQ3_XXS", GGML, CTW_BLOCK_IQ3_XXS, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF IQ3_S", GGML, CTW_BLOCK_IQ3_S, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF TQ1_0", GGML, CTW_BLOCK_TQ1_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF TQ2_0", GGML, CTW_BLOCK_TQ2_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 13, 768},
    {"GGUF Q4_K, many rows", GGML, CTW_BLOCK_Q4_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 33001, 256},
    {"GGUF Q8_0, k 32", GGML, CTW_BLOCK_Q8_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 131, 32},
    {"GGUF Q4_K, heads of 64", GGML, CTW_BLOCK_Q4_K, CTW_F32, 64, NO_ZEROS, false, false, 0, 192, 512},
    {"GGUF Q6_K, heads of 32", GGML, CTW_BLOCK_Q6_K, CTW_F32, 32, NO_ZEROS, false, false, 0, 96, 768},
    {"GGUF Q8_0, heads of 96", GGML, CTW_BLOCK_Q8_0, CTW_F32, 96, NO_ZEROS, false, false, 0, 192, 160},
    {"GGUF IQ2_XS, heads of 16", GGML, CTW_BLOCK_IQ2_XS, CTW_F32, 16, NO_ZEROS, false, false, 0, 48, 256},
    {"GGUF Q6_K at 2 mod 4", GGML, CTW_BLOCK_Q6_K, CTW_F32, 0, NO_ZEROS, false, false, 2, 35, 512},
    {"GGUF Q8_0 at 6 mod 8", GGML, CTW_BLOCK_Q8_0, CTW_F32, 0, NO_ZEROS, false, false, 6, 35, 544},
    {"GGUF Q4_0 at 10 mod 16", GGML, CTW_BLOCK_Q4_0, CTW_F32, 0, NO_ZEROS, false, false, 10, 35, 544},
    {"GGUF Q4_K at 8 mod 16", GGML, CTW_BLOCK_Q4_K, CTW_F32, 0, NO_ZEROS, false, false, 8, 35, 512},
    {"GGUF IQ4_XS at 4 mod 8", GGML, CTW_BLOCK_IQ4_XS, CTW_F32, 0, NO_ZEROS, false, false, 4, 35, 512},
    {"GGUF MXFP4, odd address", GGML, CTW_BLOCK_MXFP4, CTW_F32, 0, NO_ZEROS, false, false, 3, 35, 544},
    {"GGUF Q6_K, odd address", GGML, CTW_BLOCK_Q6_K, CTW_F32, 0, NO_ZEROS, false, false, 5, 35, 512},
    {"MLX 4 bit", MLX, 4, CTW_BF16, 64, NO_ZEROS, false, false, 0, 37, 2112},
    {"MLX 4 bit, fp16", MLX, 4, CTW_F16, 32, NO_ZEROS, false, false, 0, 21, 1056},
    {"MLX 4 bit, fp32", MLX, 4, CTW_F32, 128, NO_ZEROS, false, false, 0, 9, 640},
    {"MLX 8 bit", MLX, 8, CTW_BF16, 128, NO_ZEROS, false, false, 0, 35, 1152},
    {"MLX 8 bit, fp16", MLX, 8, CTW_F16, 64, NO_ZEROS, false, false, 0, 66, 576},
    {"MLX 6 bit", MLX, 6, CTW_BF16, 64, NO_ZEROS, false, false, 0, 35, 1088},
    {"MLX 5 bit, fp16", MLX, 5, CTW_F16, 32, NO_ZEROS, false, false, 0, 5, 1056},
    {"MLX 3 bit", MLX, 3, CTW_BF16, 128, NO_ZEROS, false, false, 0, 33, 1152},
    {"MLX 2 bit", MLX, 2, CTW_F16, 64, NO_ZEROS, false, false, 0, 43, 576},
    {"MLX 1 bit", MLX, 1, CTW_BF16, 32, NO_ZEROS, false, false, 0, 21, 544},
    {"MLX 4 bit, odd address", MLX, 4, CTW_BF16, 64, NO_ZEROS, false, false, 1, 19, 576},
    {"MLX 6 bit, odd scales", MLX, 6, CTW_F16, 64, NO_ZEROS, false, false, -1, 19, 576},
    {"NF4", BNB, 4, CTW_BF16, 64, NO_ZEROS, false, false, 0, 37, 2056},
    {"NF4, fp16, blocks of 4096", BNB, 4, CTW_F16, 4096, NO_ZEROS, false, false, 0, 35, 1096},
    {"NF4, fp32", BNB, 4, CTW_F32, 128, NO_ZEROS, false, false, 0, 21, 264},
    {"NF4, nested", BNB, 4, CTW_U8, 64, NO_ZEROS, false, false, 0, 36, 4104},
    {"FP4, nested, blocks of 256", BNB, 4, CTW_U8, 256, NO_ZEROS, true, false, 0, 66, 1032},
    {"FP4", BNB, 4, CTW_BF16, 64, NO_ZEROS, true, false, 0, 33, 520},
    {"NF4, k 302", BNB, 4, CTW_BF16, 64, NO_ZEROS, false, false, 0, 19, 302},
    {"NF4, odd address", BNB, 4, CTW_BF16, 64, NO_ZEROS, false, false, 1, 35, 520},
    {"NF4, nested, odd scales", BNB, 4, CTW_U8, 64, NO_ZEROS, false, false, -1, 35, 520},
    {"EXL3 4 bit, mul1", EXL3, 8, CTW_F16, 2, NO_ZEROS, false, false, 0, 256, 384},
    {"EXL3 4 bit, mcg", EXL3, 8, CTW_F16, 1, NO_ZEROS, false, false, 0, 128, 256},
    {"EXL3 4 bit", EXL3, 8, CTW_F16, 0, NO_ZEROS, false, false, 0, 384, 128},
    {"EXL3 1 bit, packed signs", EXL3, 2, CTW_I16, 0, NO_ZEROS, false, false, 0, 200, 300},
    {"EXL3 2 bit", EXL3, 4, CTW_F16, 1, NO_ZEROS, false, false, 0, 131, 128},
    {"EXL3 3 bit", EXL3, 6, CTW_F16, 0, NO_ZEROS, false, false, 0, 128, 129},
    {"EXL3 5 bit", EXL3, 10, CTW_F16, 2, NO_ZEROS, false, false, 0, 150, 256},
    {"EXL3 6 bit", EXL3, 12, CTW_F16, 2, NO_ZEROS, false, false, 0, 256, 136},
    {"EXL3 7 bit", EXL3, 14, CTW_I16, 1, NO_ZEROS, false, false, 0, 128, 128},
    {"EXL3 8 bit", EXL3, 16, CTW_F16, 2, NO_ZEROS, false, false, 0, 140, 256},
    {"EXL3 1.5 bit", EXL3, 3, CTW_F16, 2, NO_ZEROS, false, false, 0, 128, 256},
    {"EXL3 2.5 bit", EXL3, 5, CTW_F16, 2, NO_ZEROS, false, false, 0, 257, 128},
    {"EXL3 3.5 bit", EXL3, 7, CTW_F16, 2, NO_ZEROS, false, false, 0, 128, 384},
    {"EXL3 4 bit, odd address", EXL3, 8, CTW_F16, 2, NO_ZEROS, false, false, 1, 130, 120},
};
/* clang-format on */

/* Rows as in `want` [n, k], at row (r / group) * stride + r % group; all rows between must be
 * untouched. */
static bool rows_are(const char *got, const char *want, int64_t n, size_t row_bytes, int64_t group,
                     int64_t stride, int64_t total)
{
    bool ok = true;
    char *all = (char *)malloc((size_t)total * row_bytes);
    memset(all, POISON, (size_t)total * row_bytes);
    for (int64_t r = 0; r < n; r++)
        memcpy(all + (size_t)(group > 0 ? r / group * stride + r % group : r) * row_bytes,
               want + (size_t)r * row_bytes, row_bytes);
    ok = memcmp(all, got, (size_t)total * row_bytes) == 0;
    free(all);
    return ok;
}

static void check_decoding(const struct kind *c)
{
    struct made m;
    weight_open(&m, c);
    char failed[256] = "";
    for (int d = 0; d < 3; d++) {
        size_t row_bytes = (size_t)c->k * ctw_dtype_bytes(dtypes[d]);
        char *want = (char *)weight_decoded(&m, dtypes[d]);
        for (int way = 0; way < 7; way++) {
            /* all; a part to an odd place; interleaved; by number; a part; a part that begins as
             * blocks may; the last row */
            bool part = way == 1 || way == 4;
            int64_t row0 = part ? 3 : way == 5 && c->n > 8 ? 8 : way == 6 ? c->n - 1 : 0;
            int64_t n = part ? c->n - 4 : way == 3 ? 11 : c->n - row0;
            int64_t group = way == 2 ? 8 : 0, stride = way == 2 ? 16 : 0;
            int64_t total = way == 2 ? (n - 1) / 8 * 16 + (n - 1) % 8 + 1 : n;
            struct buf dst = buf_open((size_t)total * row_bytes, way == 1 ? 4 : 0);
            int32_t rows[11];
            char *picked = (char *)malloc(11 * row_bytes);
            for (int i = 0; i < 11; i++) {
                rows[i] = i == 0 ? (int32_t)c->n - 1 : (int32_t)(rng() % c->n);
                memcpy(picked + i * row_bytes, want + rows[i] * row_bytes, row_bytes);
            }
            struct buf numbers = buf_from(rows, sizeof(rows), 0);
            if (way == 3)
                OK(ctw_cuda_decode_rows(cu, &m.shard, (int32_t *)numbers.p, n, dtypes[d], dst.p,
                                        &last_err));
            else
                OK(ctw_cuda_decode_range(cu, cu->stream, &m.shard, row0, n, dtypes[d], dst.p, group,
                                         stride, &last_err));
            char *got = (char *)buf_read(&dst);
            if (!rows_are(got, way == 3 ? picked : want + (size_t)row0 * row_bytes, n, row_bytes, group,
                          stride, total) ||
                !guards_whole(&dst))
                snprintf(failed + strlen(failed), sizeof(failed) - strlen(failed), " %s/%d",
                         ctw_dtype_name(dtypes[d]), way);
            free(got);
            free(picked);
            buf_close(&numbers);
            buf_close(&dst);
        }
        free(want);
    }
    report(failed[0] == '\0', "decode %s [%d, %d]%s", c->name, (int)c->n, (int)c->k, failed);
    weight_close(&m);
}

/* NaN scales must come out as NaN, in every kernel. */
static void check_nan_scales(void)
{
    for (size_t i = 0; i < CTW_COUNT(kinds); i++) {
        const struct kind *c = &kinds[i];
        bool exponents = c->dtype == CTW_F8_E8M0;
        if (c->format != NVFP4 && !exponents && (c->format != PACK || c->n < 33))
            continue;
        struct made m;
        weight_open(&m, c);
        uint8_t code = exponents ? 0xff : 0x7f;
        float nan = NAN;
        uint16_t nan16 = 0x7fff;
        must(cudaMemcpy(m.part[CTW_PART_SCALE].p,
                        c->format == NVFP4 || exponents ? (void *)&code
                        : c->dtype == CTW_F32           ? (void *)&nan
                                                        : (void *)&nan16,
                        c->format == NVFP4 ? 1 : ctw_dtype_bytes(c->dtype), cudaMemcpyHostToDevice),
             "upload");
        enum ctw_dtype dtype = m.w.dtype; /* the fast kernels' */
        struct buf dst = buf_open((size_t)c->k * ctw_dtype_bytes(dtype), 0);
        OK(ctw_cuda_decode_range(cu, cu->stream, &m.shard, 0, 1, dtype, dst.p, 0, 0, &last_err));
        void *got = buf_read(&dst);
        int n_nan = 0;
        for (int j = 0; j < c->k; j++)
            n_nan += isnan(ctw_load_float(got, dtype, j)) != 0;
        int group = c->format == NVFP4 ? 16
                    : c->group < -1    ? -c->group
                    : c->group > 0     ? c->group
                                       : (int)c->k;
        report(n_nan == group, "NaN scale, %s: %d NaN, expected %d", c->name, n_nan, group);
        free(got);
        buf_close(&dst);
        weight_close(&m);
    }
}

/* Any 16 bits as a scale (subnormal, overflowing, infinite) by any code and zero point, bit for bit. */
static void check_every_scale(void)
{
    enum { N = 65536, K = 64 };
    static const struct kind all[] = {
        {"int4", PACK, 4, CTW_BF16, 0, PACKED_ZEROS, false, false, 0, N, K},
        {"int4 fp16", PACK, 4, CTW_F16, 0, INT8_ZEROS, false, false, 0, N, K},
        {"int3", PACK, 3, CTW_BF16, 0, NO_ZEROS, false, false, 0, N, K},
        {"int7 fp16", PACK, 7, CTW_F16, 0, PACKED_ZEROS, false, false, 0, N, K},
        {"int8", PACK, 8, CTW_BF16, 0, INT8_ZEROS, false, false, 0, N, K},
        {"int8 fp16", PACK, 8, CTW_F16, 0, NO_ZEROS, false, false, 0, N, K},
        {"int4 activation order", PACK, 4, CTW_BF16, K / 2, INT8_ZEROS, true, false, 0, N / 2, K},
        {"int8 activation order, fp16", PACK, 8, CTW_F16, K / 2, INT8_ZEROS, true, false, 0, N / 2, K},
        {"gptq int4, fp16", GPTQ, 4, CTW_F16, 0, PACKED_ZEROS, false, false, 0, N, K},
        {"gptq int4 by index", GPTQ, 4, CTW_BF16, K / 2, PACKED_ZEROS, true, false, 0, N / 2, K},
        {"gptq int4 by index, fp16", GPTQ, 4, CTW_F16, K / 2, PACKED_ZEROS, true, false, 0, N / 2, K},
        {"gptq int8", GPTQ, 8, CTW_BF16, 0, PACKED_ZEROS, false, false, 0, N, K},
        {"awq, fp16", AWQ, 4, CTW_F16, 0, PACKED_ZEROS, false, false, 0, N, K},
        {"awq", AWQ, 4, CTW_BF16, K / 2, PACKED_ZEROS, false, false, 0, N / 2, K},
        {"int3 by index, zeros, fp16", PACK, 3, CTW_F16, K / 2, PACKED_ZEROS, true, false, 0, N / 2, K},
    };
    for (size_t c = 0; c < CTW_COUNT(all); c++) {
        struct made m;
        weight_open(&m, &all[c]);
        uint16_t *scales = (uint16_t *)m.host.part[CTW_PART_SCALE];
        for (int i = 0; i < N; i++)
            scales[i] = (uint16_t)i;
        must(cudaMemcpy(m.part[CTW_PART_SCALE].p, scales, N * 2, cudaMemcpyHostToDevice), "upload");
        int64_t n = all[c].n * K, wrong = 0, n_nan = 0;
        uint16_t *want = (uint16_t *)weight_decoded(&m, all[c].dtype);
        struct buf dst = buf_open((size_t)n * 2, 0);
        OK(ctw_cuda_decode_range(cu, cu->stream, &m.shard, 0, all[c].n, all[c].dtype, dst.p, 0, 0,
                                 &last_err));
        uint16_t *got = (uint16_t *)buf_read(&dst);
        for (int64_t i = 0; i < n; i++) {
            bool nan = isnan(ctw_load_float(want, all[c].dtype, i));
            n_nan += nan;
            wrong += nan ? !isnan(ctw_load_float(got, all[c].dtype, i)) : got[i] != want[i];
        }
        report(wrong == 0 && n_nan > 0 && n_nan < n / 2, "every scale, %s: %lld of %lld differ",
               all[c].name, (long long)wrong, (long long)n);
        free(want);
        free(got);
        buf_close(&dst);
        weight_close(&m);
    }
}

/* ---- a product's weights ------------------------------------------------------------------ */

/* Does a product of these shards get the right rows, with and without its slot? */
static bool weights_are_right(const struct ctw_op_linear *op, const struct made *m)
{
    const void *w = NULL;
    bool interleaved = false, ok = true;
    size_t row_bytes = (size_t)m[0].w.k * ctw_dtype_bytes(op->dtype), n_rows = 0;
    for (int i = 0; i < op->n_shards; i++)
        n_rows += (size_t)m[i].w.n;
    OK(ctw_cuda_weights(cu, op, &w, &interleaved, &last_err));
    char *got = (char *)malloc(n_rows * row_bytes), *at = got;
    must(cudaMemcpyAsync(got, w, n_rows * row_bytes, cudaMemcpyDeviceToHost, cu->stream), "download");
    OK(ctw_cuda_weights_used(cu, op, &last_err));
    must(cudaStreamSynchronize(cu->stream), "running");
    const int block = CTW_CUDA_GATE_BLOCK;
    for (int i = 0; i < op->n_shards; i++) {
        char *want = (char *)weight_decoded(&m[i], op->dtype);
        for (int64_t r = 0; r < m[i].w.n; r++) {
            const char *row =
                interleaved ? got + (size_t)(r / block * 2 * block + i * block + r % block) * row_bytes
                            : at + (size_t)r * row_bytes;
            ok = ok && memcmp(row, want + (size_t)r * row_bytes, row_bytes) == 0;
        }
        at += (size_t)m[i].w.n * row_bytes;
        free(want);
    }
    free(got);
    return ok && (!interleaved || op->epilogue == CTW_EPI_GATE);
}

/* clang-format off */
static const struct kind pairs[][2] = {
    {{"int4", PACK, 4, CTW_BF16, 128, PACKED_ZEROS, false, false, 0, 512, 1024},
     {"bf16", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 512, 1024}},
    {{"Q4_K", GGML, CTW_BLOCK_Q4_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 512, 1024},
     {"Q6_K in heads", GGML, CTW_BLOCK_Q6_K, CTW_F32, 64, NO_ZEROS, false, false, 0, 512, 1024}},
    {{"EXL3 4 bit", EXL3, 8, CTW_F16, 2, NO_ZEROS, false, false, 0, 512, 1024},
     {"EXL3 3 bit", EXL3, 6, CTW_F16, 1, NO_ZEROS, false, false, 0, 512, 1024}},
    {{"MLX 4 bit", MLX, 4, CTW_BF16, 32, NO_ZEROS, false, false, 0, 512, 1024},
     {"NF4, nested", BNB, 4, CTW_U8, 128, NO_ZEROS, false, false, 0, 512, 1024}}};
/* clang-format on */

/* Two products of one weight of each kind; b may be dense. */
static void check_weights(const struct kind *a, const struct kind *b)
{
    for (int epilogue = 0; epilogue < 2; epilogue++) {
        struct made m[4];
        struct ctw_shard shards[4];
        bool ok = true;
        for (int i = 0; i < 4; i++) {
            struct kind c = i % 2 == epilogue ? *a : *b;
            c.n = epilogue == 0 && c.group != 64 ? c.n - 11 : c.n; /* not whole heads of 64 */
            weight_open(&m[i], &c);
            shards[i] = m[i].shard;
        }
        struct ctw_op_linear op = {};
        op.n_shards = 2;
        op.slot = epilogue ? (enum ctw_slot)2 : CTW_SLOT_FIRST;
        op.epilogue = epilogue ? CTW_EPI_GATE : CTW_EPI_STORE;
        op.dtype = CTW_BF16;
        op.shards = shards;
        ok = weights_are_right(&op, m); /* unprepared */
        for (int i = 0; i < 12; i++) {  /* two layers alternately */
            op.shards = shards + i % 2 * 2;
            OK(ctw_cuda_prepare(cu, &op, &last_err));
            ok = weights_are_right(&op, m + i % 2 * 2) && ok;
            ok = weights_are_right(&op, m + i % 2 * 2) && ok;
        }
        op.shards = shards; /* these are not in the slot now */
        ok = weights_are_right(&op, m) && ok;
        op.n_shards = 0;
        OK(ctw_cuda_prepare(cu, &op, &last_err));
        op.n_shards = 1; /* in place, if dense */
        op.shards = shards + (epilogue ? 0 : 1);
        op.epilogue = CTW_EPI_STORE;
        OK(ctw_cuda_prepare(cu, &op, &last_err));
        const void *w;
        bool interleaved;
        OK(ctw_cuda_weights(cu, &op, &w, &interleaved, &last_err));
        const void *stored = op.shards[0].data->part[CTW_PART_VALUES];
        ok = ok && (w == stored) == (b->format == DENSE) && !interleaved;
        report(ok, "a product's weights, %s and %s, %s", a->name, b->name,
               epilogue ? "gate and up" : "one after another");
        for (int i = 0; i < 4; i++)
            weight_close(&m[i]);
    }
}

/* Several shards of one dense matrix, one after another: no copy, unless gate and up are interleaved.
 * With a gap between them, or in another order: a copy. */
static void check_fused_weights(void)
{
    static const struct kind kind = {"", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 512, 1024};
    struct made m;
    weight_open(&m, &kind);
    char *want = (char *)weight_decoded(&m, CTW_BF16);
    bool ok = true;
    for (int way = 0; way < 4; way++) { /* in order; gate and up; with a gap; in another order */
        struct ctw_shard shards[3] = {m.shard, m.shard, m.shard};
        struct ctw_op_linear op = {};
        op.shards = shards;
        op.n_shards = way == 1 ? 2 : 3;
        op.slot = CTW_SLOT_FIRST;
        op.epilogue = way == 1 ? CTW_EPI_GATE : CTW_EPI_STORE;
        op.dtype = CTW_BF16;
        for (int i = 0; i < op.n_shards; i++) {
            shards[i].n = 40;
            shards[i].row0 = 40 * (way == 3 ? 2 - i : i) + (way == 2 && i == 2 ? 8 : 0);
        }
        OK(ctw_cuda_prepare(cu, &op, &last_err));
        const void *w = NULL;
        bool interleaved = false;
        OK(ctw_cuda_weights(cu, &op, &w, &interleaved, &last_err));
        bool in_place = w == m.device.part[CTW_PART_VALUES];
        ok = ok && in_place == (way < 2 && !interleaved) && interleaved == (way == 1 && cu->hopper);
        size_t row_bytes = (size_t)kind.k * 2;
        char *got = (char *)malloc(120 * row_bytes);
        must(cudaMemcpyAsync(got, w, (size_t)op.n_shards * 40 * row_bytes, cudaMemcpyDeviceToHost,
                             cu->stream),
             "download");
        OK(ctw_cuda_weights_used(cu, &op, &last_err));
        must(cudaStreamSynchronize(cu->stream), "running");
        for (int64_t r = 0; !interleaved && r < op.n_shards * 40; r++)
            ok = ok && memcmp(got + (size_t)r * row_bytes,
                              want + (size_t)(shards[r / 40].row0 + r % 40) * row_bytes, row_bytes) == 0;
        free(got);
        op.n_shards = 0;
        OK(ctw_cuda_prepare(cu, &op, &last_err));
    }
    report(ok, "a fused projection's weights are read in place");
    free(want);
    weight_close(&m);
}

/* Keeps a stream busy. */
static __global__ void dawdle(uint64_t ns)
{
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < ns);
}

/* Two layers alternately in one slot, without waiting: are weights read only after they are
 * decoded (with slow decoding), and overwritten only after they are read (with slow reading)? */
static void check_slot_order(void)
{
    enum { N = 512, K = 1024, TURNS = 8 };
    static const struct kind kind = {"", PACK, 4, CTW_BF16, 128, NO_ZEROS, false, false, 0, N, K};
    struct made m[2];
    struct buf read[TURNS];
    struct ctw_op_linear op = {};
    bool ok = true;
    for (int i = 0; i < 2; i++)
        weight_open(&m[i], &kind);
    for (int i = 0; i < TURNS; i++)
        read[i] = buf_open((size_t)N * K * 2, 0);
    op.n_shards = 1;
    op.slot = (enum ctw_slot)3;
    op.dtype = CTW_BF16;
    for (int i = 0; i < TURNS; i++) {
        const void *w = NULL;
        bool interleaved;
        op.shards = &m[i % 2].shard;
        if (i < TURNS / 2)
            dawdle<<<1, 1, 0, cu->ahead>>>(5000000);
        OK(ctw_cuda_prepare(cu, &op, &last_err));
        OK(ctw_cuda_weights(cu, &op, &w, &interleaved, &last_err));
        if (i >= TURNS / 2)
            dawdle<<<1, 1, 0, cu->stream>>>(5000000);
        must(cudaMemcpyAsync(read[i].p, w, read[i].bytes, cudaMemcpyDeviceToDevice, cu->stream), "copy");
        OK(ctw_cuda_weights_used(cu, &op, &last_err));
    }
    for (int i = 0; i < TURNS; i++) {
        void *got = buf_read(&read[i]), *want = weight_decoded(&m[i % 2], CTW_BF16);
        ok = ok && memcmp(got, want, read[i].bytes) == 0;
        free(got);
        free(want);
        buf_close(&read[i]);
    }
    report(ok, "a product's weights are read only when decoded, and replaced only when read");
    for (int i = 0; i < 2; i++)
        weight_close(&m[i]);
}

int main(int argc, char **argv)
{
    bool measured = argc > 1 && strcmp(argv[1], "rates") == 0;
    backend_open();
    if (measured) {
        print_rates(argc > 2 ? argv[2] : NULL);
    } else {
        for (size_t i = 0; i < CTW_COUNT(kinds); i++)
            check_decoding(&kinds[i]);
        check_nan_scales();
        check_every_scale();
        for (size_t i = 0; i < CTW_COUNT(pairs); i++)
            check_weights(&pairs[i][0], &pairs[i][1]);
        check_fused_weights();
        check_slot_order();
    }
    printf("%d checks, %d failed\n", n_checks, n_failed);
    return n_failed != 0;
}
