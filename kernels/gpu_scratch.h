/*
 * How much scratch memory the GPU backend takes: arithmetic on struct ctw_reserve, shared by the
 * backend (kernels/cuda), which allocates it, and by the planned GPU (planned_gpu.c), which plans
 * for a machine without having one. So both plan alike.
 */
#ifndef CTW_KERNELS_GPU_SCRATCH_H
#define CTW_KERNELS_GPU_SCRATCH_H

#include "kernels/backend.h"

/*
 * Rows of a chunk: 33 times the 256 rows of a cluster's tile; 33 is half of the 66 clusters of a
 * GPU with 132 multiprocessors. On such a GPU, products whose columns are a multiple of 512
 * therefore fill whole waves (8192 rows leave 1 to 3 % of the multiprocessors idle); on other GPUs
 * it has no such advantage. Products reach full throughput from about 4096 rows on.
 *
 * With passes of eight chunks, decoding is 0.4 % of a pass; an 8B model needs 1.9 GiB in addition
 * to its weights.
 */
enum { CTW_GPU_CHUNK = 33 * 256, CTW_GPU_PASS = 8 * CTW_GPU_CHUNK };
#define CTW_GPU_PASS_FLOPS 3.6e16 /* about one minute of work of an H200 */

/* What a backend takes whatever it computes: of cuBLASLt, of small tables, of choosing kernels. */
enum { CTW_GPU_WORKSPACE = 32 << 20, CTW_GPU_RING = 8 << 20, CTW_GPU_CHOOSE = 128 << 20 };

enum {
    CTW_GPU_VECTOR = 8, /* columns that a thread takes at a time */
    /* Scratch for unfinished products: whole chunks are the fastest, but memory is for weights.
     * With the fused kernel few products need scratch. */
    CTW_GPU_PRODUCT_GENERAL = 256 << 20,
    CTW_GPU_PRODUCT_HOPPER = 64 << 20,
    CTW_GPU_GATHERED = 32 << 20, /* of rows of x that a product does not gather itself */
    CTW_GPU_FEWEST_ROWS = 128,
    CTW_GPU_SPAN = 1024,       /* choices of experts that a warp counts and places */
    CTW_GPU_SCORES = 256 << 20 /* an indexer's, of the tiles of queries that choose at a time */
};

/* The head: columns of a tile, and the maximum number of rows. If the weight must be decoded, a
 * decoded tile has to fit into memory too, and so is narrower. Heads that reduce their own tiles
 * have other tiles, and a state of so many bytes for each row and tile. */
enum {
    CTW_GPU_HEAD_COLS = 8192,
    CTW_GPU_HEAD_ROWS = 2048,
    CTW_GPU_DECODED_COLS = 2048,
    CTW_GPU_DECODED_ROWS = 4096,
    CTW_GPU_HEAD_STATE = 16,
    CTW_GPU_REDUCED_TILE = 256,
    CTW_GPU_REDUCED_STATE = 16
};

static inline int64_t ctw_gpu_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- products ----------------------------------------------------------------------------- */

static inline int64_t ctw_gpu_product_bytes(bool hopper)
{
    return hopper ? (int64_t)CTW_GPU_PRODUCT_HOPPER : (int64_t)CTW_GPU_PRODUCT_GENERAL;
}

static inline size_t ctw_gpu_bias_bytes(int64_t n)
{
    return (size_t)(ctw_gpu_round_up(4 * n, 256) + ctw_gpu_round_up(2 * n, 256));
}

static inline size_t ctw_gpu_linear_scratch(bool hopper, const struct ctw_reserve *r)
{
    int64_t ld = ctw_gpu_round_up(r->max_n, CTW_GPU_VECTOR);
    int64_t most = ctw_gpu_product_bytes(hopper);
    most = most < CTW_GPU_FEWEST_ROWS * ld * 4 ? CTW_GPU_FEWEST_ROWS * ld * 4 : most;
    int64_t all = r->n_rows * ld * 4;
    return 2 * ctw_gpu_bias_bytes(r->max_n) + (size_t)(all < most ? all : most);
}

