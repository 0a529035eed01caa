/*
 * The CUDA backend's own struct and the declarations its files share. One file per operation; every
 * operation is queued on `stream` and returns at once. Kernels take plain numbers and pointers;
 * types that vary are template parameters, and the list of instances is at the end of each file.
 *
 * Rules of this folder: no atomics in sums, no split of a sum over blocks whose number depends on
 * the tokens, tile orders counted from the start of a row or sequence. A row's result is therefore
 * bit-identical regardless of the other rows in the batch (kernels/backend.h). (Hopper's products
 * are added to the residual stream by L2's atomic addition, once per element: there is no order
 * that could vary.)
 */
#ifndef CTW_KERNELS_CUDA_CUDA_H
#define CTW_KERNELS_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"
#include "kernels/gpu_scratch.h"

/* Device memory that grows on demand; growing discards its content. */
struct ctw_cuda_buffer {
    void *p;
    size_t bytes;
};

/* A product's weights, decoded ahead. */
struct ctw_cuda_slot {
    struct ctw_cuda_buffer w; /* [n, k] of `dtype` */
    int n_shards;             /* 0: empty */
    struct {
        const struct ctw_weight *weight;
        const void *values;
        int64_t row0, n, step;
    } shard[CTW_MAX_SHARDS];
    enum ctw_dtype dtype;
    const float *bias; /* joined ahead, of experts; see struct ctw_cuda_gemm; NULL: it is not */
    const void *bias_y;
    bool interleaved;   /* gate and up rows interleaved, in blocks of CTW_CUDA_GATE_BLOCK */
    cudaEvent_t ready;  /* on the decode stream: decoded */
    bool waited;        /* the operations' stream already waits for `ready` */
    cudaEvent_t unused; /* on the operations' stream: the last product that read it */
};

/* Host memory through which small tables go to the device, used as a ring of four quarters. */
struct ctw_cuda_ring {
    char *host; /* pinned */
    char *device;
    size_t bytes, at;
    cudaEvent_t freed[4]; /* the quarters */
    cudaEvent_t arrived;  /* the last table */
    int quarter;
};

enum ctw_cuda_scratch {
    /* Used within one operation: products that are still to be combined or rounded, and
     * converted biases; logits, their rows' states, and a tile of the head's weight. */
    CTW_CUDA_PRODUCT,
    CTW_CUDA_WEIGHT, /* rows of a linear layer's weight that is in no slot */
    CTW_CUDA_ROWS,   /* rows of x, gathered or widened */
    CTW_CUDA_N_SCRATCH
};

enum { CTW_CUDA_CHUNK = CTW_GPU_CHUNK };

enum { CTW_CUDA_TICKETS = 64, CTW_CUDA_FENCES = 16 };
enum { CTW_CUDA_WORKSPACE = CTW_GPU_WORKSPACE, CTW_CUDA_GATE_BLOCK = 8, CTW_CUDA_EVENS = 1 << 16 };

struct ctw_cuda_gemm;
struct ctw_cuda_gemms; /* gemm.cu: the algorithms chosen so far */

struct ctw_cuda {
    struct ctw_backend backend;
    int device, n_sm, major, minor;
    int clock_khz;
    int code, ptx; /* architectures of the running code and of the PTX it was compiled from: 90 */
    bool hopper;   /* the variant: kernels for sm_90a if they exist; else the general kernels */
    uint64_t peers_asked[4]; /* a bit for each other GPU: direct copies from it were asked for */
    bool can_register;       /* existing host memory can be pinned for the GPU to read */
    size_t memory_total;
    char name[96], numerics[96];
    char pci[20], uuid[48]; /* as in struct ctw_backend_info */
    cudaStream_t stream; /* operations, in order */
    cudaStream_t ahead;  /* weights decoded ahead */
    cudaStream_t copy;   /* uploads begun by other threads */
    cudaStream_t tables; /* uploads of the ring's tables */
    cublasLtHandle_t lt;
    void *workspace; /* of cuBLASLt on `stream`, CTW_CUDA_WORKSPACE bytes */
    int32_t *evens;  /* 0, 2, 4, ..: CTW_CUDA_EVENS rows of a shard that has every other one */
    struct ctw_cuda_gemms *gemms;
    struct ctw_cuda_slot slot[CTW_N_SLOTS];
    struct ctw_cuda_buffer scratch[CTW_CUDA_N_SCRATCH];
    struct ctw_cuda_ring ring;
    cudaEvent_t joined;
    cudaEvent_t ticket[CTW_CUDA_TICKETS];
    /* Uploads begun, and how many of them are known to have ended; under `lock`. */
    uint64_t n_tickets, n_ended;
    struct {
        cudaEvent_t stream, ahead; /* on the streams that read layers' bytes */
    } fence[CTW_CUDA_FENCES];
    uint64_t n_fences; /* recorded so far */
    void *lock;        /* pthread_mutex_t */
};

