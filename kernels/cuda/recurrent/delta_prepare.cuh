/*
 * The part of delta_chunks.cu that does not need the state: a group of four warps loads a chunk and
 * makes its T and P, while another group does so for the next chunk, and the others compute the one
 * before.
 *
 * With the logarithms g of decays from the chunk's border on, and q, k of unit length:
 *     A[i, j] = beta[i] exp(g[i] - g[j]) k[i] k[j], j < i       T = (I + A)^-1
 *     P[i, j] = exp(g[i] - g[j]) q[i] k[j] / sqrt(key), j <= i
 * Products have q and k as they are; their lengths are in the factors of the rows and columns. No
 * element of row i depends on a later token.
 */
#ifndef CTW_KERNELS_CUDA_DELTA_PREPARE_CUH
#define CTW_KERNELS_CUDA_DELTA_PREPARE_CUH

#include "kernels/cuda/recurrent/delta_load.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of a group. */
CTW_DEV void producers_sync(int group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); /* PRODUCERS */
}

/* ---- products of keys and queries ---------------------------------------------------------- */

enum { BLOCKS = 5 }; /* of 16 x 16 elements, of a warp's share of k k^T and q k^T */

/* Of block number b of a warp: warp + 1 blocks are of row `warp` of k k^T, the others of row
 * 3 - warp of q k^T. */
struct block {
    bool of_k;
    int row, column;
};

CTW_DEV struct block block_of(int warp, int b)
{
    const bool of_k = b <= warp;
    return (struct block){of_k, of_k ? warp : 3 - warp, of_k ? b : b - warp - 1};
}

/* dots: of the warp's blocks, then of q and q of its rows `warp`. */
template <typename T>
CTW_DEV void multiply_keys(const struct shared<T> &s, int stage, int warp,
                           float (&dots)[BLOCKS + 1][2][4])
{
    const uint32_t q = shared_address(s.q[stage]), k = shared_address(s.k[stage]);
    uint32_t left[BLOCKS + 1], right[BLOCKS + 1];
#pragma unroll
    for (int b = 0; b <= BLOCKS; b++) {
        const struct block at = block_of(warp, b);
        left[b] = tile_rows<KEY>(at.of_k ? k : q, 16 * at.row, 0);
        right[b] = tile_columns<KEY>(k, 16 * at.column, 0);
        if (b == BLOCKS) {
            left[b] = tile_rows<KEY>(q, 16 * warp, 0);
            right[b] = tile_columns<KEY>(q, 16 * warp, 0);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            dots[b][i / 4][i % 4] = 0;
    }
#pragma unroll
    for (int i = 0; i < KEY / 16; i++)
#pragma unroll
        for (int b = 0; b <= BLOCKS; b++) {
            uint32_t l[4], r[4];
            load_4(l, left[b] ^ (uint32_t)(i << 5));
            load_4(r, right[b] ^ (uint32_t)(i << 5));
            product<T>(dots[b][0], l, r[0], r[1]);
            product<T>(dots[b][1], l, r[2], r[3]);
        }
}

/* Row and column, in a block of 16 x 16, of element e of a lane's half h. */
CTW_DEV int row_in(int e)
{
    return threadIdx.x % 32 / 4 + e / 2 * 8;
}

CTW_DEV int column_in(int half, int e)
{
    return 8 * half + 2 * (threadIdx.x % 4) + e % 2;
}

/*
 * The lengths are on the diagonals: of k, in the warp's block `warp`; of q, in the last. Of a
 * block's diagonal, a lane has elements of rows lane / 4 and 8 further down, or none.
 */
CTW_DEV void store_lengths(struct preparation &p, int warp, int key,
                           const float (&dots)[BLOCKS + 1][2][4])
{
    const int row = threadIdx.x % 32 / 4;
    if (row / 2 != threadIdx.x % 4)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = 16 * warp + row + 8 * half, e = 2 * half;
        float k = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS - 1; b++)
            if (b == warp)
                k = row % 2 == 0 ? dots[b][half][e] : dots[b][half][e + 1];
        const float q = row % 2 == 0 ? dots[BLOCKS][half][e] : dots[BLOCKS][half][e + 1];
        p.unit_k[t] = 1.0f / sqrtf(k + 1e-6f);
        p.unit_q[t] = 1.0f / sqrtf(q + 1e-6f) / sqrtf((float)key);
    }
}

CTW_DEV float decay_between(const struct preparation &p, int from, int to)
{
    return exp2f((p.log_high[to] - p.log_high[from]) + (p.log_low[to] - p.log_low[from]));
}

