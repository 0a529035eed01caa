/*
 * The contract of every numeric operation. worker/ knows backends only through the functions
 * ctw_op_*() and ctw_backend_*() here; backend.c checks shapes and calls the table.
 *
 * Memory. Pointers called "device" come from ctw_device_alloc() (or, for weights, from the
 * layer provider) and are never dereferenced by the worker. For the CPU they are host pointers.
 *
 * Order. Operations of one backend run in the order of the calls; they may return before they
 * are done. ctw_device_download() and ctw_backend_sync() wait; a fence says when memory that they
 * read may be reused. One thread uses a backend.
 *
 * Activations have one dtype (F32, BF16 or F16) throughout a model: arrays [n_tok, dim] row-major.
 * Every sum is accumulated in fp32 or better, in an order that depends only on the row's own
 * inputs and the shape in the other dimensions, never on n_tok, the row's place, or threads:
 * a row's result is the same bit for bit in any company. Results are rounded once, when stored.
 */
#ifndef CTW_KERNELS_BACKEND_H
#define CTW_KERNELS_BACKEND_H

#include "kernels/formats/format.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ctw_backend_ops;

/* Every backend's own struct starts with this one. */
struct ctw_backend {
    const struct ctw_backend_ops *ops;
    char reason[256]; /* why this backend was taken; set by ctw_backend_open() */
};

struct ctw_backend_options {
    const char *variant;      /* CPU; NULL: the best that this machine runs; else its name */
    const char *cuda_variant; /* likewise for the GPU */
    int n_threads;            /* CPU; 0: all */
    int device;               /* GPU index */
};

struct ctw_backend_info {
    const char *backend;   /* "cpu", "cuda" */
    const char *variant;   /* "c", "avx2", "avx512", "avx512bf16"; "general", "hopper" */
    char device[96];       /* the processor's name */
    char numerics[96];     /* what a score's last bit depends on: "cpu-avx2", "cuda-hopper-sm90-.." */
    char reason[256];      /* why this backend was taken */
    int n_threads;         /* CPU */
    uint64_t memory_total; /* bytes of the GPU; 0 on the CPU */
};

/* What the planner must know of a backend. */
struct ctw_backend_traits {
    bool host_memory;     /* operations read the mapped files, before their call returns */
    int64_t chunk_tokens; /* rows from which on its products run at their full rate */
    int64_t pass_tokens;  /* more tokens in a pass gain nothing worth having */
    double pass_flops;    /* about a minute of work */
};

/* ---- linear ------------------------------------------------------------------------------- */

/* Some rows of a linear layer: one stored matrix, with its own format and scales. */
struct ctw_shard {
    const struct ctw_weight *weight;
    const struct ctw_weight_data *data;
    const void *bias; /* device, [n] of bias_dtype, or NULL */
    enum ctw_dtype bias_dtype;
};

enum ctw_activation { CTW_ACT_SILU, CTW_ACT_GELU, CTW_ACT_GELU_TANH };

enum ctw_epilogue {
    CTW_EPI_STORE, /* y[t, o] = sum + bias */
    CTW_EPI_ADD,   /* y[t, o] = y[t, o] + (sum + bias), in fp32, rounded once to residual_dtype */
    CTW_EPI_GATE   /* two shards of n rows: y[t, o] = act(gate) * up; ldy >= n */
};

enum { CTW_MAX_SHARDS = 4 };

/* Which of a layer's products it is: each has its own place for weights decoded ahead. */
enum ctw_slot { CTW_SLOT_QKV, CTW_SLOT_O, CTW_SLOT_GATE_UP, CTW_SLOT_DOWN, CTW_N_SLOTS };

/* y[t, o] = epilogue(sum over i of x[t, i] * w[o, i]); the shards' rows stand one after another. */
struct ctw_op_linear {
    const struct ctw_shard *shards;
    int n_shards; /* 1..CTW_MAX_SHARDS; all have the same k */
    enum ctw_slot slot;
    enum ctw_dtype dtype;
    enum ctw_epilogue epilogue;
    enum ctw_activation act;       /* CTW_EPI_GATE only */
    enum ctw_dtype residual_dtype; /* CTW_EPI_ADD only: of y, which otherwise has dtype */
    int64_t n_tok;
    const void *x; /* device [n_tok, k], leading dimension ldx */
    int64_t ldx;
    void *y; /* device, must not overlap x */
    int64_t ldy;
};

