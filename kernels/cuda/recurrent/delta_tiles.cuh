/* Shared memory of a block of delta_chunks.cu, and access to its tiles. */
#ifndef CTW_KERNELS_CUDA_DELTA_TILES_CUH
#define CTW_KERNELS_CUDA_DELTA_TILES_CUH

#include "kernels/cuda/ptx_hopper.h"
#include "kernels/cuda/ptx_mma.h"
#include "kernels/cuda/recurrent/delta_launch.h"

enum {
    CHUNK = CTW_DELTA_CHUNK,
    KEY = 128,   /* elements of a key head, with zeros behind `key` */
    VALUE = 128, /* columns of S that a block has */
    LOADED = 3,  /* chunks of q, k and v */
    READY = 2,   /* chunks of the matrices T and P */
    PRODUCERS = 128, /* of a group; groups prepare chunks in turn */
    GROUPS = READY,
    CONSUMERS = VALUE / 16 * 32,
    THREADS = CONSUMERS + GROUPS * PRODUCERS,
    PRODUCER_REGISTERS = 88, /* of a thread: 65536 in all */
    CONSUMER_REGISTERS = 168
};

/* Numbers that are sums of two of type T, the second at most half a unit of the first. */
enum { T_HIGH, T_LOW, P_HIGH, P_LOW, MATRICES };

/* Factors of a chunk's tokens, see delta_prepare.cuh. */
struct __align__(16) factors {
    float beta[CHUNK], read[CHUNK], out[CHUNK], add[CHUNK];
    float last;
};

/* Chunks from .. to - 1 of a unit: columns col0 .. of a value head of one part. */
struct work {
    int head, col0;
    int from, to, n_chunks; /* n_chunks: of the whole unit */
    int before, after;      /* the part's states; -1: none */
    int begun;              /* tokens of the first chunk that the state before has already */
    int64_t first;          /* the row of x of the part's first token */
    int64_t n_tok;          /* tokens of the unit, counted from the first chunk's border */
};

/*
 * The chunks of all units, unit after unit, are dealt to the blocks in equal shares. A block takes
 * the units of its share from the last to the first. If two blocks share a unit, the block with the
 * unit's beginning takes it first, and the block with the unit's end takes it last.
 */
struct steps {
    int begin, end; /* what is left of a block's share */
    int part, at;   /* the part that has step end - 1, or a later one, and its first step */
};

/* A chunk of a block's share. */
struct place {
    struct steps steps;
    struct work work;
    int chunk;
    bool is_there;
};

/* Of a group of producers: the diagonal blocks of A, transposed; logarithms of decays to base 2 from
 * the chunk's start, in two parts; the decay from a token to the end of its 16 tokens; 1 / the
 * lengths of k and q. */
struct __align__(16) preparation {
    float diagonal[CHUNK / 16][16][20];
    float log_high[CHUNK], log_low[CHUNK], to_end[CHUNK], beta[CHUNK], unit_k[CHUNK], unit_q[CHUNK];
    struct place next[2]; /* the group's chunk that is loaded, and its next chunk, in turn */
};

template <typename T> struct shared {
    T q[LOADED][CHUNK * KEY], k[LOADED][CHUNK * KEY], v[LOADED][CHUNK * VALUE];
    T matrix[READY][MATRICES][CHUNK * CHUNK];
    struct factors factors[READY];
    struct preparation preparation[GROUPS];
    uint64_t loaded[LOADED], used[LOADED], ready[READY], done[READY]; /* barriers */
};

CTW_HD int units_of(const struct ctw_op_delta *op)
{
    return op->n_value * ((op->value + VALUE - 1) / VALUE);
}

