/*
 * The contract of every numeric operation. worker/ reaches backends only through the functions
 * declared here; backend.c checks shapes and calls the table. operations.h says what each operation
 * computes.
 *
 * Memory. Pointers marked "device" come from ctw_device_alloc() (or, for weights, from the layer
 * provider). The worker never dereferences them. On the CPU they are host pointers.
 *
 * Order. Operations of one backend run in call order and may return before they have finished.
 * ctw_device_download() and ctw_backend_sync() wait for completion. A fence shows when memory that
 * operations read may be reused. A backend is not thread-safe: one thread uses it, except for the
 * upload and fence functions below.
 */
#ifndef CTW_KERNELS_BACKEND_H
#define CTW_KERNELS_BACKEND_H

#include "kernels/indexing.h"
#include "kernels/list.h"
#include "kernels/operations.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ctw_backend_ops;

/* First member of every backend's own struct. */
struct ctw_backend {
    const struct ctw_backend_ops *ops;
    char reason[256]; /* why this backend was selected; set by ctw_backend_open() */
    void *inputs;     /* device: products' own inputs, and outputs (kernels/shard_inputs.c) */
    size_t inputs_bytes;
};

struct ctw_backend_options {
    const char *variant;      /* CPU; NULL: the best variant for this machine; else its name */
    const char *cuda_variant; /* GPU; NULL: the best variant for this GPU; else its name */
    int n_threads;            /* CPU; 0: all */
    int device;               /* GPU index */
};

struct ctw_backend_info {
    const char *backend; /* "cpu", "cuda" */
    const char *variant; /* "c", "avx2", "avx512", "avx512bf16", "amx"; "general", "hopper" */
    char device[96];     /* the processor's name */
    char numerics[96];   /* what a score's last bit depends on: "cpu-avx2", "cuda-hopper-sm90-.." */
    char reason[256];    /* why this backend was selected */
    char pci[20], uuid[48]; /* of a GPU, as nvidia-smi prints them: "00000000:18:00.0",
                               "GPU-.."; "" on the CPU, or if the driver does not say */
    int n_threads;          /* CPU */
    uint64_t memory_total;  /* bytes of the GPU; 0 on the CPU */
    double flops;           /* about, a second, in products of 16 bits; 0: not known */
};

/* What the planner needs to know about a backend. */
struct ctw_backend_traits {
    bool host_memory;     /* operations read the mapped files, and only before their call returns */
    int64_t chunk_tokens; /* number of rows from which on products run at full throughput */
    int64_t pass_tokens;  /* more tokens per pass bring no worthwhile gain... */
    int64_t mixture_pass_tokens; /* ...or, of a mixture, whose experts share a pass's tokens */
    double pass_flops;           /* about one minute of work */
    bool decodes_ahead; /* ctw_prepare() decodes all weights that are not dense, and no operation
                           of the slot reads their bytes afterwards */
};

/* How bytes come from another device's memory. */
enum ctw_link {
    CTW_LINK_HOST,   /* through the host */
    CTW_LINK_DIRECT, /* on the path that host memory has, too */
    CTW_LINK_FASTER  /* than from host memory */
};

/* ---- the table ---------------------------------------------------------------------------- */

/* Upper bounds on the operations to come; a backend allocates its own memory accordingly. */
struct ctw_reserve {
    enum ctw_dtype dtype;
    int64_t n_tok;                   /* rows of a chunk, and of one ctw_head() call */
    int64_t n_rows;                  /* rows of a product */
    int64_t max_k;                   /* the largest inner dimension of a product */
    int64_t max_n;                   /* the most columns of a product, gate and up together */
    int64_t slot_elems[CTW_N_SLOTS]; /* the largest total n * k over the shards of a slot */
    int64_t n_seqs;                  /* sequences in a chunk */
    int max_head, max_group; /* of attention: elements of a head of any kind, query heads to a key
                                head */
    int64_t relative;        /* elements of the largest proj of a learned bias; 0: none */
    int64_t state; /* the most elements of a head's recurrent state, ctw_delta_padded(); 0: none */
    int64_t n_vocab, head_k; /* of the head: number of rows, and their width */
    int64_t input_elems;     /* of a row: a product's own input and output, see ctw_input_elems() */
    int64_t rotation;        /* elements of the largest block that is rotated; 0: none */
    int n_experts, chosen;   /* of a mixture; 0: none */
    int64_t n_grouped;       /* rows of one ctw_group() call */
    int64_t index_keys;      /* of one sequence, for ctw_index(); 0: none */
};

#define CTW_OPERATION_STRUCT(name) struct ctw_op_##name;
CTW_OPERATIONS(CTW_OPERATION_STRUCT)
#undef CTW_OPERATION_STRUCT

