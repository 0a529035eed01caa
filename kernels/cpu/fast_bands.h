/*
 * EXL3's blocks (kernels/formats/exl3/decode.h, which defines them) in vectors, and panels of rows
 * that are decoded in bands. Sums are vectors of VL columns, or inputs, with the definition's terms
 * in its order: the values are its bits.
 */
#ifndef CTW_KERNELS_CPU_FAST_BANDS_H
#define CTW_KERNELS_CPU_FAST_BANDS_H

enum { BAND = CTW_DECODE_BAND, EXL3_SUMS = 4 /* sums with neighbouring indices, at a time */ };

/* ---- codes -------------------------------------------------------------------------------- */

/* The values of eight states in the low halves of v >> shift. `codebook` is a constant. */
INLINE void exl3_values8(const int codebook, const uint32_t *v, int shift, float *dst)
{
    ctw_u32x8 x;
    ctw_f32x8 sum;
    memcpy(&x, v, sizeof(x));
    x = x >> shift & 0xffffu;
    if (codebook == CTW_EXL3_MUL1) {
        x *= CTW_EXL3_MUL1_FACTOR;
        x = (x & 0xff00ffu) + (x >> 8 & 0xff00ffu);
        x = (x & 0xffffu) + (x >> 16) + 1024u;
        sum = __builtin_convertvector((ctw_i32x8)x, ctw_f32x8) * 0x1.bb8p-8f - 10.3828125f;
    } else {
        x = codebook == CTW_EXL3_MCG ? x * CTW_EXL3_MCG_FACTOR : x * 89226354u + 64248484u;
        x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
        ctw_u32x8 low = ((x & 0x7fffu) << 13) + (112u << 23);
        ctw_u32x8 high = (x >> 3 & 0x0fffe000u) + (112u << 23);
        sum = (ctw_f32x8)(low | (x & 0x8000u) << 16) + (ctw_f32x8)(high | (x & 0x80000000u));
    }
    x = (ctw_u32x8)sum;
    x = (x + 0xfffu + (x >> 13 & 1u)) & ~0x1fffu;
    memcpy(dst, &x, sizeof(x));
}

/*
 * A tile's values: input i's of outputs 0 .. 7 to dst + i * VL, of outputs 8 .. 15 to
 * other + i * VL. Outputs j and j + 8 have codes 32 j .. 32 j + 31, which are `rate` half-words of
 * the stream: a code ends at the same bit of each output's.
 */
INLINE void exl3_tile(const int codebook, const uint8_t *stream, int rate, float *dst, float *other)
{
    uint32_t pair[16 * 8]; /* half-words i - 1 and i of output j's codes */
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < rate; i++) {
            int at = j * rate + i, before = at == 0 ? 8 * rate - 1 : at - 1;
            pair[8 * i + j] = (uint32_t)ctw_load_u16(stream + 2 * (before ^ 1)) << 16 |
                              ctw_load_u16(stream + 2 * (at ^ 1));
        }
    for (int t = 0; t < 32; t++) {
        const int end = (t + 1) * rate >> 1, i = (end - 1) / 16;
        float *to = (t & 4) != 0 ? other : dst;
        exl3_values8(codebook, pair + 8 * i, 16 * (i + 1) - end, to + ctw_exl3_input(t) * VL);
    }
}

/* The values of block (i, j) as panels of VL outputs: x[output / VL][input][output % VL]. */
INLINE void exl3_codes(const int codebook, const struct ctw_weight *w,
                       const struct ctw_weight_data *data, int64_t i, int64_t j, float *x)
{
    const int rate = ctw_exl3_rate(w), tiles = BAND / CTW_EXL3_TILE;
    for (int tile = 0; tile < tiles * tiles; tile++) {
        const int at_i = tile / tiles, at_j = tile % tiles, first = CTW_EXL3_TILE * at_j;
        float *to = x + first / VL * BAND * VL + CTW_EXL3_TILE * at_i * VL;
        exl3_tile(codebook, ctw_exl3_tile(w, data, i * tiles + at_i, j * tiles + at_j), rate, to,
                  VL > 8 ? to + 8 : to + BAND * VL);
    }
}

/* ---- rotations ---------------------------------------------------------------------------- */

/* Terms k .. k+3 of sums i .. i+3, and of i + k' ..: those of the opposite signs. */
INLINE void exl3_terms(vf sum[EXL3_SUMS], vf opposite[EXL3_SUMS], const float *x, vf plus, vf minus)
{
    UNROLL
    for (int k = 0; k < 4; k++) {
        vf v = vf_load(x + k * VL);
        UNROLL
        for (int i = 0; i < EXL3_SUMS; i++) {
            const bool is_minus = (i & k) == 1 || (i & k) == 2;
            sum[i] = vf_fma(is_minus ? minus : plus, v, sum[i]);
            if (opposite != NULL)
                opposite[i] = vf_fma(is_minus ? plus : minus, v, opposite[i]);
        }
    }
}