/* ---- device.cu ---------------------------------------------------------------------------- */

/* Fills in device .. name and the variant, and makes the GPU current for the calling thread.
 * CTW_EUNSUP: no GPU is usable; the message states the reason. */
enum ctw_status ctw_cuda_find_device(struct ctw_cuda *cu, const struct ctw_backend_options *opt,
                                     struct ctw_err *err);
/* The number of GPUs that the process sees. CTW_EUNSUP: there is none; the message states the
 * reason. */
enum ctw_status ctw_cuda_count(int *n, struct ctw_err *err);
enum ctw_status ctw_cuda_uuid(int device, char out[48], struct ctw_err *err);
/* All streams and events; close accepts what make left. */
enum ctw_status ctw_cuda_make_streams(struct ctw_cuda *cu, struct ctw_err *err);
void ctw_cuda_close_streams(struct ctw_cuda *cu);

/* ---- context.cu --------------------------------------------------------------------------- */

/* Also makes its GPU current for the calling thread, because one thread may use several backends.
 */
static inline struct ctw_cuda *ctw_cuda_of(struct ctw_backend *be)
{
    struct ctw_cuda *cu = (struct ctw_cuda *)be;
    if (cu != NULL)
        (void)cudaSetDevice(cu->device);
    return cu;
}

/* CTW_OK, or the failure: "cuda: WHAT: NAME: text". Out of memory is CTW_ENOMEM, every other
 * failure CTW_EDEVICE, after which the backend can only be closed. */
enum ctw_status ctw_cuda_check(cudaError_t e, const char *what, struct ctw_err *err);

/* The last launch's own error (an error while the kernel runs shows up in a later call). */
enum ctw_status ctw_cuda_launched(const char *what, struct ctw_err *err);

/* Grows the buffer to at least this size. Waits for the device if the buffer must be replaced. */
enum ctw_status ctw_cuda_grow(struct ctw_cuda *cu, struct ctw_cuda_buffer *b, size_t bytes,
                              struct ctw_err *err);

/* ---- upload.cu ---------------------------------------------------------------------------- */

/* Rows of the table, as in kernels/backend.h. */
enum ctw_status ctw_cuda_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                     struct ctw_err *err);
void ctw_cuda_stage_free(struct ctw_backend *be, void *p);
enum ctw_status ctw_cuda_upload_begin(struct ctw_backend *be, void *dst, const void *stage,
                                      size_t bytes, uint64_t *ticket, struct ctw_err *err);
enum ctw_status ctw_cuda_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                                    const void *src, size_t bytes, uint64_t *ticket,
                                    struct ctw_err *err);
enum ctw_link ctw_cuda_peer_link(struct ctw_backend *be, struct ctw_backend *from);
enum ctw_status ctw_cuda_upload_wait(struct ctw_backend *be, uint64_t ticket, struct ctw_err *err);
enum ctw_status ctw_cuda_upload_join(struct ctw_backend *be, struct ctw_err *err);
enum ctw_status ctw_cuda_fence_record(struct ctw_backend *be, uint64_t *fence, struct ctw_err *err);
enum ctw_status ctw_cuda_fence_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err);

/* Copies a table of at most a quarter of the ring to the device, while earlier operations run. *device
 * stays valid for later operations until the ring wraps around (three quarters of it). */
