/*
 * The contract of every numeric operation. worker/ reaches backends only through the functions
 * declared here; backend.c checks shapes and calls the table.
 *
 * Memory. Pointers marked "device" come from ctw_device_alloc() (or, for weights, from the layer
 * provider). The worker never dereferences them. On the CPU they are host pointers.
 *
 * Order. Operations of one backend run in call order and may return before they have finished.
 * ctw_device_download() and ctw_backend_sync() wait for completion. A fence shows when memory that
 * operations read may be reused. A backend is not thread-safe: one thread uses it, except for the
 * upload and fence functions below.
 *
 * Activations have one dtype (F32, BF16 or F16) throughout a model: arrays [n_tok, dim], row-major.
 * Every sum is accumulated in fp32 or better. Its order depends only on the row's own inputs and on
 * the shape in the other dimensions, never on n_tok, the row's position or the number of threads: a
 * row's result is bit-identical regardless of the other rows in the batch. Results are rounded
 * once, when stored.
 */
#ifndef CTW_KERNELS_BACKEND_H
#define CTW_KERNELS_BACKEND_H

#include "kernels/formats/format.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ctw_backend_ops;

/* First member of every backend's own struct. */
struct ctw_backend {
    const struct ctw_backend_ops *ops;
    char reason[256]; /* why this backend was selected; set by ctw_backend_open() */
};

struct ctw_backend_options {
    const char *variant;      /* CPU; NULL: the best variant for this machine; else its name */
    const char *cuda_variant; /* GPU; NULL: the best variant for this GPU; else its name */
    int n_threads;            /* CPU; 0: all */
    int device;               /* GPU index */
};

struct ctw_backend_info {
    const char *backend; /* "cpu", "cuda" */
    const char *variant; /* "c", "avx2", "avx512", "avx512bf16"; "general", "hopper" */
    char device[96];     /* the processor's name */
    char numerics[96];   /* what a score's last bit depends on: "cpu-avx2", "cuda-hopper-sm90-.." */
    char reason[256];    /* why this backend was selected */
    int n_threads;       /* CPU */
    uint64_t memory_total; /* bytes of the GPU; 0 on the CPU */
};

/* What the planner needs to know about a backend. */
struct ctw_backend_traits {
    bool host_memory;     /* operations read the mapped files, and only before their call returns */
    int64_t chunk_tokens; /* number of rows from which on products run at full throughput */
    int64_t pass_tokens;  /* more tokens per pass bring no worthwhile gain */
    double pass_flops;    /* about one minute of work */
};

/* ---- linear ------------------------------------------------------------------------------- */

/* Rows of a linear layer: rows row0 .. row0+n-1 of a stored matrix with its own format and scales.
 * Several shards may be rows of one matrix (a fused projection). */
struct ctw_shard {
    const struct ctw_weight *weight;
    const struct ctw_weight_data *data;
    int64_t row0, n;
    const void *bias; /* device, [n] of bias_dtype, or NULL */
    enum ctw_dtype bias_dtype;
};

/* All rows of a matrix, without a bias. */
static inline struct ctw_shard ctw_shard_of(const struct ctw_weight *weight,
                                            const struct ctw_weight_data *data)
{
    struct ctw_shard s = {weight, data, 0, weight->n, NULL, CTW_F32};
    return s;
}

enum ctw_activation {
    CTW_ACT_SILU,
    CTW_ACT_GELU,
    CTW_ACT_GELU_TANH,
    CTW_ACT_RELU,
    CTW_ACT_RELU2, /* the square of relu */
    /* Of ctw_act() alone, with parameters: */
    CTW_ACT_XIELU, /* {ap, an, beta, eps}: ap g^2 + beta g if g > 0, else
                      (expm1(min(g, eps)) - g) an + beta g */
    CTW_ACT_CLIP   /* {limit}: -limit..limit */
};

enum { CTW_ACT_PARAMS = 4 };

enum ctw_epilogue {
    CTW_EPI_STORE, /* y[t, o] = sum + bias */
    CTW_EPI_ADD,   /* y[t, o] = y[t, o] + (sum + bias), in fp32, rounded once to residual_dtype */
    CTW_EPI_GATE   /* two shards of n rows: y[t, o] = act(gate) * up; ldy >= n */
};

enum { CTW_MAX_SHARDS = 4 };

