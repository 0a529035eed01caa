/* Pack-quantized weights in activation order, where each column names its group. */
#include "kernels/cuda/decode_pack.cuh"

/* A block of pack_indexed has QUADS times QUAD rows. */
enum { QUAD = 4, QUADS = 2, BLOCK_ROWS = QUADS * QUAD, TABLE_THREADS = 256 };
static_assert(MAX_BLOCK_ROWS % BLOCK_ROWS == 0, "for plane_at()");

/* What pack_indexed may have in shared memory, and with copies: for 5 blocks at a time and a cache
 * beside them. */
enum { TABLE_BYTES = 48 << 10, COPIES_BYTES = 31 << 10 };

/* A unit of QUAD rows (of which `rows` are to be stored) to dst; every copies-th of `scales` is one
 * group's. */
template <int BITS, typename T>
static __device__ __forceinline__ void
indexed_quad(const uint32_t (&word)[QUAD][WORDS<BITS>], const struct unit_words &at, bool whole,
             const uint32_t (&group)[8], const uint4 *scales, uint32_t copies, T *dst, uint32_t k,
             uint32_t rows)
{
    uint32_t pair[QUAD][4];
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        unit_pairs<BITS, T>(word[i], at, whole, pair[i]);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint4 of0 = scales[group[2 * c] * copies], of1 = scales[group[2 * c + 1] * copies];
        const uint32_t first[QUAD] = {of0.x, of0.y, of0.z, of0.w};
        const uint32_t second[QUAD] = {of1.x, of1.y, of1.z, of1.w};
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            pair[i][c] = pair_value<T>(pair[i][c], lower(first[i], second[i]),
                                       upper(first[i], second[i]));
    }
#pragma unroll
    for (uint32_t i = 0; i < QUAD; i++)
        if (i < rows)
            store16((uint4 *)(dst + (uint64_t)i * k),
                    make_uint4(pair[i][0], pair[i][1], pair[i][2], pair[i][3]));
}

/* What a thread loads of a unit of BLOCK_ROWS rows. */
template <int BITS> struct indexed_unit {
    uint32_t word[QUADS][QUAD][WORDS<BITS>], group[8];
};

template <int BITS>
static __device__ __forceinline__ void load_unit(const struct source &s, uint32_t unit,
                                                 const uint32_t (&row)[BLOCK_ROWS],
                                                 struct indexed_unit<BITS> &u)
{
    const struct unit_words at = words_of<BITS>(unit, s.w.whole_codes);
    const uint4 *index = (const uint4 *)s.data.part[CTW_PART_GROUP_INDEX] + unit * 2;
    const uint4 both[2] = {index[0], index[1]};
    memcpy(u.group, both, sizeof(both));
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS; i++)
        load_words<BITS>(s, row[i], at, u.word[i / QUAD][i % QUAD]);
}

/* table [QUADS][n_groups][copies]: of a group, for each of QUAD rows, a word: the scale above, the zero
 * point below. */
template <int BITS, typename T>
static __device__ __forceinline__ void fill_table(const struct plane &p, const struct source &s,
                                                  uint32_t r0, uint4 *table, uint32_t copies)
{
    uint32_t n_groups = (uint32_t)s.w.n_groups;
    for (uint32_t i = threadIdx.x; i < QUADS * n_groups; i += TABLE_THREADS) {
        uint32_t g = i < n_groups ? i : i - n_groups, row[QUAD];
        static_assert(QUADS == 2, "one subtraction");
        const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + g;
        T scale[QUAD];
        int32_t zero[QUAD];
        uint32_t both[QUAD];
        plane_rows(p, i < n_groups ? r0 : r0 + QUAD, row);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            scale[k] = scales[(uint64_t)row[k] * (uint32_t)s.w.scale_stride];
        pack_zeros<BITS>(s, row, g, zero);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            both[k] = bits_of(scale[k]) << 16 | integer_bits<T>(zero[k]);
#pragma unroll 1
        for (uint32_t c = 0; c < copies; c++) /* neighbours to banks of their own */
            table[i * copies + ((c + i) & (copies - 1))] =
                make_uint4(both[0], both[1], both[2], both[3]);
    }
}