CTW_DEV void store_factors(const struct preparation &p, int t, struct factors &f)
{
    const float decay = exp2f(p.log_high[t] + p.log_low[t]);
    f.beta[t] = p.beta[t];
    f.read[t] = decay * p.unit_k[t];
    f.out[t] = decay * p.unit_q[t];
    f.add[t] = decay_between(p, t, CHUNK - 1) * p.unit_k[t];
    if (t == CHUNK - 1)
        f.last = decay;
}

/* Two rows of a lane, 8 apart: factors, and logarithms as in struct shared. */
struct rows {
    float factor[2], high[2], low[2];
};

CTW_DEV struct rows rows_of(const struct preparation &p, int row, bool of_k)
{
    struct rows r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = row + threadIdx.x % 32 / 4 + 8 * i;
        r.factor[i] = of_k ? p.beta[t] * p.unit_k[t] : p.unit_q[t];
        r.high[i] = p.log_high[t];
        r.low[i] = p.log_low[t];
    }
    return r;
}

/* of[a lane's columns in half h of a block from `column` on] */
CTW_DEV float2 columns_at(const float *of, int column, int h)
{
    return *(const float2 *)(of + column + 8 * h + 2 * (threadIdx.x % 4));
}

/* Stores a block [16, 16] of a matrix in two parts. */
template <typename T>
CTW_DEV void store_block(T *high, int row, int column, const float (&x)[2][4])
{
    struct halves h;
    split_tile<T>(x[0], x[1], h);
    store_4(tile_rows<CHUNK>(shared_address(high), row, column), h.high);
    store_4(tile_rows<CHUNK>(shared_address(high + CHUNK * CHUNK), row, column), h.low);
}

/* A block below the diagonal: decays are products of those to the end of the block's columns, and
 * from there. */
template <typename T>
CTW_DEV void store_lower(const struct preparation &p, T *high, int row, int column,
                         const struct rows &r, const float (&dots)[2][4])
{
    const float end_high = p.log_high[column + 15], end_low = p.log_low[column + 15];
    float by[2], x[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
        by[i] = r.factor[i] * exp2f((r.high[i] - end_high) + (r.low[i] - end_low));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float2 unit = columns_at(p.unit_k, column, h);
        const float2 end = columns_at(p.to_end, column, h);
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[h][e] = by[e / 2] * (e % 2 == 0 ? unit.x * end.x : unit.y * end.y) * dots[h][e];
    }
    store_block(high, row, column, x);
}

/* A block on the diagonal, in place; strict: 0 on the diagonal, too. */
CTW_DEV void scale_diagonal(const struct preparation &p, int at, const struct rows &r, bool strict,
                            float (&dots)[2][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float2 unit = columns_at(p.unit_k, at, h);
        const float2 high = columns_at(p.log_high, at, h), low = columns_at(p.log_low, at, h);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const bool odd = e % 2 == 1;
            const float decay = exp2f((r.high[e / 2] - (odd ? high.y : high.x)) +
                                      (r.low[e / 2] - (odd ? low.y : low.x)));
            const int over = column_in(h, e) - row_in(e);
            dots[h][e] = over > 0 || (strict && over == 0)
                             ? 0.0f
                             : r.factor[e / 2] * (odd ? unit.y : unit.x) * decay * dots[h][e];
        }
    }
}

/* The warp's blocks of A and P, from products. Blocks of A's diagonal go to p.diagonal, the others
 * where T's will be. */
template <typename T>
CTW_DEV void store_blocks(struct shared<T> &s, struct preparation &p, int ready, int warp,
                          float (&dots)[BLOCKS + 1][2][4])
{
    const struct rows of_k = rows_of(p, 16 * warp, true), of_q = rows_of(p, 48 - 16 * warp, false);
    float diagonal[2][4];
#pragma unroll
    for (int b = 0; b < BLOCKS - 1; b++) {
        if (b == warp) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                diagonal[e / 4][e % 4] = dots[b][e / 4][e % 4];
        } else if (b < warp) {
            store_lower(p, s.matrix[ready][T_HIGH], 16 * warp, 16 * b, of_k, dots[b]);
        } else {
            store_lower(p, s.matrix[ready][P_HIGH], 48 - 16 * warp, 16 * (b - warp - 1), of_q,
                        dots[b]);
        }
    }
    scale_diagonal(p, 16 * warp, of_k, true, diagonal);
#pragma unroll
    for (int e = 0; e < 8; e++)
        p.diagonal[warp][column_in(e / 4, e % 4)][row_in(e % 4)] = diagonal[e / 4][e % 4];
    scale_diagonal(p, 48 - 16 * warp, of_q, false, dots[BLOCKS - 1]);
    store_block(s.matrix[ready][P_HIGH], 48 - 16 * warp, 48 - 16 * warp, dots[BLOCKS - 1]);
}