/* y[i] = RN16(RN16(sum over k of h[i][k] x[k]) * scale[i]); x and y are [BAND][VL]. */
static void exl3_rotate(const float *x, const float *scale, float *y)
{
    const vf c = vf_set1(CTW_EXL3_C), negative = vf_set1(-CTW_EXL3_C);
    vf sum[EXL3_SUMS], opposite[EXL3_SUMS];
    for (int i = 0; i < EXL3_SUMS; i++)
        sum[i] = vf_zero();
    exl3_terms(sum, NULL, x, c, negative);
    for (int i = 0; i < EXL3_SUMS; i++)
        vf_store(y + i * VL, sum[i]);
    for (int half = EXL3_SUMS; half < BAND; half *= 2)
        for (int i = 0; i < half; i += EXL3_SUMS) {
            UNROLL
            for (int r = 0; r < EXL3_SUMS; r++)
                sum[r] = opposite[r] = vf_load(y + (i + r) * VL);
            for (int k = half; k < 2 * half; k += 4) {
                bool is_minus = ctw_exl3_is_minus(i, k);
                exl3_terms(sum, opposite, x + k * VL, is_minus ? negative : c,
                           is_minus ? c : negative);
            }
            UNROLL
            for (int r = 0; r < EXL3_SUMS; r++) {
                vf_store(y + (i + r) * VL, sum[r]);
                vf_store(y + (i + half + r) * VL, opposite[r]);
            }
        }
    uint16_t half[VL];
    for (int i = 0; i < BAND; i++) {
        vf_store_f16(half, vf_load(y + i * VL));
        vf_store_f16(half, vf_mul(vf_load_f16(half), vf_set1(scale[i])));
        vf_store(y + i * VL, vf_load_f16(half));
    }
}

/* Rows row0 .. row1-1 of block (i, j), of its BAND columns, into dst [row1 - row0, ld]. */
static void exl3_block(const struct ctw_weight *w, const struct ctw_weight_data *data, int64_t i,
                       int64_t j, int64_t row0, int64_t row1, float *dst, int64_t ld)
{
    float x[BAND * BAND], turned[BAND * BAND], y[BAND * VL], scale[BAND];
    if (w->codebook == CTW_EXL3_MUL1)
        exl3_codes(CTW_EXL3_MUL1, w, data, i, j, x);
    else if (w->codebook == CTW_EXL3_MCG)
        exl3_codes(CTW_EXL3_MCG, w, data, i, j, x);
    else
        exl3_codes(CTW_EXL3_3INST, w, data, i, j, x);
    ctw_exl3_scales(w, data, CTW_PART_COLUMN_SCALE, i, scale);
    for (int c = 0; c < BAND; c += VL) {
        exl3_rotate(x + c * BAND, scale, y);
        for (int r = 0; r < BAND; r += VL) {
            vf part[VL];
            for (int m = 0; m < VL; m++)
                part[m] = vf_load(y + (r + m) * VL);
            vf_transpose(part);
            for (int m = 0; m < VL; m++)
                vf_store(turned + r * BAND + (c + m) * VL, part[m]);
        }
    }
    ctw_exl3_scales(w, data, CTW_PART_SCALE, j, scale);
    for (int c = 0; c < BAND; c += VL) {
        exl3_rotate(turned + c * BAND, scale, y);
        for (int64_t r = row0; r < row1; r++)
            vf_store(dst + (r - row0) * ld + c, vf_load(y + r * VL));
    }
}

/* ---- panels ------------------------------------------------------------------------------- */

/* At most BAND rows, row .. row+n_rows-1, of a weight as panels of NR rows, each [kw][NR]; of the
 * last panel, missing rows are zero. */
static void pack_bands(enum mode mode, float *panels, const struct ctw_shard *s, int64_t row,
                       int64_t n_rows, enum ctw_dtype dtype)
{
    const struct ctw_weight *w = s->weight;
    const int64_t kw = n_words(mode, w->k), end = row + n_rows;
    float block[BAND * BAND], words[NR * BAND];
    uint16_t half[BAND];
    for (int64_t c = 0; c < w->k; c += BAND) {
        const int64_t n = min64(BAND, w->k - c);
        for (int64_t r = row, last; r < end; r = last) {
            last = min64((r / BAND + 1) * BAND, end);
            exl3_block(w, s->data, c / BAND, r / BAND, r % BAND, r % BAND + last - r,
                       block + (r - row) * BAND, BAND);
        }
        for (int64_t r = 0; r < n_rows; r += NR) {
            memset(words, 0, sizeof(words));
            for (int64_t i = 0; i < min64(NR, n_rows - r); i++) {
                const float *values = block + (r + i) * BAND;
                if (mode == FLOATS && (dtype == CTW_F32 || dtype == w->dtype)) {
                    memcpy(words + i * BAND, values, (size_t)n * sizeof(*words));
                    continue;
                }
                narrow(half, dtype, values, n);
                to_words(mode, words + i * BAND, half, dtype, n);
            }
            pack_columns(panels + r * kw + n_words(mode, c) * NR, words, BAND, n_words(mode, n));
        }
    }
}

/* Decodes rows row0 .. row0+n_rows-1 of the concatenated shards, at most BAND, into panels of
 * NR rows. tmp: NR * SPAN floats. */
static void decode_panels(enum mode mode, float *panels, float *tmp, const struct ctw_shard *shards,
                          int64_t row0, int64_t n_rows, enum ctw_dtype dtype)
{
    const int64_t kw = n_words(mode, shards[0].weight->k);
    for (int64_t at = 0, n; at < n_rows; at += n) {
        const struct ctw_shard *s = shards;
        int64_t row = row0 + at;
        while (row >= s->n)
            row -= s++->n;
        n = min64(NR, n_rows - at);
        bool bands = s->weight->format->id == CTW_FORMAT_exl3 && ctw_shard_step(s) == 1;
        if (!bands || s->n - row < n) {
            decode_panel(mode, panels + at * kw, tmp, shards, row0 + at, n, dtype);
            continue;
        }
        int64_t left = min64(n_rows - at, s->n - row);
        n = left == n_rows - at ? left : left / NR * NR;
        pack_bands(mode, panels + at * kw, s, s->row0 + row, n, dtype);
    }
}

#endif
