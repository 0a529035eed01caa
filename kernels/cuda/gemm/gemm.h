/*
 * Shared by gemm.cu, gemm_choose.cu, gemm_trial.cu and gemm_file.cu: kinds of products and the
 * algorithms chosen for them.
 *
 * A kind of product has one class of algorithms: the algorithms whose results are bit-identical to
 * its reference's at every tried number of rows and position of a row. Only speed decides which of
 * them runs, so neither the clock nor the file of choices can change a score. The reference is the
 * first algorithm that cuBLASLt proposes for 2048 rows without splitting k and that passes the same
 * test against itself.
 */
#ifndef CTW_KERNELS_CUDA_GEMM_H
#define CTW_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/cuda.h"

/* 1: every product that gemm_hopper.cu supports runs there, without asking cuBLASLt; its bits
 * then define the class. 0: it competes with cuBLASLt's algorithms and must give equal bits. */
#ifndef CTW_HOPPER_OWN_CLASS
#define CTW_HOPPER_OWN_CLASS 0
#endif

struct ctw_gemm_kind {
    int64_t n, k;
    enum ctw_dtype dtype, y_dtype;
    bool add, bias;
};

struct ctw_gemm_algo {
    bool own; /* gemm_hopper.cu's; else cuBLASLt's */
    cublasLtMatmulAlgo_t lt;
};

/* One choice each for at most 256 rows, for at most 1024 rows, and for more. */
enum { CTW_GEMM_SIZES = 3 };

struct ctw_gemm_choice {
    struct ctw_gemm_algo algo;
    float us;  /* measured time */
    int64_t m; /* at this number of rows */
};

struct ctw_gemm_class {
    struct ctw_gemm_kind kind;
    bool library;   /* cuBLASLt supports it; if false, the other fields are void */
    bool from_file; /* and not checked since */
    struct ctw_gemm_algo reference;
    struct ctw_gemm_choice choice[CTW_GEMM_SIZES];
};

struct ctw_cuda_gemms {
    struct ctw_gemm_class *classes;
    size_t n, cap;
    char *path;  /* of the file of choices; NULL: none */
    bool warned; /* that a product runs on the slow kernel */
};

/* ---- gemm_lt.cu --------------------------------------------------------------------------- */

/* A product as cuBLASLt sees it: D [n, m] = A^T B with A = w [k, n] and B = x [k, m], column-major. */
struct ctw_gemm_lt {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
};

cublasStatus_t ctw_gemm_lt_open(struct ctw_gemm_lt *p, const struct ctw_cuda_gemm *g);
cublasStatus_t ctw_gemm_lt_run(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                               const cublasLtMatmulAlgo_t *algo);
/* Does cuBLASLt accept this algorithm for m rows of this kind? */
bool ctw_gemm_lt_takes(struct ctw_cuda *cu, const struct ctw_gemm_kind *kind, int64_t m,
                       const cublasLtMatmulAlgo_t *algo);

/* ---- gemm_choose.cu ----------------------------------------------------------------------- */

/* Fills every field except c->kind. g is the product at hand: measuring uses its x, and its y if
 * y will be overwritten. Waits for the stream. */
enum ctw_status ctw_gemm_choose(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                struct ctw_gemm_class *c, struct ctw_err *err);
/* Are a remembered class's choices still valid? */
enum ctw_status ctw_gemm_still_right(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                     const struct ctw_gemm_class *c, bool *right, struct ctw_err *err);

/* ---- gemm_trial.cu ------------------------------------------------------------------------ */

enum {
    CTW_GEMM_X_BYTES = 56 << 20,
    CTW_GEMM_W_BYTES = 32 << 20,
    CTW_GEMM_Y_BYTES = 32 << 20, /* together with W_BYTES if the product's own weights are used */
    CTW_GEMM_BIAS_BYTES = 4 << 20,
    CTW_GEMM_HASHES = 16384,
    CTW_GEMM_WINDOWS = 7
};

/* One matrix w on which algorithms are tried. */
struct ctw_gemm_stage {
    const void *w;
    int64_t n, m, ldw;
    void *y;
    int64_t ldy;
    struct {
        int64_t row, rows;
    } window[CTW_GEMM_WINDOWS]; /* the first is all rows */
    int n_windows;
    uint64_t *want; /* host [m]: the reference's hashes */
};

/* Device memory with random numbers for products of g's kind. */
struct ctw_gemm_trial {
    struct ctw_cuda *cu;
    const struct ctw_cuda_gemm *g;
    char *base, *x, *w, *bias, *bias_y; /* device; base is the allocation */
    uint64_t *hashes;                   /* device [CTW_GEMM_HASHES] */
    uint64_t *host;                     /* [3][CTW_GEMM_HASHES] */
    struct ctw_gemm_stage tile, whole;  /* random columns of w; g's own w */
};

/* *fits false: rows are too long for any trial. */
enum ctw_status ctw_gemm_trial_open(struct ctw_gemm_trial *t, struct ctw_cuda *cu,
                                    const struct ctw_cuda_gemm *g, bool *fits, struct ctw_err *err);
void ctw_gemm_trial_close(struct ctw_gemm_trial *t); /* accepts a partly opened trial */
/* Rows row .. row+rows-1 of x times the stage's w; at most stage->m rows are there. */
struct ctw_cuda_gemm ctw_gemm_trial_product(const struct ctw_gemm_trial *t,
                                            const struct ctw_gemm_stage *s, int64_t row, int64_t rows);
/* Queues it; *done false: the algorithm does not do this product. */
enum ctw_status ctw_gemm_trial_run(struct ctw_gemm_trial *t, const struct ctw_gemm_algo *algo,
                                   const struct ctw_cuda_gemm *g, bool *done, struct ctw_err *err);
/* Does it give the reference's bits in every window? is_reference: compares it with itself, and
 * keeps its hashes. */
enum ctw_status ctw_gemm_trial_equal(struct ctw_gemm_trial *t, const struct ctw_gemm_algo *algo,
                                     bool is_reference, bool *equal, struct ctw_err *err);

/* ---- gemm_file.cu ------------------------------------------------------------------------- */

/* Version of the rule by which gemm_choose.cu and gemm_trial.cu choose. Raise it if they, or our
 * own kernels that they choose among, change in a way that may make other choices right: files
 * of older rules are ignored. */
enum { CTW_GEMM_RULE = 1 };

/* Reads the file of choices for this rule, GPU and these libraries, if it exists. A file for
 * others is ignored with a log message, and overwritten once something has been chosen. */
enum ctw_status ctw_gemm_file_open(struct ctw_cuda *cu, struct ctw_err *err);
/* Writes all choices; a failure is logged as a warning, once. */
void ctw_gemm_file_save(struct ctw_cuda *cu);
/* Adds a class; NULL if out of memory. Invalidates pointers to other classes. */
struct ctw_gemm_class *ctw_gemm_add(struct ctw_cuda_gemms *gemms);

#endif