/* ---- the inverse --------------------------------------------------------------------------- */

/* T's diagonal block of the warp, column by column: lanes 16 apart have the same column. */
template <typename T>
CTW_DEV void invert_diagonal(struct shared<T> &s, const struct preparation &p, int ready, int warp)
{
    const int lane = threadIdx.x % 32, column = lane % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 15; j++) {
        float a[16];
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < 16; i += 4)
            *(float4 *)(a + i) = *(const float4 *)&p.diagonal[warp][j][i];
#pragma unroll
        for (int i = j + 1; i < 16; i++)
            x[i] = fmaf(-a[i], x[j], x[i]);
    }
    char *to = (char *)(s.matrix[ready][lane < 16 ? T_HIGH : T_LOW] + 16 * warp * CHUNK);
    const uint32_t at = tile_at<CHUNK>(0, 2 * warp + column / 8) + column % 8 * sizeof(T);
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        uint32_t high, low;
        T pair[2];
        split<T>(x[i], x[i + 1], high, low);
        memcpy(pair, lane < 16 ? &high : &low, sizeof(pair));
#pragma unroll
        for (int j = i; j < i + 2; j++)
            *(T *)(to + (at ^ (uint32_t)((j & 7) << 4)) + j * CHUNK * sizeof(T)) = pair[j - i];
    }
}

/* Sums of products of two operands in parts: of both first parts, and of a first and a second. */
struct sums {
    float first[2][4], left[2][4], right[2][4];
};

template <typename T>
CTW_DEV void add_product(struct sums &x, const struct halves &a, uint32_t high, uint32_t low)
{
    uint32_t b[4], c[4];
    load_4(b, high);
    load_4(c, low);
    product<T>(x.first[0], a.high, b[0], b[1]);
    product<T>(x.first[1], a.high, b[2], b[3]);
    product<T>(x.left[0], a.low, b[0], b[1]);
    product<T>(x.left[1], a.low, b[2], b[3]);
    product<T>(x.right[0], a.high, c[0], c[1]);
    product<T>(x.right[1], a.high, c[2], c[3]);
}

