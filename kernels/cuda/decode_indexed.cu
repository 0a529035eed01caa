/* Pack-quantized weights in activation order, where each column names its group. */
#include "kernels/cuda/decode_pack.cuh"

/* A block of pack_indexed has QUADS times QUAD rows. */
enum { QUAD = 4, QUADS = 2, BLOCK_ROWS = QUADS * QUAD, TABLE_THREADS = 256 };
static_assert(MAX_BLOCK_ROWS % BLOCK_ROWS == 0, "for plane_at()");

/* Of a group, for QUAD rows: with zero points a word each, the scale above, the zero point below;
 * else scales alone, two in a word. */
template <bool ZEROS> struct entry_type {
    typedef uint4 type;
};
template <> struct entry_type<false> {
    typedef uint2 type;
};
template <bool ZEROS> using entry = typename entry_type<ZEROS>::type;

/* A unit of QUAD rows (of which `rows` are to be stored) to dst; every copies-th of `table` is one
 * group's. */
template <int BITS, typename T, bool ZEROS>
static __device__ __forceinline__ void
indexed_quad(const uint32_t (&word)[QUAD][WORDS<BITS>], const struct unit_words &at, bool whole,
             const uint32_t (&group)[8], const entry<ZEROS> *table, uint32_t copies, T *dst,
             uint32_t k, uint32_t rows)
{
    uint32_t pair[QUAD][4];
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        unit_pairs<BITS, T, ZEROS ? 0 : 1 << (BITS - 1)>(word[i], at, whole, pair[i]);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const entry<ZEROS> of0 = table[group[2 * c] * copies],
                           of1 = table[group[2 * c + 1] * copies];
        if constexpr (ZEROS) {
            const uint32_t first[QUAD] = {of0.x, of0.y, of0.z, of0.w};
            const uint32_t second[QUAD] = {of1.x, of1.y, of1.z, of1.w};
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                pair[i][c] = pair_value<T>(pair[i][c], lower(first[i], second[i]),
                                           upper(first[i], second[i]));
        } else {
            pair[0][c] = pair_times<T>(pair[0][c], lower(of0.x, of1.x));
            pair[1][c] = pair_times<T>(pair[1][c], upper(of0.x, of1.x));
            pair[2][c] = pair_times<T>(pair[2][c], lower(of0.y, of1.y));
            pair[3][c] = pair_times<T>(pair[3][c], upper(of0.y, of1.y));
        }
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

template <bool ZEROS>
static __device__ __forceinline__ void put_entry(entry<ZEROS> *table, uint32_t i, uint32_t copies,
                                                 entry<ZEROS> e)
{
#pragma unroll 1
    for (uint32_t c = 0; c < copies; c++) /* neighbours to banks of their own */
        table[i * copies + ((c + i) & (copies - 1))] = e;
}

/* table [QUADS][n_groups][copies]. Without zero points a thread makes a group's entries of all
 * rows, so that its loads are on their way together. */
template <int BITS, typename T, bool ZEROS>
static __device__ __forceinline__ void fill_table(const struct plane &p, const struct source &s,
                                                  uint32_t r0, entry<ZEROS> *table, uint32_t copies)
{
    constexpr uint32_t N = ZEROS ? QUAD : BLOCK_ROWS;
    uint32_t n_groups = (uint32_t)s.w.n_groups;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n_groups * (BLOCK_ROWS / N); i += TABLE_THREADS) {
        static_assert(QUADS == 2, "one subtraction");
        uint32_t g = i < n_groups ? i : i - n_groups, row[N], scale[N];
        const T *scales = (const T *)s.data.part[CTW_PART_SCALE] + g;
        plane_rows(p, i < n_groups ? r0 : r0 + QUAD, row);
#pragma unroll
        for (int k = 0; k < N; k++)
            scale[k] = bits_of(scales[(uint64_t)row[k] * (uint32_t)s.w.scale_stride]);
        if constexpr (ZEROS) {
            int32_t zero[N];
            pack_zeros<BITS>(s, row, g, zero);
#pragma unroll
            for (int k = 0; k < N; k++)
                scale[k] = scale[k] << 16 | integer_bits<T>(zero[k]);
            put_entry<ZEROS>(table, i, copies, make_uint4(scale[0], scale[1], scale[2], scale[3]));
        } else {
#pragma unroll
            for (int k = 0; k < N; k += QUAD)
                put_entry<ZEROS>(
                    table, k / QUAD * n_groups + g, copies,
                    make_uint2(lower(scale[k], scale[k + 1]), lower(scale[k + 2], scale[k + 3])));
        }
    }
}

/* Blocks at a time, for which registers suffice. */
template <int BITS, bool ZEROS> constexpr int BLOCKS = BITS == 3 || (BITS == 8 && ZEROS) ? 4 : 5;