#define CTW_OPERATION_MEMBER(name)                                                                 \
    enum ctw_status (*name)(struct ctw_backend * be, const struct ctw_op_##name *op,               \
                            struct ctw_err *err);

/* All members are required but linear_qkv, linear_act, linear_pair and norm_act. Only the checked
 * calls use them. */
struct ctw_backend_ops {
    const char *name;
    struct ctw_backend_traits traits;
    /* The number of devices, at least 1. */
    enum ctw_status (*count)(int *n, struct ctw_err *err);
    /* The UUID of a device that count() counts, as in struct ctw_backend_info. */
    enum ctw_status (*uuid)(int device, char out[48],
                            struct ctw_err *err); /* NULL: they have none */
    enum ctw_status (*open)(struct ctw_backend **out, const struct ctw_backend_options *opt,
                            struct ctw_err *err);
    void (*close)(struct ctw_backend *be);
    void (*info)(const struct ctw_backend *be, struct ctw_backend_info *out);
    /* The choices that operations have made so far, one line per choice; "" if there are none. */
    void (*describe)(const struct ctw_backend *be, char *buf, size_t cap);
    /* Upper bound on the bytes that operations within r allocate for themselves (and keep for
     * reuse). For the planner. */
    size_t (*scratch_bytes)(const struct ctw_backend *be, const struct ctw_reserve *r);
    /* See ctw_backend_head_rows(). */
    int64_t (*head_rows)(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k, bool plain);
    /* Allocates that memory now, if allocating it in the middle of a pass could fail. What earlier
     * calls allocated for larger operations stays, until trim. */
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
    enum ctw_status (*zero)(struct ctw_backend *be, void *p, size_t bytes, struct ctw_err *err);
    enum ctw_status (*sync)(struct ctw_backend *be, struct ctw_err *err);
    /* Uploads from other threads; see ctw_upload_begin(). Never called if traits.host_memory. */
    enum ctw_status (*stage_alloc)(struct ctw_backend *be, void **out, size_t bytes,
                                   struct ctw_err *err);
    void (*stage_free)(struct ctw_backend *be, void *p);
    enum ctw_status (*upload_begin)(struct ctw_backend *be, void *dst, const void *stage,
                                    size_t bytes, uint64_t *ticket, struct ctw_err *err);
    enum ctw_status (*peer_begin)(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                                  const void *src, size_t bytes, uint64_t *ticket,
                                  struct ctw_err *err);
    enum ctw_link (*peer_link)(struct ctw_backend *be, struct ctw_backend *from);
    enum ctw_status (*upload_wait)(struct ctw_backend *be, uint64_t ticket, struct ctw_err *err);
    enum ctw_status (*upload_join)(struct ctw_backend *be, struct ctw_err *err);
    enum ctw_status (*fence_record)(struct ctw_backend *be, uint64_t *fence, struct ctw_err *err);
    enum ctw_status (*fence_wait)(struct ctw_backend *be, uint64_t fence, struct ctw_err *err);
    enum ctw_status (*prepare)(struct ctw_backend *be, const struct ctw_op_linear *op,
                               struct ctw_err *err);
    enum ctw_status (*linear)(struct ctw_backend *be, const struct ctw_op_linear *op,
                              struct ctw_err *err);
    /* ctw_linear_qkv() in one step. *done false: this shape is not supported, nothing was done.
     * Member NULL: no shape is supported. */
    enum ctw_status (*linear_qkv)(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  const struct ctw_op_qkv *qkv, bool *done, struct ctw_err *err);
    /* ctw_linear_act() in one step. *done false: nothing was done. */
    enum ctw_status (*linear_act)(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  const struct ctw_op_act *act, bool *done, struct ctw_err *err);
    /* act: of the gathered product's y, or NULL. *done false: nothing was done. */
    enum ctw_status (*linear_pair)(struct ctw_backend *be, const struct ctw_op_linear *gathered,
                                   const struct ctw_op_act *act,
                                   const struct ctw_op_linear *scattered, bool *done,
                                   struct ctw_err *err);
    /* ctw_norm_act() in one step. *done false: nothing was done. */
    enum ctw_status (*norm_act)(struct ctw_backend *be, const struct ctw_op_norm *norm,
                                const struct ctw_op_act *act, bool *done, struct ctw_err *err);
    CTW_OPERATIONS(CTW_OPERATION_MEMBER)
};
#undef CTW_OPERATION_MEMBER

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
/* A GPU that only plans: it answers questions about memory as a GPU with so many bytes does, so
 * that the planner needs no GPU. Nothing else may be called. */