/* Which product of a layer this is. Each slot has its own memory for weights decoded ahead. */
enum ctw_slot { CTW_SLOT_QKV, CTW_SLOT_O, CTW_SLOT_GATE_UP, CTW_SLOT_DOWN, CTW_N_SLOTS };

/* y[t, o] = epilogue(sum over i of x[t, i] * w[o, i]); w is the shards' rows, concatenated. */
struct ctw_op_linear {
    const struct ctw_shard *shards;
    int n_shards; /* 1..CTW_MAX_SHARDS; all have the same k */
    enum ctw_slot slot;
    enum ctw_dtype dtype;
    enum ctw_epilogue epilogue;
    enum ctw_activation act;       /* CTW_EPI_GATE only; without parameters */
    enum ctw_dtype residual_dtype; /* CTW_EPI_ADD only: dtype of y, which otherwise is `dtype` */
    int64_t n_tok;
    const void *x; /* device [n_tok, k], leading dimension ldx */
    int64_t ldx;
    void *y; /* device, must not overlap x */
    int64_t ldy;
};

/* ---- elementwise -------------------------------------------------------------------------- */

/* y[t] = table[tokens[t]] * scale, or y[t] + that, in fp32, rounded once. */
struct ctw_op_embed {
    const struct ctw_shard *table; /* token i is the shard's row i */
    enum ctw_dtype dtype;
    float scale;
    bool add;
    int64_t n_tok;
    const int32_t *tokens; /* device [n_tok], each 0..n-1 (the caller has checked them) */
    void *y;               /* device [n_tok, k] */
};

enum ctw_norm_kind {
    CTW_NORM_RMS,   /* x / sqrt(mean(x^2) + eps) */
    CTW_NORM_LAYER, /* (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) */
    CTW_NORM_NONE   /* x */
};

/*
 * A row of x is n_groups groups of dim elements, each normalised by itself:
 *     v = normalised * (weight + weight_offset) + bias;  y = factor * v, or y + factor * v.
 * In fp32, rounded once. Row t of y comes from row t of x, or from row rows[t].
 */
struct ctw_op_norm {
    enum ctw_norm_kind kind;
    enum ctw_dtype dtype; /* dtype of y */
    int64_t n_tok, dim;
    int64_t n_groups; /* 0: 1 */
    const void *x;    /* device [.., ldx] of x_dtype */
    int64_t ldx;      /* 0: n_groups * dim */
    enum ctw_dtype x_dtype;
    const int64_t *rows; /* device [n_tok], or NULL */
    const void *weight;  /* device [dim], or [n_groups, dim], of weight_dtype; NULL: ones */
    const void *bias;    /* likewise; NULL: zeros */
    bool own_weights;    /* each group has its own row of weight and bias */
    enum ctw_dtype weight_dtype, bias_dtype;
    float weight_offset; /* with a weight */
    float eps;
    float factor; /* 0: 1 */
    bool add;
    void *y;     /* device [n_tok, ldy]; may be x if dtypes and ld are equal and rows is NULL */
    int64_t ldy; /* 0: n_groups * dim */
    /*
     * device, one element per row of x, or NULL. If an element of row r, or the sum of the squares
     * of its first group, is not finite and bad[r] is negative, bad[r] = stamp: the first operation
     * that finds a bad row marks it. With bad, n_groups is 1.
     */
    int16_t *bad;
    int16_t stamp;
};

/* y[t, i] = act(x[t, i]) * up[t, i], in fp32, rounded once */
struct ctw_op_act {
    enum ctw_activation act;
    float param[CTW_ACT_PARAMS]; /* the activation's */
    enum ctw_dtype dtype;
    int64_t n_tok, dim;
    const void *x; /* device [n_tok, ldx] */
    int64_t ldx;
    const void *up; /* device [n_tok, ldup], or NULL: ones */
    int64_t ldup;
    void *y; /* device [n_tok, ldy]; may be x if ldy is ldx */
    int64_t ldy;
};

enum ctw_rope_pairing {
    CTW_ROPE_HALVES,     /* element i pairs with element i + rot_dim / 2 (Hugging Face Llama) */
    CTW_ROPE_INTERLEAVED /* element 2i pairs with element 2i + 1 */
};

