/*
 * Internals of the CPU backend: one struct, one table of operations for each variant. Variant "c"
 * has the plain reference operations (c_*.c); the others are the fast engine compiled for one
 * instruction set each. A variant's operation returns when its results are in memory.
 */
#ifndef CTW_KERNELS_CPU_H
#define CTW_KERNELS_CPU_H

#include "base/threads.h"
#include "kernels/backend.h"

struct ctw_cpu;

/* The operations of which each variant has its own; all variants share the others. */
#define CTW_CPU_VARIED(X)                                                                          \
    X(embed)                                                                                       \
    X(norm)                                                                                        \
    X(act)                                                                                         \
    X(quantise)                                                                                    \
    X(linear)                                                                                      \
    X(qkv)                                                                                         \
    X(conv)                                                                                        \
    X(delta)                                                                                       \
    X(attention)                                                                                   \
    X(ssm)                                                                                         \
    X(lru)                                                                                         \
    X(head)                                                                                        \
    X(divergence)

#define CTW_CPU_MEMBER(name)                                                                       \
    enum ctw_status (*name)(struct ctw_cpu * cpu, const struct ctw_op_##name *op,                  \
                            struct ctw_err *err);

struct ctw_cpu_variant {
    const char *name;
    const char *(*lacks)(void); /* what the variant needs and this machine lacks; NULL: nothing */
    bool by_request;            /* never chosen by default */
    size_t (*scratch_bytes)(const struct ctw_cpu *cpu, const struct ctw_reserve *r);
    CTW_CPU_VARIED(CTW_CPU_MEMBER)
};
#undef CTW_CPU_MEMBER

/* Parts of a head begin at multiples of what a task of any variant decodes. The definition keeps so
 * many bytes for each row. */
enum { CTW_CPU_HEAD_ROWS = 128, CTW_CPU_HEAD_STATE = 32 };

struct ctw_cpu {
    struct ctw_backend backend; /* first: a struct ctw_backend * is a struct ctw_cpu * */
    const struct ctw_cpu_variant *variant;
    struct ctw_threads *threads;
    void *scratch; /* see ctw_cpu_scratch */
    size_t scratch_bytes;
};

/* Every variant in this build, best first; NULL-terminated. The last is "c". */
extern const struct ctw_cpu_variant *const ctw_cpu_variants[];

extern const struct ctw_cpu_variant ctw_cpu_amx, ctw_cpu_avx512bf16, ctw_cpu_avx512,
    ctw_cpu_avx2; /* x86-64 */
extern const struct ctw_cpu_variant ctw_cpu_c;
extern const struct ctw_cpu_variant ctw_cpu_amx_emulated; /* for tests (CTW_WITH_AMX_EMULATED) */

/* The formats' decoders, compiled for one instruction set: for the variants that have it. */
extern ctw_decode_fn *const ctw_decoders_avx2[], *const ctw_decoders_avx512[]; /* by format */

/*
 * *out = at least `bytes` of memory for one operation, aligned to 64 bytes, contents undefined. The
 * memory is kept for the next operation and grows on demand; growing invalidates earlier pointers.
 */
enum ctw_status ctw_cpu_scratch(struct ctw_cpu *cpu, size_t bytes, void **out,
                                struct ctw_err *err) CTW_MUST_CHECK;

/* What this machine, processor and operating system together, lacks for a variant: a clause for an
 * error message. NULL: nothing. */
const char *ctw_cpu_lacks_none(void);
const char *ctw_cpu_lacks_avx2(void);       /* AVX2, FMA, F16C */
const char *ctw_cpu_lacks_avx512(void);     /* the same, and AVX512 F, BW, DQ, VL */
const char *ctw_cpu_lacks_avx512bf16(void); /* the same, and AVX512_BF16 */
/* AVX-512, AMX_TILE and AMX_BF16. Asks the kernel for permission to use tiles, for the process. */
const char *ctw_cpu_lacks_amx(void);
bool ctw_cpu_is_intel(void);
/* The processor's name, or "unknown". */
void ctw_cpu_name(char *out, size_t n);

/* act(g); `param` is NULL for activations without parameters. */
double ctw_cpu_activate(enum ctw_activation act, const float *param, double g);
double ctw_cpu_softplus(double x); /* ln(1 + e^x) */
/* A gate and an up joined. */
double ctw_cpu_glu(enum ctw_activation act, const struct ctw_glu *glu, double g, double u);

/* The reference operations (c_*.c). */
#define CTW_CPU_REFERENCE(name)                                                                    \
    enum ctw_status ctw_cpu_##name##_c(struct ctw_cpu *cpu, const struct ctw_op_##name *op,        \
                                       struct ctw_err *err);
CTW_CPU_VARIED(CTW_CPU_REFERENCE)
#undef CTW_CPU_REFERENCE

/* Every operation: the variant's own, or the one for all (c_*.c), which takes next to no time
 * beside a layer's products. */
#define CTW_CPU_OPERATION(name)                                                                    \
    enum ctw_status ctw_cpu_##name(struct ctw_cpu *cpu, const struct ctw_op_##name *op,            \
                                   struct ctw_err *err);
CTW_OPERATIONS(CTW_CPU_OPERATION)
CTW_CPU_OPERATION(linear)
#undef CTW_CPU_OPERATION

/* What the last sequence of a convolution leaves. */
void ctw_conv_leave(const struct ctw_op_conv *op);
size_t ctw_cpu_index_bytes(const struct ctw_cpu *cpu, int64_t n_keys);
size_t ctw_cpu_rotate_bytes(const struct ctw_cpu *cpu, int64_t size);

#endif