/*
 * A block has block_units units of BLOCK_ROWS rows, and a table of these rows' scales and zero
 * points: a column takes an entry of it, for QUAD rows, in one load; the columns' groups are read
 * once for all the rows. Of such loads the lanes that are served at a time would meet in some of
 * the places that banks have for entries. So the table is there `copies` times (a power of 2, at
 * most as often as there are such places), interleaved: each lane has its own, and with the most
 * none meet.
 */
template <int BITS, typename T, bool ZEROS>
__global__ void __launch_bounds__(TABLE_THREADS, (BLOCKS<BITS, ZEROS>))
    pack_indexed(const __grid_constant__ struct plane p, const __grid_constant__ struct source s,
                 uint32_t block_units, uint32_t copies)
{
    extern __shared__ uint4 shared[];
    entry<ZEROS> *table = (entry<ZEROS> *)shared;
    uint32_t r0 = plane_row0(BLOCK_ROWS), unit = blockIdx.x * block_units + threadIdx.x;
    uint32_t end =
        (blockIdx.x + 1) * block_units < p.units ? (blockIdx.x + 1) * block_units : p.units;
    uint32_t row[BLOCK_ROWS];
    struct indexed_unit<BITS> u;
    if (r0 >= p.n_rows)
        return;
    plane_rows(p, r0, row);
    if (unit < end) /* on their way while the table is filled */
        load_unit<BITS>(s, unit, row, u);
    fill_table<BITS, T, ZEROS>(p, s, r0, table, copies);
    __syncthreads();
#pragma unroll 1
    while (unit < end) {
        const entry<ZEROS> *quad = table + (threadIdx.x & (copies - 1));
        T *dst = (T *)p.dst + plane_at(p, r0) + unit * 8;
#pragma unroll 1
        for (uint32_t r = r0; r < r0 + BLOCK_ROWS && r < p.n_rows; r += QUAD) {
            indexed_quad<BITS, T, ZEROS>(u.word[0], words_of<BITS>(unit, s.w.whole_codes),
                                         s.w.whole_codes, u.group, quad, copies, dst, p.k,
                                         p.n_rows - r);
            quad += (uint32_t)s.w.n_groups * copies;
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

/* What a table may take of shared memory. */
enum { TABLE_BYTES = 48 << 10 };

/* How many units a thread decodes, and what a table may take with its copies (0: there is one).
 * One unit makes the most blocks; filling a table of many groups costs less for two, or of one
 * copy. Measured with 32 to 449 groups. */
template <int BITS, bool ZEROS>
static void cut_work(uint32_t n_groups, uint32_t *thread_units, uint32_t *copies_bytes)
{
    *thread_units = ZEROS && n_groups > (BITS == 3 ? 64 : 128) ? 2 : 1;
    *copies_bytes = ZEROS || n_groups <= 256 ? 31 << 10 : 0;
}

template <int BITS, typename T, bool ZEROS>
static bool launch(cudaStream_t stream, struct plane *p, const struct source *s)
{
    size_t bytes = QUADS * (size_t)s->w.n_groups * sizeof(entry<ZEROS>);
    uint32_t copies = 128 / sizeof(entry<ZEROS>), thread_units, copies_bytes;
    if (bytes > TABLE_BYTES)
        return false;
    cut_work<BITS, ZEROS>((uint32_t)s->w.n_groups, &thread_units, &copies_bytes);
    while (copies > 1 && copies * bytes > copies_bytes)
        copies /= 2;
    uint32_t block_units = thread_units * TABLE_THREADS;
    const dim3 blocks = plane_cut(p, 8, block_units, BLOCK_ROWS);
    pack_indexed<BITS, T, ZEROS>
        <<<blocks, TABLE_THREADS, copies * bytes, stream>>>(*p, *s, block_units, copies);
    return true;
}

bool ctw_cuda_decode_indexed(cudaStream_t stream, struct plane *p, const struct source *s)
{
    if (!is_aligned(s->data.part[CTW_PART_GROUP_INDEX], 16))
        return false;
#define LAUNCH(bits, T)                                                                            \
    return s->w.symmetric ? launch<bits, T, false>(stream, p, s)                                   \
                          : launch<bits, T, true>(stream, p, s)
#define CASE(bits)                                                                                 \
    case bits:                                                                                     \
        if (s->w.dtype == CTW_BF16)                                                                \
            LAUNCH(bits, __nv_bfloat16);                                                           \
        LAUNCH(bits, __half);
    switch (s->w.bits) { /* the widths that are found in activation order */
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(8)
    default:
        return false;
    }
#undef CASE
#undef LAUNCH
}