/* Columns of a row of qkv. Query head h reads key head g = h / r, r = n_head / n_kv. */
struct ctw_qkv_columns {
    int64_t ld;              /* of a row; 0: q, k and v are side by side, and nothing else is set */
    int64_t q, k, v;         /* of the first query, key and value head */
    int64_t q_step, kv_step; /* from g to g + 1. Query head h is at q + g q_step + h % r * head */
};

/*
 * Splits qkv [n_tok, ld] into q, k and v. With q_norm / k_norm, RMS-normalises each head. Rotates
 * the first rot_dim elements of each query and key head by the row of cos_sin that the token's
 * position names: (a, b) -> (a cos - b sin, b cos + a sin). Multiplies queries by q_factor.
 * Computes in fp32 and rounds once. rot_dim 0: no RoPE.
 */
struct ctw_op_qkv {
    enum ctw_dtype dtype;
    int64_t n_tok;
    int n_head, n_kv, head; /* head: elements of one head */
    const void *qkv;
    struct ctw_qkv_columns columns;
    const void *q_norm, *k_norm; /* device [head] of norm_dtype, or NULL */
    enum ctw_dtype norm_dtype;
    float norm_offset; /* added to the norms' weights */
    float norm_eps;
    enum ctw_rope_pairing pairing;
    int rot_dim;
    const int32_t *positions; /* device [n_tok] */
    const float *cos_sin;  /* device [max position + 1, rot_dim]: rot_dim/2 cosines, then sines */
    const float *q_factor; /* device [max position + 1], or NULL: ones */
    void *q;               /* device [n_tok, n_head * head] */
    void *k, *v;           /* device [n_tok, n_kv * head]; both NULL: not wanted */
};

/* ---- attention ---------------------------------------------------------------------------- */

enum { CTW_MAX_HEAD = 512 }; /* elements of a query, key or value head */

/* Rows row .. row+n_tok-1 of the key and value arrays. */
struct ctw_kv_run {
    int64_t row;
    int64_t n_tok;
};

/*
 * The queries of one sequence in this call: rows q_row .. q_row+n_q-1 of q and out, at positions
 * pos0 .. pos0+n_q-1. The sequence's keys and values are runs[0 .. n_runs-1] concatenated, from
 * position 0, at least pos0 + n_q of them. Results do not depend on how the keys are split into
 * runs, nor on how the queries of a sequence are split into calls.
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
 * With sinks, the softmax of query head h has one additional logit, sinks[h], which is neither
 * scaled nor capped. Every query sees it, and it has no value: for scores s and m = the maximum of
 * s and sinks[h], the weight of key j is
 *     exp(s[j] - m) / (exp(sinks[h] - m) + sum over keys of exp(s - m)).
 * A sink of -infinity gives the same bits as no sink. A sink of NaN or +infinity makes all results
 * of the head NaN.
 *
 * With ALiBi, slope[h] * (j - i) is added to the scaled score of the query at position i and the
 * key at position j.
 */
struct ctw_op_attention {
    enum ctw_dtype dtype;
    int n_head, n_kv, head;
    float scale;
    int64_t window;    /* number of keys a query sees, including its own; 0: all */
    float softcap;     /* 0: none; else scores become softcap * tanh(score / softcap) */
    const void *sinks; /* device [n_head] of sinks_dtype, or NULL */
    enum ctw_dtype sinks_dtype;
    const float *alibi;              /* device [n_head]: the slopes, or NULL; not with softcap */
    const void *q;                   /* device [rows, n_head * head] */
    const void *k, *v;               /* device [rows, n_kv * head] */
    void *out;                       /* device [rows, n_head * head] */
    const struct ctw_attn_seq *seqs; /* host */
    int64_t n_seqs;
};

/* ---- LM head ------------------------------------------------------------------------------ */

/* The result for one row. */
struct ctw_head_result {
    float logprob;  /* log softmax(logits)[target], natural log */
    int32_t greedy; /* the lowest id with the largest logit */
};

/*
 * logits = cap(scale * (x w^T + bias)) over the first n_vocab rows of w, in fp32, never stored. The
 * weight's shard is a whole matrix. If a logit of a row is NaN or +infinity, or no logit is
 * finite, the row's logprob is NaN; its greedy is within 0..n_vocab-1 but meaningless.
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

/* dst = rows row0 .. row0+n_rows-1 of a shard, as compressed-tensors' decompress() returns
 * them, in `dtype` (rounded once more if `dtype` is narrower). For inspection; products decode
 * by themselves. */
