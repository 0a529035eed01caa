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

struct ctw_cpu_variant {
    const char *name;
    bool (*runs_here)(void); /* do the processor and the operating system support it? */
    size_t (*scratch_bytes)(const struct ctw_cpu *cpu, const struct ctw_reserve *r);
    enum ctw_status (*embed)(struct ctw_cpu *cpu, const struct ctw_op_embed *op,
                             struct ctw_err *err);
    enum ctw_status (*norm)(struct ctw_cpu *cpu, const struct ctw_op_norm *op, struct ctw_err *err);
    enum ctw_status (*act)(struct ctw_cpu *cpu, const struct ctw_op_act *op, struct ctw_err *err);
    enum ctw_status (*quantise)(struct ctw_cpu *cpu, const struct ctw_op_quantise *op,
                                struct ctw_err *err);
    enum ctw_status (*linear)(struct ctw_cpu *cpu, const struct ctw_op_linear *op,
                              struct ctw_err *err);
    enum ctw_status (*qkv)(struct ctw_cpu *cpu, const struct ctw_op_qkv *op, struct ctw_err *err);
    enum ctw_status (*attention)(struct ctw_cpu *cpu, const struct ctw_op_attention *op,
                                 struct ctw_err *err);
    enum ctw_status (*head)(struct ctw_cpu *cpu, const struct ctw_op_head *op, struct ctw_err *err);
    enum ctw_status (*divergence)(struct ctw_cpu *cpu, const struct ctw_op_divergence *op,
                                  struct ctw_err *err);
};

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

extern const struct ctw_cpu_variant ctw_cpu_avx512bf16, ctw_cpu_avx512, ctw_cpu_avx2; /* x86-64 */
extern const struct ctw_cpu_variant ctw_cpu_c;

/*
 * *out = at least `bytes` of memory for one operation, aligned to 64 bytes, contents undefined. The
 * memory is kept for the next operation and grows on demand; growing invalidates earlier pointers.
 */
enum ctw_status ctw_cpu_scratch(struct ctw_cpu *cpu, size_t bytes, void **out,
                                struct ctw_err *err) CTW_MUST_CHECK;

/* Instruction sets that both the processor and the operating system support. */
bool ctw_cpu_has_c(void);
bool ctw_cpu_has_avx2(void);       /* AVX2, FMA, F16C */
bool ctw_cpu_has_avx512(void);     /* AVX2, FMA, F16C, and AVX512 F, BW, DQ, VL */
bool ctw_cpu_has_avx512bf16(void); /* the same, and AVX512_BF16 */
bool ctw_cpu_is_intel(void);
/* The processor's name, or "unknown". */
void ctw_cpu_name(char *out, size_t n);

/* act(g); `param` is NULL for activations without parameters. */
double ctw_cpu_activate(enum ctw_activation act, const float *param, double g);
/* A gate and an up joined. */
double ctw_cpu_glu(enum ctw_activation act, const struct ctw_glu *glu, double g, double u);

/* The reference operations (c_*.c). */
enum ctw_status ctw_cpu_embed_c(struct ctw_cpu *cpu, const struct ctw_op_embed *op,
                                struct ctw_err *err);
enum ctw_status ctw_cpu_norm_c(struct ctw_cpu *cpu, const struct ctw_op_norm *op,
                               struct ctw_err *err);
enum ctw_status ctw_cpu_act_c(struct ctw_cpu *cpu, const struct ctw_op_act *op,
                              struct ctw_err *err);
enum ctw_status ctw_cpu_quantise_c(struct ctw_cpu *cpu, const struct ctw_op_quantise *op,
                                   struct ctw_err *err);
enum ctw_status ctw_cpu_linear_c(struct ctw_cpu *cpu, const struct ctw_op_linear *op,
                                 struct ctw_err *err);
enum ctw_status ctw_cpu_qkv_c(struct ctw_cpu *cpu, const struct ctw_op_qkv *op,
                              struct ctw_err *err);
enum ctw_status ctw_cpu_attention_c(struct ctw_cpu *cpu, const struct ctw_op_attention *op,
                                    struct ctw_err *err);
enum ctw_status ctw_cpu_head_c(struct ctw_cpu *cpu, const struct ctw_op_head *op,
                               struct ctw_err *err);
enum ctw_status ctw_cpu_divergence_c(struct ctw_cpu *cpu, const struct ctw_op_divergence *op,
                                     struct ctw_err *err);
/* For every variant: next to a layer's products, these take next to no time. */
enum ctw_status ctw_cpu_difference(struct ctw_cpu *cpu, const struct ctw_op_difference *op,
                                   struct ctw_err *err);
enum ctw_status ctw_cpu_latent(struct ctw_cpu *cpu, const struct ctw_op_latent *op,
                               struct ctw_err *err);
enum ctw_status ctw_cpu_gate(struct ctw_cpu *cpu, const struct ctw_op_gate *op,
                             struct ctw_err *err);
enum ctw_status ctw_cpu_rotate(struct ctw_cpu *cpu, const struct ctw_op_rotate *op,
                               struct ctw_err *err);
enum ctw_status ctw_cpu_index(struct ctw_cpu *cpu, const struct ctw_op_index *op,
                              struct ctw_err *err);
size_t ctw_cpu_index_bytes(const struct ctw_cpu *cpu, int64_t n_keys);
size_t ctw_cpu_rotate_bytes(const struct ctw_cpu *cpu, int64_t size);
enum ctw_status ctw_cpu_route(struct ctw_cpu *cpu, const struct ctw_op_route *op,
                              struct ctw_err *err);
enum ctw_status ctw_cpu_group(const struct ctw_op_group *op);

#endif