/* Rows of x that pass through scratch at a time: they stay in the GPU's cache. */
static inline int64_t ctw_gpu_gathered_rows(int64_t k, enum ctw_dtype dtype)
{
    int64_t row = ctw_gpu_round_up(k, CTW_GPU_VECTOR) * (int64_t)ctw_dtype_bytes(dtype);
    int64_t rows = (int64_t)CTW_GPU_GATHERED / row;
    return rows < CTW_GPU_FEWEST_ROWS ? (int64_t)CTW_GPU_FEWEST_ROWS
                                      : rows - rows % CTW_GPU_FEWEST_ROWS;
}

static inline size_t ctw_gpu_rows_scratch(const struct ctw_reserve *r)
{
    int64_t rows = ctw_gpu_gathered_rows(r->max_k, CTW_F32);
    int64_t all = r->n_grouped > 0 ? r->n_grouped : 0;
    rows = rows < all ? rows : all;
    return (size_t)(rows * ctw_gpu_round_up(r->max_k, CTW_GPU_VECTOR)) * ctw_dtype_bytes(CTW_F32);
}

/* ---- experts ------------------------------------------------------------------------------ */

static inline int64_t ctw_gpu_spans(int64_t n)
{
    return (n + CTW_GPU_SPAN - 1) / CTW_GPU_SPAN;
}

static inline size_t ctw_gpu_group_scratch(const struct ctw_reserve *r)
{
    return (size_t)(ctw_gpu_spans(r->n_grouped * r->chosen) * r->n_experts) * sizeof(int32_t);
}

/* ---- sparse attention --------------------------------------------------------------------- */

/* Keys of a row of scores; with tensor cores, queries of a tile, too; and of one without. */
enum { CTW_GPU_INDEX_KEYS = 128, CTW_GPU_INDEX_WIDE = 32 };

static inline size_t ctw_gpu_index_tile_bytes(bool tensor_cores, int64_t n_keys)
{
    size_t ld = (size_t)ctw_gpu_round_up(n_keys, CTW_GPU_INDEX_KEYS);
    return tensor_cores ? ld * CTW_GPU_INDEX_KEYS * sizeof(float)
                        : ld * CTW_GPU_INDEX_WIDE * sizeof(double);
}

static inline size_t ctw_gpu_index_scratch(const struct ctw_reserve *r)
{
    size_t one = ctw_gpu_index_tile_bytes(r->dtype != CTW_F32, r->index_keys);
    return r->index_keys == 0 ? 0 : one > CTW_GPU_SCORES ? one : (size_t)CTW_GPU_SCORES;
}

/* ---- the gated delta rule ----------------------------------------------------------------- */

/* States that blocks hand on, each of 128 x 128 elements, and a flag for each. */
enum { CTW_GPU_HANDED = 144, CTW_GPU_HANDED_BYTES = CTW_GPU_HANDED * (128 * 128 + 1) * 4 };

static inline size_t ctw_gpu_delta_scratch(const struct ctw_reserve *r)
{
    return r->state > 0 ? (size_t)CTW_GPU_HANDED_BYTES : 0;
}

/* ---- the head ----------------------------------------------------------------------------- */

/* Does the product reduce its own tiles (gemm_hopper.cu)? That depends on the model alone, never on
 * the rows. plain: no softcap and no bias. */
static inline bool ctw_gpu_head_reduces(bool hopper, enum ctw_dtype dtype, int64_t k, bool plain)
{
    return hopper && dtype != CTW_F32 && k % 8 == 0 && plain;
}

/* A head in parts: they begin where tiles do, decoded or not. Of tiles that are reduced, as many as
 * are decoded at a time: fewer would leave multiprocessors idle at the end of each part. */
static inline int64_t ctw_gpu_head_rows(bool hopper, enum ctw_dtype dtype, int64_t k, bool plain)
{
    return ctw_gpu_head_reduces(hopper, dtype, k, plain) ? CTW_GPU_DECODED_COLS : CTW_GPU_HEAD_COLS;
}

/* The parts of the head's scratch: states, logits, a tile of the weight if it is decoded, and a
 * tile of the bias. */
struct ctw_gpu_head_parts {
    size_t logits, weight, bias, bytes; /* offsets, and the total */
};

/* For a product that reduces its own tiles: one state for each row and tile of the vocabulary, no
 * logits. */
