/*
 * The types of tensors in GGUF files, by the id that a file gives. A row of a tensor is a sequence
 * of blocks, each of `elements` values in `bytes` bytes. A type of one element is plain.
 *
 * Ids, names and sizes: ggml.h of ggml (MIT). Forks of llama.cpp use free ids for types of their
 * own, and some use upstream's ids. So whoever reads a file must compare the bytes that a tensor
 * occupies with ctw_block_bytes().
 */
#ifndef CTW_KERNELS_FORMATS_GGML_TYPES_H
#define CTW_KERNELS_FORMATS_GGML_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/dtype.h"

/* X(name, id, elements, bytes, bits of one code, elements that share a scale) */
#define CTW_BLOCK_TYPES(X)                                                                         \
    X(Q4_0, 2, 32, 18, 4, 32)                                                                      \
    X(Q4_1, 3, 32, 20, 4, 32)                                                                      \
    X(Q5_0, 6, 32, 22, 5, 32)                                                                      \
    X(Q5_1, 7, 32, 24, 5, 32)                                                                      \
    X(Q8_0, 8, 32, 34, 8, 32)                                                                      \
    X(Q2_K, 10, 256, 84, 2, 16)                                                                    \
    X(Q3_K, 11, 256, 110, 3, 16)                                                                   \
    X(Q4_K, 12, 256, 144, 4, 32)                                                                   \
    X(Q5_K, 13, 256, 176, 5, 32)                                                                   \
    X(Q6_K, 14, 256, 210, 6, 16)                                                                   \
    X(IQ2_XXS, 16, 256, 66, 2, 32)                                                                 \
    X(IQ2_XS, 17, 256, 74, 2, 16)                                                                  \
    X(IQ3_XXS, 18, 256, 98, 3, 32)                                                                 \
    X(IQ1_S, 19, 256, 50, 1, 32)                                                                   \
    X(IQ4_NL, 20, 32, 18, 4, 32)                                                                   \
    X(IQ3_S, 21, 256, 110, 3, 32)                                                                  \
    X(IQ2_S, 22, 256, 82, 2, 16)                                                                   \
    X(IQ4_XS, 23, 256, 136, 4, 32)                                                                 \
    X(IQ1_M, 29, 256, 56, 1, 16)                                                                   \
    X(TQ1_0, 34, 256, 54, 2, 256)                                                                  \
    X(TQ2_0, 35, 256, 66, 2, 256)                                                                  \
    X(MXFP4, 39, 32, 17, 4, 32)                                                                    \
    X(NVFP4, 40, 64, 36, 4, 16)

/* The ids that are not plain. */
#define CTW_BLOCK_ID(name, id, elements, bytes, bits, group) CTW_BLOCK_##name = id,
enum ctw_block_id { CTW_BLOCK_TYPES(CTW_BLOCK_ID) };
#undef CTW_BLOCK_ID

/* The elements of the largest block. All blocks divide this number. */
enum { CTW_BLOCK_MAX = 256 };

struct ctw_block_type {
    uint32_t id;
    const char *name; /* "Q4_K" */
    int elements;
    int bytes;
    bool plain;           /* one value of dtype; else a block of codes */
    enum ctw_dtype dtype; /* of a plain type, else U8 */
    int bits;             /* of one code */
    int group;            /* elements that share a scale */
};

/* NULL: no type that can be read has this id. */
const struct ctw_block_type *ctw_block_type_find(uint32_t id);

/* A type that cannot be read, as the words after "its type, ": "ik_llama.cpp's IQ4_K (id 139)";
 * "id 77, which ggml does not define". Writes to buf and returns buf. */
const char *ctw_block_type_refused(uint32_t id, char *buf, size_t bytes);

/* *bytes: of n elements. False: they are no whole number of blocks, or too many to count. */
bool ctw_block_bytes(const struct ctw_block_type *type, uint64_t n, uint64_t *bytes) CTW_MUST_CHECK;

#endif
