#include "kernels/formats/ggml/ggml_types.h"

#include <inttypes.h>
#include <stdio.h>

#define BLOCK(type, type_id, n, size, code_bits, share)                                            \
    {.id = (type_id),                                                                              \
     .name = #type,                                                                                \
     .elements = (n),                                                                              \
     .bytes = (size),                                                                              \
     .dtype = CTW_U8,                                                                              \
     .bits = (code_bits),                                                                          \
     .group = (share)},
#define PLAIN(type, type_id, size)                                                                 \
    {                                                                                              \
        .id = (type_id), .name = #type, .elements = 1, .bytes = (size), .plain = true,             \
        .dtype = CTW_##type, .bits = 8 * (size), .group = 1                                        \
    }
static const struct ctw_block_type types[] = {
    CTW_BLOCK_TYPES(BLOCK) PLAIN(F32, 0, 4),
    PLAIN(F16, 1, 2),
    PLAIN(BF16, 30, 2),
    PLAIN(F64, 28, 8),
    PLAIN(I8, 24, 1),
    PLAIN(I16, 25, 2),
    PLAIN(I32, 26, 4),
    PLAIN(I64, 27, 8),
};

/* Types of files that cannot be read. Sources: the enums ggml_type of ggml and ik_llama.cpp. */
static const struct {
    uint32_t id;
    const char *name;
} refused[] = {
    {4, "Q4_2, which ggml withdrew in 2023"},
    {5, "Q4_3, which ggml withdrew in 2023"},
    {9, "Q8_1, which ggml uses for activations only"},
    {15, "Q8_K, which ggml uses for activations only"},
    {31, "Q4_0_4_4, which ggml withdrew in 2024; convert the original to Q4_0"},
    {32, "Q4_0_4_8, which ggml withdrew in 2024; convert the original to Q4_0"},
    {33, "Q4_0_8_8, which ggml withdrew in 2024; convert the original to Q4_0"},
    {36, "I2_S of BitNet's fork, or IQ4_NL_4_4, which ggml withdrew"},
    {37, "I8_S of BitNet's fork, or IQ4_NL_4_8, which ggml withdrew"},
    {38, "TL1 of BitNet's fork, or IQ4_NL_8_8, which ggml withdrew"},
    {41, "Q1_0"},
    {42, "Q2_0"},
    {133, "ik_llama.cpp's Q6_0"},
    {134, "ik_llama.cpp's IQ1_BN"},
    {135, "ik_llama.cpp's IQ2_BN"},
    {137, "ik_llama.cpp's IQ2_K"},
    {138, "ik_llama.cpp's IQ3_K"},
    {139, "ik_llama.cpp's IQ4_K"},
    {140, "ik_llama.cpp's IQ5_K"},
    {141, "ik_llama.cpp's IQ6_K"},
    {144, "ik_llama.cpp's IQ4_KS"},
    {145, "ik_llama.cpp's IQ2_KS"},
    {146, "ik_llama.cpp's IQ4_KSS"},
    {152, "ik_llama.cpp's IQ5_KS"},
    {153, "ik_llama.cpp's IQ2_KT"},
    {154, "ik_llama.cpp's IQ3_KT"},
    {155, "ik_llama.cpp's IQ4_KT"},
    {156, "ik_llama.cpp's IQ3_KS"},
    {157, "ik_llama.cpp's IQ2_KL"},
    {158, "ik_llama.cpp's IQ1_KT"},
};

const struct ctw_block_type *ctw_block_type_find(uint32_t id)
{
    for (size_t i = 0; i < CTW_COUNT(types); i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const char *ctw_block_type_refused(uint32_t id, char *buf, size_t bytes)
{
    for (size_t i = 0; i < CTW_COUNT(refused); i++)
        if (refused[i].id == id) {
            (void)snprintf(buf, bytes, "%s (id %" PRIu32 ")", refused[i].name, id);
            return buf;
        }
    (void)snprintf(buf, bytes, "id %" PRIu32 ", which ggml does not define", id);
    return buf;
}

bool ctw_block_bytes(const struct ctw_block_type *type, uint64_t n, uint64_t *bytes)
{
    uint64_t elements = (uint64_t)type->elements;
    return n % elements == 0 && !__builtin_mul_overflow(n / elements, (uint64_t)type->bytes, bytes);
}