enum ctw_status ctw_cuda_table(struct ctw_cuda *cu, const void *host, size_t bytes, void **device,
                               struct ctw_err *err);

/* ---- decode/, products/weights.cu --------------------------------------------------------- */

/*
 * Rows row0 .. row0+n_rows-1 of a weight, decoded into dst [n_rows, k] of dtype. group_rows > 0:
 * rows go to dst in blocks of group_rows, block b at row b * stride_rows (to interleave gate and
 * up). On `stream`.
 */
enum ctw_status ctw_cuda_decode_range(struct ctw_cuda *cu, cudaStream_t stream,
                                const struct ctw_shard *shard, int64_t row0, int64_t n_rows,
                                enum ctw_dtype dtype, void *dst, int64_t group_rows,
                                int64_t stride_rows, struct ctw_err *err);

/* Decodes rows rows[0 .. n_rows-1] (device) of a shard, on the operations' stream. */
enum ctw_status ctw_cuda_decode_rows(struct ctw_cuda *cu, const struct ctw_shard *shard,
                                     const int32_t *rows, int64_t n_rows, enum ctw_dtype dtype,
                                     void *dst, struct ctw_err *err);

/* The weights of op's product as one matrix [n, k] of op->dtype, row-major without gaps: from
 * its slot (the operations' stream then waits until they are decoded), the checkpoint's own
 * bytes if these form such a matrix, or decoded now. *interleaved: gate and up rows are
 * interleaved. */
enum ctw_status ctw_cuda_weights(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                 const void **w, bool *interleaved, struct ctw_err *err);
/* The dtype of that matrix: op's dtype, or fp32 for a router whose weights have another dtype. */
enum ctw_dtype ctw_cuda_w_dtype(const struct ctw_op_linear *op);
/* Are the gate and up rows of op's weights interleaved? */
bool ctw_cuda_interleaves(const struct ctw_cuda *cu, const struct ctw_op_linear *op);
/* Sets g's bias if the slot of op's weights has it. */
bool ctw_cuda_slot_bias(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                        struct ctw_cuda_gemm *g);
/* Are they there without decoding them now? */
bool ctw_cuda_weights_there(struct ctw_cuda *cu, const struct ctw_op_linear *op);
/* Call after the product that uses the weights has been queued. */
enum ctw_status ctw_cuda_weights_used(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                      struct ctw_err *err);

/* ---- gemm.cu ------------------------------------------------------------------------------ */

/* y [m, n] of y_dtype = x [m, k] w [n, k]^T + bias (+ y if `add`), sums in fp32, rounded once. x
 * and w have `dtype`; bias is fp32 [n] on the device, or NULL. The fast kernels need pointers
 * aligned to 16 bytes, and k and leading dimensions that are multiples of 8. */
struct ctw_cuda_gemm {
    int64_t m, n, k;
    enum ctw_dtype dtype, y_dtype;
    const void *x;
    int64_t ldx;
    const void *w;
    int64_t ldw;
    void *y;
    int64_t ldy;
    const float *bias;
    bool add;
    const void *bias_y; /* bias in y_dtype, if 16 bits and exact; or NULL */
    /* Of gemm_experts_hopper.cu alone, as in struct ctw_op_linear; or NULL: */
    const int32_t *x_rows, *y_rows;
    const float *y_weight;
};

/* The first product of each kind (n, k, dtypes, add, bias) chooses an algorithm: this takes up
 * to half a second, allocates CTW_CUDA_CHOOSE bytes, and waits for the stream. */
enum ctw_status ctw_cuda_gemm(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                              struct ctw_err *err);
enum { CTW_CUDA_CHOOSE = CTW_GPU_CHOOSE };
enum ctw_status ctw_cuda_gemms_open(struct ctw_cuda *cu, struct ctw_err *err);
void ctw_cuda_gemms_close(struct ctw_cuda *cu);
/* One line per kind of product so far, with the chosen algorithms; returns the length, like
 * snprintf(). */