template <typename T> CTW_DEV void split_sums(const struct sums &x, float sign, struct halves &h)
{
    float all[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        all[i / 4][i % 4] = sign * (x.first[i / 4][i % 4] +
                                    (x.left[i / 4][i % 4] + x.right[i / 4][i % 4]));
    split_tile<T>(all[0], all[1], h);
}

/* T's blocks below the diagonal in the warp's column of blocks, transposed: T[i, j] = - T[i, i]
 * (sum over l of A[i, l] T[l, j]). */
template <typename T>
CTW_DEV void invert_column(const struct shared<T> &s, int ready, int warp, struct halves (&t)[4])
{
    const uint32_t high = shared_address(s.matrix[ready][T_HIGH]);
    const uint32_t low = shared_address(s.matrix[ready][T_LOW]);
    load_4_transposed(t[0].high, tile_columns<CHUNK>(high, 16 * warp, 16 * warp));
    load_4_transposed(t[0].low, tile_columns<CHUNK>(low, 16 * warp, 16 * warp));
#pragma unroll
    for (int d = 1; d < 4; d++) {
        if (warp + d > 3)
            break;
        const int row = 16 * (warp + d);
        struct sums sum = {}, x = {};
        struct halves h;
#pragma unroll
        for (int l = 0; l < d; l++)
            add_product<T>(sum, t[l], tile_columns<CHUNK>(high, row, 16 * (warp + l)),
                           tile_columns<CHUNK>(low, row, 16 * (warp + l)));
        split_sums<T>(sum, 1.0f, h);
        add_product<T>(x, h, tile_columns<CHUNK>(high, row, row),
                       tile_columns<CHUNK>(low, row, row));
        split_sums<T>(x, -1.0f, t[d]);
    }
}

template <typename T>
CTW_DEV void store_column(struct shared<T> &s, int ready, int warp, const struct halves (&t)[4])
{
#pragma unroll
    for (int d = 1; d < 4; d++) {
        if (warp + d > 3)
            break;
        const int row = 16 * (warp + d), column = 16 * warp;
        T *high = s.matrix[ready][T_HIGH], *low = s.matrix[ready][T_LOW];
        store_4_transposed(tile_columns<CHUNK>(shared_address(high), row, column), t[d].high);
        store_4_transposed(tile_columns<CHUNK>(shared_address(low), row, column), t[d].low);
    }
}

/* ---- together ------------------------------------------------------------------------------ */

/* The n-th of the block's chunks after `from`. */
CTW_DEV void next_chunk(const struct ctw_cuda_delta &a, const struct place &from, int n,
                        struct place &to)
{
    to = from;
    for (int i = 0; i < n && to.is_there; i++)
        if (++to.chunk >= to.work.to) {
            to.is_there = next_unit(a, to.steps, to.work);
            to.chunk = to.work.from;
        }
}

/* The last two warps of a group, which have the least to invert, prepare beta and decays. */
template <typename T>
CTW_DEV void load_own_gates(const struct ctw_op_delta &op, const struct place &at, int warp,
                            struct gates<T> &g)
{
    if (warp < 2 || !at.is_there)
        return;
    load_gates<T>(op, at.work, at.chunk, warp - 2, g.of);
    if (warp == 3 && g.head != at.work.head) {
        g.head = at.work.head;
        g.a_log = ctw_cuda_number(op.a_log, op.a_log_dtype, g.head);
        g.dt_bias = ctw_cuda_number(op.dt_bias, op.dt_bias_dtype, g.head);
    }
}

template <typename T>
CTW_DEV void store_own_gates(const struct ctw_op_delta &op, const struct place &at, int warp,
                             const struct gates<T> &g, struct preparation &p)
{
    if (warp == 2 && at.is_there)
        store_betas<T>(op, g.of, p);
    else if (warp == 3 && at.is_there)
        sum_decays<T>(op, g, at.work.n_tok - (int64_t)at.chunk * CHUNK, p);
}

/* T and P of the group's chunk number c of the block, and its factors. */
template <typename T>
CTW_DEV void prepare_chunk(const struct ctw_op_delta &op, struct shared<T> &s,
                           struct preparation &p, int group, int c, const struct place &next,
                           struct gates<T> &gates)
{
    const int thread = threadIdx.x % PRODUCERS, stage = c % LOADED;
    int warp = thread / 32;
    asm volatile("" : "+r"(warp)); /* addresses kept for all chunks would take registers */
    float dots[BLOCKS + 1][2][4];
    struct halves t[4];
    barrier_wait(shared_address(&s.loaded[stage]), (uint32_t)(c / LOADED & 1));
    multiply_keys<T>(s, stage, warp, dots);
    store_lengths(p, warp, op.key, dots);
    producers_sync(group);
    load_own_gates<T>(op, next, warp, gates);
    barrier_wait(shared_address(&s.done[group]), (uint32_t)((c / READY & 1) ^ 1));
    if (thread < CHUNK)
        store_factors(p, thread, s.factors[group]);
    store_blocks<T>(s, p, group, warp, dots);
    __syncwarp();
    invert_diagonal<T>(s, p, group, warp);
    producers_sync(group);
    invert_column<T>(s, group, warp, t);
    store_own_gates<T>(op, next, warp, gates, p);
    producers_sync(group); /* the blocks of A have been read */
    store_column<T>(s, group, warp, t);
    barrier_arrive(shared_address(&s.ready[group]));
}

/* Groups take chunks in turn. Loads of a group's next chunk begin when the others have finished the
 * chunk before this one. */
template <typename T>
CTW_DEV void prepare_chunks(const struct ctw_cuda_delta &a, struct shared<T> &s, bool aligned)
{
    const int thread = threadIdx.x % PRODUCERS, group = (threadIdx.x - CONSUMERS) / PRODUCERS;
    struct preparation &p = s.preparation[group];
    struct gates<T> gates = {};
    gates.head = -1;
    if (thread == 0) {
        p.next[1] = (struct place){};
        p.next[1].steps = steps_of_block(a);
        p.next[1].is_there = true;
        next_chunk(a, p.next[1], group + 1, p.next[0]);
    }
    producers_sync(group);
    if (p.next[0].is_there)
        load_chunk<T>(a.op, p.next[0].work, p.next[0].chunk, group, s, aligned);
    load_own_gates<T>(a.op, p.next[0], thread / 32, gates);
    store_own_gates<T>(a.op, p.next[0], thread / 32, gates, p);
    for (int c = group, at = 0; p.next[at].is_there; c += GROUPS, at ^= 1) {
        const int ahead = (c + GROUPS) % LOADED;
        const struct place &next = p.next[at ^ 1];
        if (thread == 0)
            next_chunk(a, p.next[at], GROUPS, p.next[at ^ 1]);
        prepare_chunk<T>(a.op, s, p, group, c, next, gates);
        if (next.is_there) {
            barrier_wait(shared_address(&s.used[ahead]),
                         (uint32_t)(((c + GROUPS) / LOADED & 1) ^ 1));
            load_chunk<T>(a.op, next.work, next.chunk, ahead, s, aligned);
        }
    }
}

#endif
#endif