static inline struct ctw_gpu_head_parts ctw_gpu_head_reducing(int64_t n_rows, int64_t n_vocab,
                                                              int64_t k, enum ctw_dtype dtype,
                                                              bool decoded)
{
    struct ctw_gpu_head_parts p = {0, 0, 0, 0};
    size_t n_tiles = (size_t)((n_vocab + CTW_GPU_REDUCED_TILE - 1) / CTW_GPU_REDUCED_TILE);
    size_t weight = (size_t)CTW_GPU_DECODED_COLS * (size_t)k * ctw_dtype_bytes(dtype);
    p.weight = (size_t)n_rows * n_tiles * CTW_GPU_REDUCED_STATE;
    p.weight = (p.weight + 255) / 256 * 256;
    p.bytes = p.weight + (decoded ? weight : 0);
    return p;
}

static inline struct ctw_gpu_head_parts ctw_gpu_head_tiled(int64_t n_rows, int64_t k,
                                                           enum ctw_dtype dtype, bool decoded)
{
    struct ctw_gpu_head_parts p;
    int64_t cols = decoded ? CTW_GPU_DECODED_COLS : CTW_GPU_HEAD_COLS;
    int64_t most = decoded ? CTW_GPU_DECODED_ROWS : CTW_GPU_HEAD_ROWS;
    size_t rows = (size_t)(n_rows < most ? n_rows : most);
    p.logits = ((size_t)n_rows * CTW_GPU_HEAD_STATE + 255) / 256 * 256;
    p.weight = p.logits + rows * (size_t)cols * sizeof(float);
    p.bias = p.weight + (decoded ? (size_t)cols * (size_t)k * ctw_dtype_bytes(dtype) : 0);
    p.bias = (p.bias + 255) / 256 * 256;
    p.bytes = p.bias + (size_t)cols * sizeof(float);
    return p;
}

static inline size_t ctw_gpu_head_scratch(bool hopper, const struct ctw_reserve *r)
{
    size_t stored = ctw_gpu_head_tiled(r->n_tok, r->head_k, r->dtype, false).bytes;
    size_t decoded = ctw_gpu_head_tiled(r->n_tok, r->head_k, r->dtype, true).bytes;
    size_t most = stored > decoded ? stored : decoded;
    if (hopper && r->dtype != CTW_F32) {
        size_t reducing =
            ctw_gpu_head_reducing(r->n_tok, r->n_vocab, r->head_k, r->dtype, true).bytes;
        most = reducing > most ? reducing : most;
    }
    return most;
}

/* ---- together ----------------------------------------------------------------------------- */

/* Where a slot of experts has its biases: behind its weights, of so many bytes. */
static inline size_t ctw_gpu_slot_bias(size_t weights)
{
    return (weights + 255) / 256 * 256;
}

static inline size_t ctw_gpu_slot_bytes(const struct ctw_reserve *r, int slot)
{
    size_t weights = (size_t)r->slot_elems[slot] * ctw_dtype_bytes(r->dtype);
    return slot < CTW_SLOT_EXPERTS || weights == 0
               ? weights
               : ctw_gpu_slot_bias(weights) + ctw_gpu_bias_bytes(r->max_n);
}

/* Of one operation. */
static inline size_t ctw_gpu_operation_bytes(bool hopper, const struct ctw_reserve *r)
{
    size_t linear = ctw_gpu_linear_scratch(hopper, r), head = ctw_gpu_head_scratch(hopper, r);
    size_t group = r->n_experts > 0 ? ctw_gpu_group_scratch(r) : 0;
    size_t index = ctw_gpu_index_scratch(r), most = linear > head ? linear : head;
    size_t delta = ctw_gpu_delta_scratch(r);
    most = most > group ? most : group;
    most = most > delta ? most : delta;
    return most > index ? most : index;
}

static inline size_t ctw_gpu_scratch_bytes(bool hopper, const struct ctw_reserve *r)
{
    size_t bytes = ctw_gpu_operation_bytes(hopper, r) + ctw_gpu_rows_scratch(r);
    for (int s = 0; s < CTW_N_SLOTS; s++)
        bytes += ctw_gpu_slot_bytes(r, s);
    return bytes + CTW_GPU_RING + CTW_GPU_WORKSPACE + CTW_GPU_CHOOSE;
}

#endif