struct ctw_op_decode {
    const struct ctw_shard *shard;
    int64_t row0, n_rows;
    enum ctw_dtype dtype;
    void *dst; /* device [n_rows, k] */
};

/* ---- the table ---------------------------------------------------------------------------- */

/* Upper bounds on the operations to come; a backend allocates its own memory accordingly. */
struct ctw_reserve {
    enum ctw_dtype dtype;
    int64_t n_tok;                   /* rows of a chunk, and of one ctw_head() call */
    int64_t max_k;                   /* the largest inner dimension of a product */
    int64_t max_n;                   /* the most columns of a product, gate and up together */
    int64_t slot_elems[CTW_N_SLOTS]; /* the largest total n * k over the shards of a slot */
    int64_t n_seqs;                  /* sequences in a chunk */
    int64_t n_vocab, head_k;         /* of the head: number of rows, and their width */
};

/* All members except linear_qkv are required. Only backend.c calls them. */
struct ctw_backend_ops {
    const char *name;
    struct ctw_backend_traits traits;
    enum ctw_status (*open)(struct ctw_backend **out, const struct ctw_backend_options *opt,
                            struct ctw_err *err);
    void (*close)(struct ctw_backend *be);
    void (*info)(const struct ctw_backend *be, struct ctw_backend_info *out);
    /* The choices that operations have made so far, one line per choice; "" if there are none. */
    void (*describe)(const struct ctw_backend *be, char *buf, size_t cap);
    /* Upper bound on the bytes that operations within r allocate for themselves (and keep for
     * reuse). For the planner. */
    size_t (*scratch_bytes)(const struct ctw_backend *be, const struct ctw_reserve *r);
    /* Allocates that memory now, if allocating it in the middle of a pass could fail. */
    enum ctw_status (*reserve)(struct ctw_backend *be, const struct ctw_reserve *r,
                               struct ctw_err *err);
    /* Frees the memory that operations allocated for themselves. */
    void (*trim)(struct ctw_backend *be);
    /* Bytes of device memory that can still be allocated; UINT64_MAX if unknown. */
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
    /* Uploads from other threads; see ctw_upload_begin(). Never called if traits.host_memory. */
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
    enum ctw_status (*norm)(struct ctw_backend *be, const struct ctw_op_norm *op,
                            struct ctw_err *err);
    enum ctw_status (*linear)(struct ctw_backend *be, const struct ctw_op_linear *op,
                              struct ctw_err *err);
    enum ctw_status (*act)(struct ctw_backend *be, const struct ctw_op_act *op,
                           struct ctw_err *err);
    enum ctw_status (*qkv)(struct ctw_backend *be, const struct ctw_op_qkv *op,
                           struct ctw_err *err);
    /* ctw_linear_qkv() in one step. *done false: this shape is not supported, nothing was done.
     * Member NULL: no shape is supported. */
    enum ctw_status (*linear_qkv)(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  const struct ctw_op_qkv *qkv, bool *done, struct ctw_err *err);
    enum ctw_status (*attention)(struct ctw_backend *be, const struct ctw_op_attention *op,
                                 struct ctw_err *err);
    enum ctw_status (*head)(struct ctw_backend *be, const struct ctw_op_head *op,
                            struct ctw_err *err);
};

extern const struct ctw_backend_ops ctw_backend_cpu;

/*
 * The CUDA backend is a separate shared object, opened on demand: next to the program, in ../lib
 * relative to it, or at the path in CTWORKER_CUDA_LIBRARY. CTW_EUNSUP: the library or one of its
 * dependencies is missing, or its contract differs from this program's; the message says which.
 */
enum ctw_status ctw_cuda_load(const struct ctw_backend_ops **out,
                              struct ctw_err *err) CTW_MUST_CHECK;

/*
 * The exports of the shared object. ctw_cuda_contract() returns the CTW_CONTRACT that the library
 * was compiled with (kernels/contract.h, generated by the build): a hash of this header and of
 * everything else that the library shares with the program, including the formats and their
 * decoders. Nothing else may be called unless it equals the program's own CTW_CONTRACT.
 */
typedef const char *ctw_cuda_contract_fn(void);
typedef const struct ctw_backend_ops *ctw_cuda_ops_fn(void);
#define CTW_CUDA_CONTRACT_SYMBOL "ctw_cuda_contract"
#define CTW_CUDA_OPS_SYMBOL "ctw_cuda_ops"