/* ---- elementwise -------------------------------------------------------------------------- */

/* y[t] = table[tokens[t]] * scale */
struct ctw_op_embed {
    const struct ctw_shard *table;
    enum ctw_dtype dtype;
    float scale;
    int64_t n_tok;
    const int32_t *tokens; /* device [n_tok], each 0..n-1 (checked before) */
    void *y;               /* device [n_tok, k] */
};

/* y[t] = x[r] / sqrt(mean(x[r]^2) + eps) * (weight + weight_offset), r = t or rows[t] */
struct ctw_op_rms_norm {
    enum ctw_dtype dtype; /* of y */
    int64_t n_tok, dim;
    const void *x; /* device [.., dim] of x_dtype */
    enum ctw_dtype x_dtype;
    const int64_t *rows; /* device [n_tok], or NULL */
    const void *weight;  /* device [dim] of weight_dtype */
    enum ctw_dtype weight_dtype;
    float weight_offset;
    float eps;
    void *y; /* device [n_tok, dim]; may be x, where the dtypes are equal and rows is NULL */
    /*
     * device, as many as rows of x, or NULL: where row r has no finite sum of squares and bad[r] is
     * negative, bad[r] = stamp. So the first operation that meets a bad row leaves its mark.
     */
    int16_t *bad;
    int16_t stamp;
};

enum ctw_rope_pairing {
    CTW_ROPE_HALVES,     /* element i turns with i + rot_dim / 2 (Hugging Face Llama) */
    CTW_ROPE_INTERLEAVED /* element 2i turns with 2i + 1 */
};

/*
 * Splits qkv [n_tok, (n_head + 2 * n_kv) * head] into q, k, v; with q_norm / k_norm, RMS-normalises
 * each head; turns the first rot_dim elements of each query and key head by its position:
 * (a, b) -> (a cos - b sin, b cos + a sin). In fp32, rounded once. rot_dim 0: no RoPE.
 */
struct ctw_op_qkv {
    enum ctw_dtype dtype;
    int64_t n_tok;
    int n_head, n_kv, head; /* head: elements of one head */
    const void *qkv;
    const void *q_norm, *k_norm; /* device [head] of norm_dtype, or NULL */
    enum ctw_dtype norm_dtype;
    float norm_eps;
    enum ctw_rope_pairing pairing;
    int rot_dim;
    const int32_t *positions; /* device [n_tok] */
    const float *cos_sin; /* device [max position + 1, rot_dim]: rot_dim/2 cosines, then sines */
    void *q;              /* device [n_tok, n_head * head] */
    void *k, *v;          /* device [n_tok, n_kv * head] */
};

/* ---- attention ---------------------------------------------------------------------------- */

enum { CTW_MAX_HEAD = 256 }; /* elements of a query, key or value head */

/* Rows row .. row+n_tok-1 of the key and value arrays. */
struct ctw_kv_run {
    int64_t row;
    int64_t n_tok;
};

/*
 * The queries of one sequence in this call: rows q_row .. q_row+n_q-1 of q and out, at positions
 * pos0 .. pos0+n_q-1. Its keys and values are runs[0 .. n_runs-1] one after another, position 0
 * first, at least pos0 + n_q of them. Results do not depend on how keys are cut into runs, nor on
 * how a sequence's queries are cut into calls.
 */
struct ctw_attn_seq {
    int64_t q_row, n_q, pos0;
    const struct ctw_kv_run *runs;
    int n_runs;
};

/*
 * out = softmax(scale * q k^T, causal) v, with grouped heads (query head h uses key head
 * h / (n_head / n_kv)); scores, softmax and sums in fp32.
 *
 * With sinks, the softmax of query head h is over one more logit, sinks[h], as it stands (neither
 * scaled nor capped), which every query sees and which has no value: of scores s and m, the largest of
 * s and sinks[h], key j has weight exp(s[j] - m) / (exp(sinks[h] - m) + sum over keys of exp(s - m)).
 * -infinity: the same bits as without; NaN and +infinity: all of the head's results are NaN.
 */