size_t ctw_cuda_gemms_describe(const struct ctw_cuda *cu, char *buf, size_t cap);

/* ---- gemm_f32.cu -------------------------------------------------------------------------- */

/* Like ctw_cuda_gemm, without tensor cores: any shape, stride and alignment, each sum one chain
 * over k. */
enum ctw_status ctw_cuda_gemm_simt(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                   struct ctw_err *err);

/* ---- gemm_hopper.cu ----------------------------------------------------------------------- */

/* Like ctw_cuda_gemm, on sm_90a, bf16 or fp16; *done false: the shape is not supported (nothing
 * was done). */
enum ctw_status ctw_cuda_gemm_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g, bool *done,
                                     struct ctw_err *err);
/*
 * y [m, n / 2] of dtype = act(gate) * up; w's n rows are gate and up interleaved in blocks of
 * CTW_CUDA_GATE_BLOCK. SiLU and both GELUs. Otherwise as above; the bias is in the same order as
 * w's rows.
 */
enum ctw_status ctw_cuda_gate_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                     enum ctw_activation act, bool *done, struct ctw_err *err);
/* Is the gated product of this shape supported? Called when weights are decoded, to order their
 * rows, regardless of the activation. */
bool ctw_cuda_gate_hopper_can(const struct ctw_cuda *cu, enum ctw_dtype dtype, int64_t n,
                              int64_t k);

/*
 * The product and then ctw_cuda_qkv() of it, with the same bits: sums and bias are rounded to
 * g->dtype before any further step, but not stored; g->y, ldy and op->qkv are not used. *done as
 * above. ..._can() is called before g->w is set.
 */
enum ctw_status ctw_cuda_qkv_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                    const struct ctw_op_qkv *op, bool *done, struct ctw_err *err);
bool ctw_cuda_qkv_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                             const struct ctw_op_qkv *op);

/* ---- gemm_experts_hopper.cu --------------------------------------------------------------- */

/* What becomes of a product's sums. */
struct ctw_cuda_ending {
    enum {
        CTW_CUDA_STORED,
        CTW_CUDA_GATED,    /* act(gate) * up, as `glu` joins them */
        CTW_CUDA_ACTIVATED /* rounded, then act() */
    } kind;
    enum ctw_activation act;
    struct ctw_glu glu;
};

/* Is there a kernel that gathers g's x_rows, and ends so? Or, without x_rows, ends so where
 * gemm_hopper.cu has no kernel that does. y has g->dtype; no add. Called before g->w is set. */
bool ctw_cuda_gather_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                const struct ctw_cuda_ending *end);
/* y[y_rows[t]] += y_weight[t] * (sum + bias), in fp32 */
bool ctw_cuda_scatter_hopper_can(const struct ctw_cuda *cu, const struct ctw_cuda_gemm *g);
/* The first. */
enum ctw_status ctw_cuda_gather_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                       const struct ctw_cuda_ending *end, struct ctw_err *err);
/* Computes both products in one kernel. Either may be NULL; neither reads the other's output. */
enum ctw_status ctw_cuda_pair_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *gathered,
                                     const struct ctw_cuda_ending *end,
                                     const struct ctw_cuda_gemm *scattered, struct ctw_err *err);

/* ---- gemm_hopper.cu: the LM head ---------------------------------------------------------- */

/* The state of a row's logits in one tile of CTW_CUDA_HEAD_TILE tokens: the largest (ignoring
 * NaN) and the first token that has it; the sum of exp(logit - max), or of exp(logit) if max is
 * -infinity. */
struct ctw_cuda_head_state {
    float max, sum;
    int32_t greedy, unused; /* 16 bytes are one store */
};
enum { CTW_CUDA_HEAD_TILE = CTW_GPU_REDUCED_TILE };

/*
 * The head that reduces its own tiles, if it has no softcap. First call it for all tokens, once or
 * several times: tokens id0 .. id0+n-1, whose weights are g->w [n, k]; n may be any number in the
 * last call, and is a multiple of CTW_CUDA_HEAD_TILE in the others. There is no bias. g->y NULL: no
 * logits in memory; else they are stored there, fp32 [m, ldy], up to 3 columns more than n. states
 * is [n_tiles of n_vocab][m]; targets' logits go to op->out. Then join computes op's results and
 * norms from both.
 */