CTW_HD int chunks_of(const struct ctw_cuda_part *p)
{
    return (p->pos0 % CHUNK + p->n_tok + CHUNK - 1) / CHUNK;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

CTW_DEV struct steps steps_of_block(const struct ctw_cuda_delta &a)
{
    const int begin = (int)blockIdx.x * a.block_steps, end = begin + a.block_steps;
    const int last = a.parts.n - 1;
    return (struct steps){begin, end < a.n_steps ? end : a.n_steps, last,
                          a.n_steps - chunks_of(&a.parts.part[last]) * units_of(&a.op)};
}

/* The next of the block's units, or what the block has of it. */
CTW_DEV bool next_unit(const struct ctw_cuda_delta &a, struct steps &left, struct work &w)
{
    if (left.end <= left.begin)
        return false;
    while (left.end <= left.at)
        left.at -= chunks_of(&a.parts.part[--left.part]) * units_of(&a.op);
    const struct ctw_cuda_part &part = a.parts.part[left.part];
    w.before = part.before;
    w.after = part.after;
    w.begun = part.pos0 % CHUNK;
    w.first = part.row;
    w.n_tok = w.begun + part.n_tok;
    w.n_chunks = chunks_of(&part);
    const int blocks = (a.op.value + VALUE - 1) / VALUE;
    const int unit = (left.end - 1 - left.at) / w.n_chunks, at = left.at + unit * w.n_chunks;
    w.head = unit / blocks;
    w.col0 = unit % blocks * VALUE;
    w.from = left.begin > at ? left.begin - at : 0;
    w.to = left.end - at;
    left.end = at + w.from;
    return true;
}

/* The offset in bytes of 8 elements of a tile with rows of W elements. */
template <int W> CTW_DEV uint32_t tile_at(int row, int eighth)
{
    return (uint32_t)(row * W * 2 + ((eighth ^ (row & 7)) << 4));
}

/* Addresses for a lane's row of the four quarters of 16 x 16 elements, by columns first, or by
 * rows. The tile begins at a multiple of 256, row and column are multiples of 16. */
template <int W> CTW_DEV uint32_t tile_columns(uint32_t tile, int row, int column)
{
    const int lane = threadIdx.x % 32;
    return ((tile + tile_at<W>(lane % 8 + lane / 16 * 8, lane / 8 % 2)) ^ (uint32_t)(column * 2)) +
           (uint32_t)(row * W * 2);
}

template <int W> CTW_DEV uint32_t tile_rows(uint32_t tile, int row, int column)
{
    const int lane = threadIdx.x % 32;
    return ((tile + tile_at<W>(lane % 16, lane / 16)) ^ (uint32_t)(column * 2)) +
           (uint32_t)(row * W * 2);
}

CTW_DEV void store_4(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

CTW_DEV void store_4_transposed(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

template <typename T> CTW_DEV uint32_t pack(float a, float b)
{
    T both[2];
    uint32_t r;
    ctw_cuda_narrow2(a, b, both);
    memcpy(&r, both, sizeof(r));
    return r;
}

template <typename T> CTW_DEV float2 unpack(uint32_t r)
{
    T both[2];
    memcpy(both, &r, sizeof(r));
    return make_float2(ctw_cuda_widen(both[0]), ctw_cuda_widen(both[1]));
}

/* (a, b) = high + low, nearly. */
template <typename T> CTW_DEV void split(float a, float b, uint32_t &high, uint32_t &low)
{
    high = pack<T>(a, b);
    const float2 rounded = unpack<T>(high);
    low = pack<T>(a - rounded.x, b - rounded.y);
}

/* An operand [16, 16] in two parts. */
struct halves {
    uint32_t high[4], low[4];
};

template <typename T>
CTW_DEV void split_tile(const float (&left)[4], const float (&right)[4], struct halves &h)
{
    split<T>(left[0], left[1], h.high[0], h.low[0]);
    split<T>(left[2], left[3], h.high[1], h.low[1]);
    split<T>(right[0], right[1], h.high[2], h.low[2]);
    split<T>(right[2], right[3], h.high[3], h.low[3]);
}

/* left, right [16, 8] += a [16, 16] b, b [16, 16] in parts at these addresses. */
template <typename T>
CTW_DEV void product_of_halves(float (&left)[4], float (&right)[4], const struct halves &a,
                               uint32_t high, uint32_t low)
{
    uint32_t b[4];
    load_4(b, high);
    product<T>(left, a.high, b[0], b[1]);
    product<T>(right, a.high, b[2], b[3]);
    product<T>(left, a.low, b[0], b[1]);
    product<T>(right, a.low, b[2], b[3]);
    load_4(b, low);
    product<T>(left, a.high, b[0], b[1]);
    product<T>(right, a.high, b[2], b[3]);
}

#endif
#endif