struct ctw_op_attention {
    enum ctw_dtype dtype;
    int n_head, n_kv, head;
    float scale;
    int64_t window;    /* keys seen, the query's own included; 0: all */
    float softcap;     /* 0: none; else scores become softcap * tanh(score / softcap) */
    const void *sinks; /* device [n_head] of sinks_dtype, or NULL */
    enum ctw_dtype sinks_dtype;
    const void *q;     /* device [rows, n_head * head] */
    const void *k, *v; /* device [rows, n_kv * head] */
    void *out;         /* device [rows, n_head * head] */
    const struct ctw_attn_seq *seqs; /* host */
    int64_t n_seqs;
};

/* ---- LM head ------------------------------------------------------------------------------ */

/* The result for one row. */
struct ctw_head_result {
    float logprob;  /* log softmax(logits)[target], natural log */
    int32_t greedy; /* the first id with the largest logit */
};

/*
 * logits = cap(scale * x w^T) over the first n_vocab rows of w, never stored; fp32 logits. The
 * weight's shard has no bias. A row in which some logit is NaN or +infinity, or none is finite,
 * has logprob NaN; its greedy is within 0..n_vocab-1 and means nothing.
 */
struct ctw_op_head {
    const struct ctw_shard *weight;
    enum ctw_dtype dtype;
    float scale;
    float softcap;   /* 0: none */
    int64_t n_vocab; /* rows of w that are tokens */
    int64_t n_rows;
    const void *x;               /* device [n_rows, k] */
    const int32_t *targets;      /* device [n_rows], 0..n_vocab-1 */
    struct ctw_head_result *out; /* device [n_rows] */
};

/* ---- decoding ----------------------------------------------------------------------------- */

/* dst = rows row0 .. row0+n_rows-1 of a weight, as compressed-tensors' decompress() gives them, in
 * `dtype` (rounded once more where that is narrower). For inspection; products decode for themselves. */
struct ctw_op_decode {
    const struct ctw_shard *shard;
    int64_t row0, n_rows;
    enum ctw_dtype dtype;
    void *dst; /* device [n_rows, k] */
};

/* ---- the table ---------------------------------------------------------------------------- */

/* What operations will be asked for; a backend allocates for itself accordingly. */
struct ctw_reserve {
    enum ctw_dtype dtype;
    int64_t n_tok;                   /* rows of a chunk, and of a call of ctw_head() */
    int64_t max_k;                   /* the largest inner width of a product */
    int64_t max_n;                   /* the most columns of a product, gate and up together */
    int64_t slot_elems[CTW_N_SLOTS]; /* the largest n * k of a slot's shards together */
    int64_t n_seqs;                  /* sequences in a chunk */
    int64_t n_vocab, head_k;         /* of the head: its rows, and their width */
};