enum ctw_status ctw_cuda_head_tile_hopper(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                          const struct ctw_op_head *op, int32_t id0,
                                          struct ctw_cuda_head_state *states, bool *done,
                                          struct ctw_err *err);
enum ctw_status ctw_cuda_head_join_hopper(struct ctw_cuda *cu,
                                          const struct ctw_cuda_head_state *states,
                                          const struct ctw_op_head *op, struct ctw_err *err);

/* ---- products/ ---------------------------------------------------------------------------- */

/* op's product, except for its weights and bias. */
struct ctw_cuda_gemm ctw_cuda_gemm_of(const struct ctw_op_linear *op);
/* act: of CTW_EPI_STORE, or NULL */
struct ctw_cuda_ending ctw_cuda_ending_of(const struct ctw_op_linear *op,
                                          const struct ctw_op_act *act);
/* Does one kernel gather the rows of x and end the product? Depends on the model alone. */
bool ctw_cuda_gathers(const struct ctw_cuda *cu, const struct ctw_op_linear *op);
bool ctw_cuda_has_bias(const struct ctw_op_linear *op);
/* Sets g's bias, joined in `scratch`, if a shard has one. block: of interleaved gate and up, or 0.
 */
enum ctw_status ctw_cuda_join_bias(cudaStream_t stream, const struct ctw_op_linear *op,
                                   int64_t block, char *scratch, struct ctw_cuda_gemm *g,
                                   struct ctw_err *err);
/* The same on the operations' stream, unless the product's slot has it. */
enum ctw_status ctw_cuda_put_bias(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                  int64_t block, char *scratch, struct ctw_cuda_gemm *g,
                                  struct ctw_err *err);

/* ---- operations, one file each ------------------------------------------------------------ */

#define CTW_CUDA_OPERATION(name)                                                                   \
    enum ctw_status ctw_cuda_##name(struct ctw_cuda *cu, const struct ctw_op_##name *op,           \
                                    struct ctw_err *err);
CTW_OPERATIONS(CTW_CUDA_OPERATION)
#undef CTW_CUDA_OPERATION

enum ctw_status ctw_cuda_prepare(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                 struct ctw_err *err);
enum ctw_status ctw_cuda_linear(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                struct ctw_err *err);
/* qkv.cu: are q, k and v side by side, all wanted, without an offset or a factor? The product may
 * then finish heads itself. Depends on the model alone. */
bool ctw_cuda_side_by_side(const struct ctw_op_qkv *op);
/* *done false: no kernel does both at once; nothing was done. */
enum ctw_status ctw_cuda_linear_act(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                    const struct ctw_op_act *act, bool *done, struct ctw_err *err);
enum ctw_status ctw_cuda_linear_pair(struct ctw_cuda *cu, const struct ctw_op_linear *gathered,
                                     const struct ctw_op_act *act,
                                     const struct ctw_op_linear *scattered, bool *done,
                                     struct ctw_err *err);
/* linear.cu: the product and the split, if the product supports it; *done false: not supported,
 * nothing done. */
enum ctw_status ctw_cuda_linear_qkv(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                    const struct ctw_op_qkv *qkv, bool *done, struct ctw_err *err);

/* norm_act.cu: *done false: the operations are not of its kind; nothing was done. */
enum ctw_status ctw_cuda_norm_act(struct ctw_cuda *cu, const struct ctw_op_norm *norm,
                                  const struct ctw_op_act *act, bool *done, struct ctw_err *err);

/* rows.cu: rows first .. first+n-1 of a product's x, gathered and weighted as op says, to
 * y [n, ldy] of y_dtype, which is op's or F32. */
enum ctw_status ctw_cuda_gather(struct ctw_cuda *cu, const struct ctw_op_linear *op, int64_t first,
                                int64_t n, enum ctw_dtype y_dtype, void *y, int64_t ldy,
                                struct ctw_err *err);

#endif