/*
 * A block has block_units units of BLOCK_ROWS rows, and a table of these rows' scales and zero points:
 * a column takes 16 bytes of it, for QUAD rows, in one load; the columns' groups are read once for all
 * the rows. Of such loads the 8 lanes that are served at a time would meet in some of the 8 places that
 * banks have for 16 bytes. So the table is there `copies` (1, 2, 4 or 8) times, interleaved: each lane
 * has its own, and with 8 none meet.
 */
template <int BITS, typename T>
__global__ void __launch_bounds__(TABLE_THREADS, BITS == 3 || BITS == 8 ? 4 : 5)
    pack_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
                 uint32_t block_units, uint32_t copies)
{
    extern __shared__ uint4 table[];
    uint32_t r0 = plane_row0(BLOCK_ROWS), unit = blockIdx.x * block_units + threadIdx.x;
    uint32_t end = (blockIdx.x + 1) * block_units < p.units ? (blockIdx.x + 1) * block_units : p.units;
    uint32_t row[BLOCK_ROWS];
    struct indexed_unit<BITS> u;
    if (r0 >= p.n_rows)
        return;
    plane_rows(p, r0, row);
    if (unit < end) /* on their way while the table is filled */
        load_unit<BITS>(s, unit, row, u);
    fill_table<BITS, T>(p, s, r0, table, copies);
    __syncthreads();
#pragma unroll 1
    while (unit < end) {
        const uint4 *scales = table + (threadIdx.x & (copies - 1));
        T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
#pragma unroll 1
        for (uint32_t r = r0; r < r0 + BLOCK_ROWS && r < p.n_rows; r += QUAD) {
            indexed_quad<BITS>(u.word[0], words_of<BITS>(unit, s.w.whole_codes), s.w.whole_codes, u.group,
                               scales, copies, dst, p.k, p.n_rows - r);
            scales += (uint32_t)s.w.n_groups * copies;
            dst += (uint64_t)p.k * QUAD;
#pragma unroll
            for (int q = 1; q < QUADS; q++)
                memcpy(u.word[q - 1], u.word[q], sizeof(u.word[q]));
        }
        unit += TABLE_THREADS;
        if (unit < end)
            load_unit<BITS>(s, unit, row, u);
    }
}

/* ---- choosing ----------------------------------------------------------------------------- */

/* A thread decodes one unit, which makes the most blocks, or two, so that filling a large table costs
 * less; measured. */
template <int BITS, typename T>
static void launch(cudaStream_t stream, struct plane *p, const struct source *s)
{
    uint32_t n_groups = (uint32_t)s->w.n_groups;
    uint32_t block_units = (n_groups <= (BITS == 3 ? 64 : 128) ? 1 : 2) * TABLE_THREADS;
    const dim3 blocks = plane_cut(p, 8, block_units, BLOCK_ROWS);
    size_t bytes = QUADS * n_groups * sizeof(uint4);
    uint32_t copies = 8;
    while (copies > 1 && copies * bytes > COPIES_BYTES)
        copies /= 2;
    pack_indexed<BITS, T><<<blocks, TABLE_THREADS, copies * bytes, stream>>>(*p, *s, block_units, copies);
}

bool ctw_cuda_decode_indexed(cudaStream_t stream, struct plane *p, const struct source *s)
{
    if (!is_aligned(s->data.part[CTW_PART_GROUP_INDEX], 16) ||
        (uint64_t)s->w.n_groups * QUADS * sizeof(uint4) > TABLE_BYTES)
        return false;
#define CASE(bits)                                                                                       \
    case bits:                                                                                           \
        if (s->w.dtype == CTW_BF16)                                                                      \
            launch<bits, __nv_bfloat16>(stream, p, s);                                                   \
        else                                                                                             \
            launch<bits, __half>(stream, p, s);                                                          \
        return true;
    switch (s->w.bits) { /* the widths that are found in activation order */
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(8)
    default:
        return false;
    }
#undef CASE
}