/*
 * name: "auto", "cpu" or "cuda". auto (or NULL) selects the GPU if the library, a driver and a
 * supported GPU are present, else the CPU; info's `reason` says which and why. CTW_EINVAL: unknown
 * name or variant; the message lists the names available on this machine. CTW_EUNSUP: "cuda" is not
 * available.
 */
enum ctw_status ctw_backend_open(struct ctw_backend **out, const char *name,
                                 const struct ctw_backend_options *opt,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_backend_close(struct ctw_backend *be); /* NULL is a no-op */
void ctw_backend_get_info(const struct ctw_backend *be, struct ctw_backend_info *out);
void ctw_backend_describe(const struct ctw_backend *be, char *buf, size_t cap); /* truncates */
const struct ctw_backend_traits *ctw_backend_traits(const struct ctw_backend *be);
size_t ctw_backend_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r);
enum ctw_status ctw_backend_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                    struct ctw_err *err) CTW_MUST_CHECK;
void ctw_backend_trim(struct ctw_backend *be);
uint64_t ctw_backend_memory_free(const struct ctw_backend *be);
enum ctw_status ctw_backend_sync(struct ctw_backend *be, struct ctw_err *err) CTW_MUST_CHECK;

enum ctw_status ctw_device_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_device_free(struct ctw_backend *be, void *p); /* NULL is a no-op */
enum ctw_status ctw_device_upload(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                  struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_device_download(struct ctw_backend *be, void *dst, const void *src,
                                    size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_device_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Uploads of weights to the device, from the layer provider's own threads. ctw_stage_alloc(),
 * ctw_stage_free(), ctw_upload_begin() and ctw_upload_wait() may be called from any thread, all
 * other functions except ctw_fence_wait() only from the thread that uses the backend. A stage is
 * host memory that is fast to copy from (pinned memory on the GPU). Once ctw_upload_wait() of an
 * upload's ticket returns, that upload has finished reading its stage. Operations called after
 * ctw_upload_join() see all uploads begun before that call; ctw_upload_join() does not block.
 */
enum ctw_status ctw_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_stage_free(struct ctw_backend *be, void *p); /* NULL is a no-op */
enum ctw_status ctw_upload_begin(struct ctw_backend *be, void *dst, const void *stage, size_t bytes,
                                 uint64_t *ticket, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_upload_wait(struct ctw_backend *be, uint64_t ticket,
                                struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_upload_join(struct ctw_backend *be, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Fences, for the owner of memory that operations read (worker/weights/provider.h). A fence covers
 * all calls made before it was recorded, including ctw_prepare(): once ctw_fence_wait() has
 * returned, with any status, none of those calls reads memory any more. The thread that uses the
 * backend records fences; any thread may wait for a fence, any number of times.
 */
enum ctw_status ctw_fence_record(struct ctw_backend *be, uint64_t *fence,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_fence_wait(struct ctw_backend *be, uint64_t fence,
                               struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Announces products with op's shards, dtype, epilogue and slot (the other fields are not read).
 * The backend may decode their weights now, once, into the slot. Linear operations of that slot
 * that name the same shards use the decoded weights until the next ctw_prepare() of the slot. If
 * the bytes of shards have changed since, the shards must therefore be announced again before an
 * operation names them. n_shards 0: empties the slot. Without ctw_prepare(), each operation decodes
 * its own weights. A fence shows when the bytes may change, as for any other operation.
 */
enum ctw_status ctw_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                            struct ctw_err *err) CTW_MUST_CHECK;

enum ctw_status ctw_decode(struct ctw_backend *be, const struct ctw_op_decode *op,
                           struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_embed(struct ctw_backend *be, const struct ctw_op_embed *op,
                          struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_norm(struct ctw_backend *be, const struct ctw_op_norm *op,
                         struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_act(struct ctw_backend *be, const struct ctw_op_act *op,
                        struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                           struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_qkv(struct ctw_backend *be, const struct ctw_op_qkv *op,
                        struct ctw_err *err) CTW_MUST_CHECK;
/*
 * ctw_linear() with CTW_EPI_STORE, then ctw_qkv() of its y, which is qkv->qkv. Done in one step if
 * the backend can; that depends on the model and never on n_tok. Therefore q, k and v must not
 * overlap x, and the content of y afterwards is undefined.
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
