/*
 * EXL3's embedding tables (exllamav3's ngram_codec.py, dequant_rows()). A row is groups of 256
 * columns, the last one padded. A group is a ring of 16-bit words: its scale (fp16), then 256
 * codes, lowest bit first. The state of column i is the 16 bits of codes i, i-1 .., code i's in the
 * lowest place; its value v_i that of EXL3's mul1. With `sum` 8 steps of butterflies in fp32,
 * distances 1, 2 .. 128, column i is RN16(RN32(sum(v * scale)_i / 16 * signs[i])).
 *
 * Parts: VALUES I16 [rows, groups * (1 + 16 bits)], SIGNS F16 [groups, 256].
 */
#ifndef CTW_KERNELS_FORMATS_EXL3_TABLE_DECODE_H
#define CTW_KERNELS_FORMATS_EXL3_TABLE_DECODE_H

#include "kernels/formats/format.h"
#include "kernels/formats/trellis.h"

enum { CTW_EXL3_GROUP = CTW_DECODE_ALIGN };

/* Code i of a ring, i counted modulo a group. */
CTW_HD uint32_t ctw_exl3_table_code(const uint8_t *ring, int bits, int i)
{
    const int at = (i & (CTW_EXL3_GROUP - 1)) * bits, word = at / 16,
              n = CTW_EXL3_GROUP * bits / 16;
    const uint32_t both =
        ctw_load_u16(ring + 2 * word) | (uint32_t)ctw_load_u16(ring + 2 * ((word + 1) % n)) << 16;
    return both >> (at % 16) & ((1u << bits) - 1u);
}

CTW_HD void ctw_exl3_table_group(const uint8_t *ring, int bits, float v[CTW_EXL3_GROUP])
{
    const float scale = ctw_f16_to_f32(ctw_load_u16(ring));
    uint32_t state = 0;
    for (int i = -16 / bits - 1; i < CTW_EXL3_GROUP; i++) {
        state = (state << bits | ctw_exl3_table_code(ring + 2, bits, i)) & 0xffffu;
        if (i >= 0)
            v[i] = ctw_exl3_value(state, CTW_EXL3_MUL1) * scale;
    }
    CTW_ROLLED
    for (int half = 1; half < CTW_EXL3_GROUP; half *= 2)
        for (int i = 0; i < CTW_EXL3_GROUP; i++)
            if ((i & half) == 0) {
                const float a = v[i], b = v[i + half];
                v[i] = a + b;
                v[i + half] = a - b;
            }
}

CTW_HD void ctw_exl3_table_decode(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                  int64_t row, int64_t col0, int64_t n_col, float *dst)
{
    const int64_t words = CTW_EXL3_GROUP / 16 * w->bits + 1;
    const uint8_t *rings =
        (const uint8_t *)data->part[CTW_PART_VALUES] + row * (int64_t)w->row_bytes;
    float v[CTW_EXL3_GROUP];
    for (int64_t c = 0; c < n_col; c += CTW_EXL3_GROUP) {
        ctw_exl3_table_group(rings + (col0 + c) / CTW_EXL3_GROUP * words * 2, w->bits, v);
        for (int64_t i = 0; i < CTW_EXL3_GROUP && c + i < n_col; i++)
            dst[c + i] = ctw_round_float(
                v[i] * 0.0625f * ctw_load_float(data->part[CTW_PART_SIGNS], CTW_F16, col0 + c + i),
                CTW_F16);
    }
}

#endif