/* All members but linear_qkv are required; backend.c is their only caller. */
struct ctw_backend_ops {
    const char *name;
    struct ctw_backend_traits traits;
    enum ctw_status (*open)(struct ctw_backend **out, const struct ctw_backend_options *opt,
                            struct ctw_err *err);
    void (*close)(struct ctw_backend *be);
    void (*info)(const struct ctw_backend *be, struct ctw_backend_info *out);
    /* The choices that operations have made so far, a line each; "" where there are none. */
    void (*describe)(const struct ctw_backend *be, char *buf, size_t cap);
    /* The most bytes that operations within r allocate for themselves (they keep it for reuse). For
     * the planner. */
    size_t (*scratch_bytes)(const struct ctw_backend *be, const struct ctw_reserve *r);
    /* Allocates that now, where doing so in the middle of a pass could fail. */
    enum ctw_status (*reserve)(struct ctw_backend *be, const struct ctw_reserve *r,
                               struct ctw_err *err);
    /* Gives back what operations allocated for themselves. */
    void (*trim)(struct ctw_backend *be);
    /* Bytes of device memory that can still be allocated; UINT64_MAX where not known. */
    uint64_t (*memory_free)(const struct ctw_backend *be);
    enum ctw_status (*alloc)(struct ctw_backend *be, void **out, size_t bytes, struct ctw_err *err);
    void (*free)(struct ctw_backend *be, void *p);
    enum ctw_status (*upload)(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                              struct ctw_err *err);
    enum ctw_status (*download)(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                struct ctw_err *err);
    enum ctw_status (*copy)(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                            struct ctw_err *err); /* device to device, may overlap */
    enum ctw_status (*sync)(struct ctw_backend *be, struct ctw_err *err);
    /* Uploads by other threads; see ctw_upload_begin(). Not called where traits.host_memory. */
    enum ctw_status (*stage_alloc)(struct ctw_backend *be, void **out, size_t bytes,
                                   struct ctw_err *err);
    void (*stage_free)(struct ctw_backend *be, void *p);
    enum ctw_status (*upload_begin)(struct ctw_backend *be, void *dst, const void *stage,
                                    size_t bytes, uint64_t *ticket, struct ctw_err *err);
    enum ctw_status (*upload_wait)(struct ctw_backend *be, uint64_t ticket, struct ctw_err *err);
    enum ctw_status (*upload_join)(struct ctw_backend *be, struct ctw_err *err);
    enum ctw_status (*fence_record)(struct ctw_backend *be, uint64_t *fence, struct ctw_err *err);
    enum ctw_status (*fence_wait)(struct ctw_backend *be, uint64_t fence, struct ctw_err *err);
    enum ctw_status (*prepare)(struct ctw_backend *be, const struct ctw_op_linear *op,
                               struct ctw_err *err);
    enum ctw_status (*decode)(struct ctw_backend *be, const struct ctw_op_decode *op,
                              struct ctw_err *err);
    enum ctw_status (*embed)(struct ctw_backend *be, const struct ctw_op_embed *op,
                             struct ctw_err *err);
    enum ctw_status (*rms_norm)(struct ctw_backend *be, const struct ctw_op_rms_norm *op,
                                struct ctw_err *err);
    enum ctw_status (*linear)(struct ctw_backend *be, const struct ctw_op_linear *op,
                              struct ctw_err *err);
    enum ctw_status (*qkv)(struct ctw_backend *be, const struct ctw_op_qkv *op,
                           struct ctw_err *err);
    /* ctw_linear_qkv() in one step. *done false: not at this shape; nothing was done. NULL: never. */
    enum ctw_status (*linear_qkv)(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  const struct ctw_op_qkv *qkv, bool *done, struct ctw_err *err);
    enum ctw_status (*attention)(struct ctw_backend *be, const struct ctw_op_attention *op,
                                 struct ctw_err *err);
    enum ctw_status (*head)(struct ctw_backend *be, const struct ctw_op_head *op,
                            struct ctw_err *err);
};

extern const struct ctw_backend_ops ctw_backend_cpu;

/*
 * The CUDA backend is a shared object of its own, opened when it is asked for: beside the program, in
 * ../lib of it, or where CTWORKER_CUDA_LIBRARY says. CTW_EUNSUP: it is not there, something it needs
 * is not, or its contract is another than this program's; the message says which.
 */