enum ctw_status ctw_backend_open_planned(struct ctw_backend **out, uint64_t memory,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/* The number of devices of this kind of backend that the process sees; of the CPU, 1. */
enum ctw_status ctw_backend_count(const struct ctw_backend *be, int *n,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Finds the visible GPU whose UUID begins with `uuid` ("GPU-..", "MIG-..", as nvidia-smi -L prints
 * it). CTW_EINVAL: no GPU matches, several do, or the backend `name` is "cpu". */
enum ctw_status ctw_backend_find(const char *name, const char *uuid, int *device,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_backend_get_info(const struct ctw_backend *be, struct ctw_backend_info *out);
void ctw_backend_describe(const struct ctw_backend *be, char *buf, size_t cap); /* truncates */
const struct ctw_backend_traits *ctw_backend_traits(const struct ctw_backend *be);
/* Parts of a head begin at multiples of so many rows (struct ctw_op_head). plain: it has no softcap
 * and no bias. */
int64_t ctw_backend_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                              bool plain);
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
enum ctw_status ctw_device_zero(struct ctw_backend *be, void *p, size_t bytes,
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
/*
 * Begins a copy to this device from the memory of another (or from its own), in the order of the
 * uploads and with a ticket among theirs; from any thread. The source holds its bytes already:
 * their uploads have been waited for; and keeps them until ctw_upload_wait() of the ticket returns.
 * `from` is of the same backend. Without a direct path between two devices, the bytes go through
 * the host.
 */
enum ctw_status ctw_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                               const void *src, size_t bytes, uint64_t *ticket,
                               struct ctw_err *err) CTW_MUST_CHECK;
/* The link to another device of the same backend. Any thread. */
enum ctw_link ctw_peer_link(struct ctw_backend *be, struct ctw_backend *from);
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
 * operation names them; or no operation reads them any more (traits.decodes_ahead). n_shards 0:
 * empties the slot. Without ctw_prepare(), each operation decodes its own weights. A fence shows
 * when the bytes may change, as for any other operation.
 */
enum ctw_status ctw_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                            struct ctw_err *err) CTW_MUST_CHECK;

/*
 * With shards that rotate or quantise their input, x becomes so in memory of the backend's (also
 * for ctw_linear_qkv() and ctw_head()); the backends' own operations never see such shards. Shards
 * with unequal inputs or a rotated output are products by themselves, which ctw_prepare() does not
 * prepare. What is rotated at last is rounded to `dtype` before and after.
 */
enum ctw_status ctw_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                           struct ctw_err *err) CTW_MUST_CHECK;
/* Are op's shards several products, because of unequal inputs or rotated outputs? */
bool ctw_inputs_split(const struct ctw_op_linear *op);
/* The elements per row that op needs for that; 0: no shard does any of it. */
int64_t ctw_input_elems(const struct ctw_op_linear *op);
/*
 * ctw_linear() with CTW_EPI_STORE, then ctw_qkv() of its y, which is qkv->qkv. Done in one step if
 * the backend can; that depends on the model and never on n_tok. Therefore q, k and v must not
 * overlap x, and the content of y afterwards is undefined.
 */
enum ctw_status ctw_linear_qkv(struct ctw_backend *be, const struct ctw_op_linear *op,
                               const struct ctw_op_qkv *qkv, struct ctw_err *err) CTW_MUST_CHECK;
/*
 * ctw_linear() with CTW_EPI_STORE, then ctw_act() of its y, in place and without `up`. Done in one
 * step, with the same bits, if the backend can: sums are rounded before the activation, too.
 */
enum ctw_status ctw_linear_act(struct ctw_backend *be, const struct ctw_op_linear *op,
                               const struct ctw_op_act *act, struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Two products of experts: one gathers its rows (x_rows), and `act`, unless it is NULL, follows as
 * in ctw_linear_act(); the other scatters them (CTW_EPI_SCATTER). Either may be NULL. Neither reads
 * or writes what the other writes, so the backend may compute both at once.
 */
enum ctw_status ctw_linear_pair(struct ctw_backend *be, const struct ctw_op_linear *gathered,
                                const struct ctw_op_act *act, const struct ctw_op_linear *scattered,
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * ctw_norm(), then ctw_act(), whose `up` is the norm's y and whose y may be it, too: rows of `act`
 * are rows of the norm, or parts of equal width. Done in one step, with the same bits, if the
 * backend can; then the norm's y is not written unless it is act's.
 */
enum ctw_status ctw_norm_act(struct ctw_backend *be, const struct ctw_op_norm *norm,
                             const struct ctw_op_act *act, struct ctw_err *err) CTW_MUST_CHECK;

/* The operations of list.h: each checks its arguments, and calls the backend's. */
#define CTW_OPERATION_CALL(name)                                                                   \
    enum ctw_status ctw_##name(struct ctw_backend *be, const struct ctw_op_##name *op,             \
                               struct ctw_err *err) CTW_MUST_CHECK;
CTW_OPERATIONS(CTW_OPERATION_CALL)
#undef CTW_OPERATION_CALL

#ifdef __cplusplus
}
#endif

#endif