enum ctw_status ctw_cuda_load(const struct ctw_backend_ops **out, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * What the shared object exports. ctw_cuda_contract() gives the CTW_CONTRACT that it was compiled with
 * (kernels/contract.h, which the build makes): a hash of this header and of all that it shares with the
 * program, formats and their decoders among them. Only where it is the program's own may anything else
 * be called.
 */
typedef const char *ctw_cuda_contract_fn(void);
typedef const struct ctw_backend_ops *ctw_cuda_ops_fn(void);
#define CTW_CUDA_CONTRACT_SYMBOL "ctw_cuda_contract"
#define CTW_CUDA_OPS_SYMBOL "ctw_cuda_ops"

/*
 * name: "auto", "cpu" or "cuda". auto (or NULL) takes the GPU where the library, a driver and a GPU
 * that it supports are there, else the CPU; info's `reason` says which and why. CTW_EINVAL for an
 * unknown name or variant, naming those that this machine has; CTW_EUNSUP where "cuda" cannot be had.
 */
enum ctw_status ctw_backend_open(struct ctw_backend **out, const char *name,
                                 const struct ctw_backend_options *opt,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_backend_close(struct ctw_backend *be); /* NULL is fine */
void ctw_backend_get_info(const struct ctw_backend *be, struct ctw_backend_info *out);
void ctw_backend_describe(const struct ctw_backend *be, char *buf, size_t cap); /* cut to fit */
const struct ctw_backend_traits *ctw_backend_traits(const struct ctw_backend *be);
size_t ctw_backend_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r);
enum ctw_status ctw_backend_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                    struct ctw_err *err) CTW_MUST_CHECK;
void ctw_backend_trim(struct ctw_backend *be);
uint64_t ctw_backend_memory_free(const struct ctw_backend *be);
enum ctw_status ctw_backend_sync(struct ctw_backend *be, struct ctw_err *err) CTW_MUST_CHECK;

enum ctw_status ctw_device_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_device_free(struct ctw_backend *be, void *p); /* NULL is fine */
enum ctw_status ctw_device_upload(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                  struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_device_download(struct ctw_backend *be, void *dst, const void *src,
                                    size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_device_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Weights on their way to the device, from threads of the layer provider's own (the four may be
 * called from any thread, all others only from the one that uses the backend). A stage is host
 * memory that copies fast. An upload that was begun has read its stage once ctw_upload_wait() of its
 * ticket returns. Operations called after ctw_upload_join() see all uploads begun before it; it does
 * not wait.
 */
enum ctw_status ctw_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_stage_free(struct ctw_backend *be, void *p); /* NULL is fine */
enum ctw_status ctw_upload_begin(struct ctw_backend *be, void *dst, const void *stage, size_t bytes,
                                 uint64_t *ticket, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_upload_wait(struct ctw_backend *be, uint64_t ticket,
                                struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_upload_join(struct ctw_backend *be, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Fences, for the owner of memory that operations read (worker/weights/provider.h). A fence stands
 * for all calls before it was recorded, ctw_prepare() among them: once ctw_fence_wait() has returned,
 * with any status, none of them reads memory any more. The thread that uses the backend records it;
 * any thread may wait for it, and more than once.
 */
enum ctw_status ctw_fence_record(struct ctw_backend *be, uint64_t *fence,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_fence_wait(struct ctw_backend *be, uint64_t fence,
                               struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Announces products with op's shards, dtype, epilogue and slot (the rest is not read), whose weights
 * a backend may decode now, once, into the slot. Linear operations of that slot that name the same
 * shards use what was decoded, until the next ctw_prepare() of the slot: so shards whose bytes are
 * others since must be announced again before they are named. n_shards 0: forgets what is in the slot.
 * Without it, each operation decodes. When the bytes may change, a fence says, as for any operation.
 */
enum ctw_status ctw_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                            struct ctw_err *err) CTW_MUST_CHECK;

enum ctw_status ctw_decode(struct ctw_backend *be, const struct ctw_op_decode *op,
                           struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_embed(struct ctw_backend *be, const struct ctw_op_embed *op,
                          struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_rms_norm(struct ctw_backend *be, const struct ctw_op_rms_norm *op,
                             struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                           struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_qkv(struct ctw_backend *be, const struct ctw_op_qkv *op,
                        struct ctw_err *err) CTW_MUST_CHECK;
/*
 * ctw_linear() with CTW_EPI_STORE, and then ctw_qkv() of its y, which is qkv->qkv: one step where the
 * backend can, which depends on the model and never on n_tok. So q, k and v must not overlap x; and what
 * is in y afterwards is not defined.
 */
enum ctw_status ctw_linear_qkv(struct ctw_backend *be, const struct ctw_op_linear *op,
                               const struct ctw_op_qkv *qkv, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_attention(struct ctw_backend *be, const struct ctw_op_attention *op,
                              struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_head(struct ctw_backend *be, const struct ctw_op_head *op,
                         struct ctw_err *err) CTW_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
