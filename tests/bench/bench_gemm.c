/*
 * Rates of the CPU backend's linear and attention operations on the shapes of SmolLM2-135M, oneDNN
 * and our kernels interleaved. Prints medians of the repetitions, their spread (max - min over
 * median), and the ratio. oneDNN's weights are put into its own layout before the clock starts; our
 * weights are decoded and packed from the checkpoint's layout within the measured time.
 *
 *   bench_gemm [--threads 2] [--rows 2048] [--repeat 7] [--variant NAME]
 *                                [--dtype float32|bfloat16] [--cpu-time]
 *                                [--only linear|formats|attention|head] [--size 576]
 *
 * --size: columns of the formats' matrices, of 1536 rows or as many as columns. --cpu-time counts
 * the CPU time of the process instead of wall-clock time, for 1 thread on a busy machine.
 */
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/backend.h"
#include "kernels/formats/ggml/ggml_types.h"

enum { MAX_REPEAT = 99 };

struct settings {
    int n_threads, n_repeat;
    int64_t n_rows, size;
    const char *variant;
    const char *only; /* "linear", "formats", "attention", "head"; NULL: all */
    enum ctw_dtype dtype;
    clockid_t clock;
};

static struct ctw_err err;

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static void ok(enum ctw_status st)
{
    if (st != CTW_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

static double now_s(const struct settings *s)
{
    struct timespec t;
    clock_gettime(s->clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *random_values(enum ctw_dtype dtype, int64_t n)
{
    void *p = must(ctw_alloc_aligned((size_t)n * ctw_dtype_bytes(dtype)));
    uint32_t x = 12345;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ctw_store_float(p, dtype, i, (float)(x >> 8) * 0x1p-23f - 1.0f);
    }
    return p;
}

/* ---- weights of ours ---------------------------------------------------------------------- */

struct weight {
    struct ctw_weight w;
    struct ctw_weight_data data;
};

static void add_part(struct weight *t, enum ctw_part_kind kind, enum ctw_dtype dtype, int64_t rows,
                     int64_t cols)
{
    struct ctw_part *part = &t->w.part[kind];
    *part = (struct ctw_part){.dtype = dtype, .n_dims = cols == 0 ? 1 : 2, .shape = {rows, cols}};
    int64_t n = rows * (cols == 0 ? 1 : cols);
    part->bytes = (size_t)n * ctw_dtype_bytes(dtype);
    if (dtype == CTW_BF16 || dtype == CTW_F32) {
        t->data.part[kind] = random_values(dtype, n);
        return;
    }
    uint8_t *p = must(ctw_alloc_aligned(part->bytes));
    for (size_t i = 0; i < part->bytes; i++)
        p[i] = (uint8_t)(dtype == CTW_F8_E4M3 ? 0x30 + i % 16 : i * 37 + i / 251);
    t->data.part[kind] = p;
}

/* The weight's codes as blocks of a GGUF file. */
static void add_blocks(struct weight *t, const struct ctw_block_type *type)
{
    uint64_t bytes;
    if (!ctw_block_bytes(type, (uint64_t)(t->w.n * t->w.k), &bytes))
        exit(2);
    t->w.names = ctw_part_names_find("ggml");
    add_part(t, CTW_PART_VALUES, CTW_U8, (int64_t)bytes, 0);
    struct ctw_part *part = &t->w.part[CTW_PART_VALUES];
    *part = (struct ctw_part){.dtype = CTW_U8, .block = type, .n_dims = 2, .bytes = part->bytes};
    part->shape[0] = t->w.n;
    part->shape[1] = t->w.k;
}

static const struct ctw_block_type *block_type(const char *name)
{
    for (uint32_t id = 0; id <= CTW_BLOCK_NVFP4; id++) {
        const struct ctw_block_type *type = ctw_block_type_find(id);
        if (type != NULL && !type->plain && strcmp(type->name, name) == 0)
            return type;
    }
    return NULL;
}

/* kind: a type of blocks ("Q4_K"), "bf16", "f32", "w4a16", "gptq", "gptq order" and "awq" (groups
 * of 64), "nvfp4", "fp8" and "int8" (a scale per row), "mxfp4", "mxfp6" or "mxfp8" */
static void weight_open(struct weight *t, const char *kind, int64_t n, int64_t k)
{
    bool dense = strcmp(kind, "bf16") == 0 || strcmp(kind, "f32") == 0;
    struct ctw_quant_args args = {.present = !dense, .symmetric = true};
    memset(t, 0, sizeof(*t));
    bool gptq = strncmp(kind, "gptq", 4) == 0, transposed = gptq || strcmp(kind, "awq") == 0;
    t->w.names = ctw_part_names_find(gptq ? "gptq" : transposed ? kind : "compressed-tensors");
    for (int i = 0; i < CTW_N_PARTS; i++)
        t->w.part[i].n_dims = -1;
    t->w.n = n;
    t->w.k = k;
    int bits = kind[strlen(kind) - 1] - '0'; /* of fp4 and fp8 */
    if (block_type(kind) != NULL) {
        add_blocks(t, block_type(kind));
    } else if (transposed) {
        args.num_bits = 4;
        args.strategy = CTW_STRATEGY_GROUP;
        args.group_size = 64;
        add_part(t, CTW_PART_VALUES, CTW_I32, gptq ? k / 8 : k, gptq ? n : n / 8);
        add_part(t, CTW_PART_SCALE, CTW_BF16, k / 64, n);
        add_part(t, CTW_PART_ZERO_POINT, CTW_I32, k / 64, n / 8);
        if (strcmp(kind, "gptq order") == 0) {
            add_part(t, CTW_PART_GROUP_INDEX, CTW_I32, k, 0);
            int32_t *group = (int32_t *)(uintptr_t)t->data.part[CTW_PART_GROUP_INDEX];
            for (int64_t c = 0; c < k; c++)
                group[c] = (int32_t)(c * 7 % (k / 64));
        }
    } else if (strcmp(kind, "w4a16") == 0) {
        args.num_bits = 4;
        args.strategy = CTW_STRATEGY_GROUP;
        args.group_size = 64;
        add_part(t, CTW_PART_VALUES, CTW_I32, n, k / 8);
        add_part(t, CTW_PART_SCALE, CTW_BF16, n, k / 64);
    } else if (strcmp(kind, "nvfp4") == 0) {
        args.num_bits = 4;
        args.is_float = true;
        args.strategy = CTW_STRATEGY_TENSOR_GROUP;
        args.group_size = 16;
        add_part(t, CTW_PART_VALUES, CTW_U8, n, k / 2);
        add_part(t, CTW_PART_SCALE, CTW_F8_E4M3, n, k / 16);
        add_part(t, CTW_PART_GLOBAL_SCALE, CTW_F32, 1, 0);
    } else if (strcmp(kind, "fp8") == 0 || strcmp(kind, "int8") == 0) {
        args.num_bits = 8;
        args.is_float = kind[0] == 'f';
        args.strategy = CTW_STRATEGY_CHANNEL;
        add_part(t, CTW_PART_VALUES, args.is_float ? CTW_F8_E4M3 : CTW_I8, n, k);
        add_part(t, CTW_PART_SCALE, CTW_BF16, n, 1);
    } else if (strncmp(kind, "mxfp", 4) == 0) {
        args.num_bits = bits;
        args.is_float = true;
        args.strategy = CTW_STRATEGY_GROUP;
        args.group_size = 32;
        add_part(t, CTW_PART_VALUES, bits == 8 ? CTW_F8_E4M3 : CTW_U8, n, k * bits / 8);
        add_part(t, CTW_PART_SCALE, CTW_U8, n, k / 32);
    } else {
        add_part(t, CTW_PART_VALUES, strcmp(kind, "f32") == 0 ? CTW_F32 : CTW_BF16, n, k);
    }
    ok(ctw_format_find(&t->w.format, t->w.names, t->w.part, &err));
    ok(t->w.format->check(&t->w, &args, NULL, &err));
}

static void weight_close(struct weight *t)
{
    for (int i = 0; i < CTW_N_PARTS; i++)
        ctw_free_aligned((void *)(uintptr_t)t->data.part[i]);
}

/* ---- oneDNN ------------------------------------------------------------------------------- */

struct product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t src, weights, dst;
};

static void dn(dnnl_status_t st, const char *what)
{
    if (st != dnnl_success) {
        fprintf(stderr, "oneDNN: %s failed (%d)\n", what, (int)st);
        exit(1);
    }
}

/* The primitive of pd and its memory; w is put into the layout that oneDNN prefers. */
static void product_fill(struct product *p, dnnl_primitive_desc_t pd, dnnl_memory_desc_t xm,
                         dnnl_memory_desc_t wm, dnnl_memory_desc_t ym, void *x, void *w, void *y)
{
    const_dnnl_memory_desc_t best = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_memory_t plain;
    dn(dnnl_memory_create(&p->src, xm, p->engine, x), "x");
    dn(dnnl_memory_create(&p->dst, ym, p->engine, y), "y");
    dn(dnnl_memory_create(&plain, wm, p->engine, w), "w");
    dn(dnnl_memory_create(&p->weights, best, p->engine, DNNL_MEMORY_ALLOCATE), "w");
    dnnl_primitive_desc_t rpd;
    dnnl_primitive_t reorder;
    dn(dnnl_reorder_primitive_desc_create(&rpd, wm, p->engine, best, p->engine, NULL), "reorder");
    dn(dnnl_primitive_create(&reorder, rpd), "reorder");
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, p->weights}};
    dn(dnnl_primitive_execute(reorder, p->stream, 2, args), "reorder");
    dn(dnnl_stream_wait(p->stream), "reorder");
    dn(dnnl_primitive_create(&p->primitive, pd), "matmul");
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(rpd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_memory_destroy(plain);
}

/* y [m, n] = x [m, k] w^T, weights in the layout that oneDNN prefers; false if oneDNN has no such
 * product for this dtype on this machine. */
static bool product_open(struct product *p, int64_t m, int64_t n, int64_t k, enum ctw_dtype dtype,
                         void *x, void *w, void *y)
{
    dnnl_data_type_t type = dtype == CTW_F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_dims_t xd = {m, k}, wd = {k, n}, yd = {m, n};
    dnnl_memory_desc_t xm, wm, any, ym;
    dnnl_primitive_desc_t pd;
    memset(p, 0, sizeof(*p));
    dn(dnnl_engine_create(&p->engine, dnnl_cpu, 0), "engine");
    dn(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags), "stream");
    dn(dnnl_memory_desc_create_with_tag(&xm, 2, xd, type, dnnl_ab), "x");
    dn(dnnl_memory_desc_create_with_tag(&wm, 2, wd, type, dnnl_ba), "w");
    dn(dnnl_memory_desc_create_with_tag(&any, 2, wd, type, dnnl_format_tag_any), "w");
    dn(dnnl_memory_desc_create_with_tag(&ym, 2, yd, type, dnnl_ab), "y");
    const bool have =
        dnnl_matmul_primitive_desc_create(&pd, p->engine, xm, any, NULL, ym, NULL) == dnnl_success;
    if (have)
        product_fill(p, pd, xm, wm, ym, x, w, y);
    else {
        dnnl_stream_destroy(p->stream);
        dnnl_engine_destroy(p->engine);
    }
    dnnl_memory_desc_t all[] = {xm, wm, any, ym};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dnnl_memory_desc_destroy(all[i]);
    return have;
}

static void product_run(struct product *p)
{
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->src}, {DNNL_ARG_WEIGHTS, p->weights}, {DNNL_ARG_DST, p->dst}};
    dn(dnnl_primitive_execute(p->primitive, p->stream, 3, args), "matmul");
    dn(dnnl_stream_wait(p->stream), "matmul");
}

static void product_close(struct product *p)
{
    dnnl_primitive_destroy(p->primitive);
    dnnl_memory_destroy(p->src);
    dnnl_memory_destroy(p->weights);
    dnnl_memory_destroy(p->dst);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
}

/* ---- times -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct times {
    double s[MAX_REPEAT];
    double median, best, spread;
};

static void times_close(struct times *t, int n)
{
    qsort(t->s, (size_t)n, sizeof(t->s[0]), by_value);
    t->median = t->s[n / 2];
    t->best = t->s[0];
    t->spread = (t->s[n - 1] - t->s[0]) / t->median;
}

static void run_linear(struct ctw_backend *be, const struct settings *s, const struct weight *w,
                       const void *x, void *y)
{
    struct ctw_shard shard = ctw_shard_of(&w->w, &w->data);
    struct ctw_op_linear op = {.shards = &shard,
                               .n_shards = 1,
                               .dtype = s->dtype,
                               .n_tok = s->n_rows,
                               .x = x,
                               .ldx = w->w.k,
                               .y = y,
                               .ldy = w->w.n};
    ok(ctw_linear(be, &op, &err));
}

/* The largest difference between the two results, divided by the largest result. */
static double difference(enum ctw_dtype dtype, const void *a, const void *b, int64_t n)
{
    double most = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = ctw_load_float(a, dtype, i), y = ctw_load_float(b, dtype, i);
        most = fmax(most, fabs(x - y));
        size = fmax(size, fabs(y));
    }
    return most / size;
}

static void bench_shape(struct ctw_backend *be, const struct settings *s, const char *name,
                        int64_t n, int64_t k)
{
    const char *dense = s->dtype == CTW_F32 ? "f32" : "bf16";
    struct weight w;
    struct product p;
    weight_open(&w, dense, n, k);
    void *x = random_values(s->dtype, s->n_rows * k);
    void *y = must(ctw_alloc_aligned((size_t)(s->n_rows * n) * ctw_dtype_bytes(s->dtype)));
    void *z = must(ctw_alloc_aligned((size_t)(s->n_rows * n) * ctw_dtype_bytes(s->dtype)));
    bool have = product_open(&p, s->n_rows, n, k, s->dtype, x,
                             (void *)(uintptr_t)w.data.part[CTW_PART_VALUES], z);
    struct times ours, theirs;
    for (int i = -1; i < s->n_repeat; i++) { /* the first run is not counted */
        double t0 = now_s(s);
        run_linear(be, s, &w, x, y);
        double t1 = now_s(s);
        if (have)
            product_run(&p);
        double t2 = now_s(s);
        if (i >= 0) {
            ours.s[i] = t1 - t0;
            theirs.s[i] = t2 - t1;
        }
    }
    times_close(&ours, s->n_repeat);
    times_close(&theirs, s->n_repeat);
    double gflop = 2e-9 * (double)s->n_rows * (double)n * (double)k;
    printf("%-8s %6lld %6lld %6lld | %7.1f %7.1f %4.0f%% |", name, (long long)s->n_rows,
           (long long)n, (long long)k, gflop / ours.median, gflop / ours.best, 100 * ours.spread);
    if (have)
        printf(" %7.1f %7.1f %4.0f%% | %5.2f %5.2f %.1e\n", gflop / theirs.median,
               gflop / theirs.best, 100 * theirs.spread, theirs.median / ours.median,
               theirs.best / ours.best, difference(s->dtype, y, z, s->n_rows * n));
    else
        printf(" oneDNN has no product for this dtype here\n");
    if (have)
        product_close(&p);
    weight_close(&w);
    ctw_free_aligned(x);
    ctw_free_aligned(y);
    ctw_free_aligned(z);
}

static void bench_linear(struct ctw_backend *be, const struct settings *s)
{
    printf("%-8s %6s %6s %6s | %-21s | %-21s | ours over oneDNN's\n", "shape", "m", "n", "k",
           "ours: median best +-", "oneDNN: median best");
    bench_shape(be, s, "qkv", 960, 576);
    bench_shape(be, s, "o", 576, 576);
    bench_shape(be, s, "gate up", 3072, 576);
    bench_shape(be, s, "down", 576, 1536);
    bench_shape(be, s, "square", 2048, 2048);
    bench_shape(be, s, "square", 4096, 4096);
}

/* Cost of decoding: the same products with weights in other formats, interleaved. */
static void bench_formats(struct ctw_backend *be, const struct settings *s)
{
    static const char *const kinds[] = {"bf16",  "w4a16", "nvfp4", "fp8",        "int8",  "mxfp8",
                                        "mxfp6", "mxfp4", "gptq",  "gptq order", "awq",   "Q8_0",
                                        "Q4_0",  "Q4_K",  "Q5_K",  "Q6_K",       "IQ4_XS"};
    enum { OF_256 = 4 /* types whose blocks have 256 columns, at the end */ };
    const int64_t K = s->size, N = K > 1536 ? K : 1536;
    const int n_kinds = (int)CTW_COUNT(kinds) - (K % CTW_BLOCK_MAX == 0 ? 0 : OF_256);
    struct weight w[CTW_COUNT(kinds)];
    struct times t[CTW_COUNT(kinds)];
    void *x = random_values(s->dtype, s->n_rows * K);
    void *y = must(ctw_alloc_aligned((size_t)(s->n_rows * N) * ctw_dtype_bytes(s->dtype)));
    for (int i = 0; i < n_kinds; i++)
        weight_open(&w[i], kinds[i], N, K);
    for (int r = -1; r < s->n_repeat; r++) {
        for (int i = 0; i < n_kinds; i++) {
            double t0 = now_s(s);
            run_linear(be, s, &w[i], x, y);
            if (r >= 0)
                t[i].s[r] = now_s(s) - t0;
        }
    }
    printf("\nformats, %lld x %lld:", (long long)N, (long long)K);
    for (int i = 0; i < n_kinds; i++) {
        times_close(&t[i], s->n_repeat);
        printf("  %s %.2f ms (%.3f of bf16's rate)", kinds[i], 1e3 * t[i].median,
               t[0].median / t[i].median);
        weight_close(&w[i]);
    }
    printf("\n");
    ctw_free_aligned(x);
    ctw_free_aligned(y);
}

/* Causal attention of whole sequences; counts the products that causality needs. */
static void bench_attention(struct ctw_backend *be, const struct settings *s, int n_head, int n_kv,
                            int head)
{
    enum { LENGTH = 2048 };
    int64_t n_seqs = s->n_rows < LENGTH ? 1 : s->n_rows / LENGTH;
    int64_t length = s->n_rows < LENGTH ? s->n_rows : LENGTH, rows = n_seqs * length;
    struct ctw_kv_run *runs = must(ctw_calloc((size_t)n_seqs, sizeof(*runs)));
    struct ctw_attn_seq *seqs = must(ctw_calloc((size_t)n_seqs, sizeof(*seqs)));
    for (int64_t i = 0; i < n_seqs; i++) {
        runs[i] = (struct ctw_kv_run){i * length, length};
        seqs[i] = (struct ctw_attn_seq){
            .q_row = i * length, .n_q = length, .runs = &runs[i], .n_runs = 1};
    }
    struct ctw_op_attention op = {.dtype = s->dtype,
                                  .n_head = n_head,
                                  .n_kv = n_kv,
                                  .head = head,
                                  .scale = 1 / sqrtf((float)head),
                                  .seqs = seqs,
                                  .n_seqs = n_seqs};
    op.q = random_values(s->dtype, rows * n_head * head);
    op.k = random_values(s->dtype, rows * n_kv * head);
    op.v = random_values(s->dtype, rows * n_kv * head);
    op.out = must(ctw_alloc_aligned((size_t)(rows * n_head * head) * ctw_dtype_bytes(s->dtype)));
    struct times t;
    for (int r = -1; r < s->n_repeat; r++) {
        double t0 = now_s(s);
        ok(ctw_attention(be, &op, &err));
        if (r >= 0)
            t.s[r] = now_s(s) - t0;
    }
    times_close(&t, s->n_repeat);
    double pairs = (double)n_seqs * (double)length * ((double)length + 1) / 2;
    double gflop = 4e-9 * pairs * n_head * head;
    printf("\nattention, %lld sequences of %lld, %d heads / %d of %d: %.1f GFLOP/s (best %.1f, "
           "spread %.0f%%), %.2f ms\n",
           (long long)n_seqs, (long long)length, n_head, n_kv, head, gflop / t.median,
           gflop / t.best, 100 * t.spread, 1e3 * t.median);
    ctw_free_aligned((void *)(uintptr_t)op.q);
    ctw_free_aligned((void *)(uintptr_t)op.k);
    ctw_free_aligned((void *)(uintptr_t)op.v);
    ctw_free_aligned(op.out);
    ctw_free(runs);
    ctw_free(seqs);
}

static void bench_head(struct ctw_backend *be, const struct settings *s)
{
    enum { VOCAB = 49152, K = 576 };
    struct weight w;
    weight_open(&w, s->dtype == CTW_F32 ? "f32" : "bf16", VOCAB, K);
    struct ctw_shard shard = ctw_shard_of(&w.w, &w.data);
    int32_t *targets = must(ctw_calloc((size_t)s->n_rows, sizeof(*targets)));
    struct ctw_head_result *out = must(ctw_calloc((size_t)s->n_rows, sizeof(*out)));
    struct ctw_op_head op = {.weight = &shard,
                             .dtype = s->dtype,
                             .scale = 1,
                             .n_vocab = VOCAB,
                             .n_rows = s->n_rows,
                             .targets = targets,
                             .out = out};
    op.x = random_values(s->dtype, s->n_rows * K);
    struct times t;
    for (int r = -1; r < s->n_repeat; r++) {
        double t0 = now_s(s);
        ok(ctw_head(be, &op, &err));
        if (r >= 0)
            t.s[r] = now_s(s) - t0;
    }
    times_close(&t, s->n_repeat);
    double gflop = 2e-9 * (double)s->n_rows * VOCAB * K;
    printf("head with log-softmax, %d x %d: %.1f GFLOP/s (best %.1f, spread %.0f%%)\n", VOCAB, K,
           gflop / t.median, gflop / t.best, 100 * t.spread);
    weight_close(&w);
    ctw_free_aligned((void *)(uintptr_t)op.x);
    ctw_free(targets);
    ctw_free(out);
}

static bool wanted(const struct settings *s, const char *what)
{
    return s->only == NULL || strcmp(s->only, what) == 0;
}

static bool read_settings(struct settings *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--cpu-time") == 0) {
            s->clock = CLOCK_PROCESS_CPUTIME_ID;
            continue;
        }
        if (strcmp(argv[i], "--threads") == 0)
            s->n_threads = atoi(value);
        else if (strcmp(argv[i], "--rows") == 0)
            s->n_rows = atoll(value);
        else if (strcmp(argv[i], "--size") == 0)
            s->size = atoll(value);
        else if (strcmp(argv[i], "--repeat") == 0)
            s->n_repeat = atoi(value);
        else if (strcmp(argv[i], "--variant") == 0)
            s->variant = value;
        else if (strcmp(argv[i], "--only") == 0)
            s->only = value;
        else if (strcmp(argv[i], "--dtype") == 0)
            s->dtype = strcmp(value, "bfloat16") == 0 ? CTW_BF16 : CTW_F32;
        else
            return false;
        i++;
    }
    return s->n_threads > 0 && s->n_rows > 0 && s->size > 0 && s->size % 64 == 0 &&
           s->n_repeat > 0 && s->n_repeat <= MAX_REPEAT;
}

/*
 * oneDNN uses OpenMP's threads, and OpenMP reads its settings when the program starts: restart the
 * program with as many OpenMP threads as our own, which sleep while our kernels run. (By default
 * they spin for a while, on our cores and within our measured time.)
 */
static void settle_openmp(int n_threads, char **argv)
{
    char n[16];
    if (getenv("OMP_WAIT_POLICY") != NULL && getenv("OMP_NUM_THREADS") != NULL)
        return;
    snprintf(n, sizeof(n), "%d", n_threads);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("OMP_NUM_THREADS", n, 1);
    execv("/proc/self/exe", argv);
    fprintf(stderr, "cannot start again; set OMP_WAIT_POLICY and OMP_NUM_THREADS\n");
    exit(1);
}

int main(int argc, char **argv)
{
    struct settings s = {
        .n_threads = 1, .n_repeat = 7, .n_rows = 2048, .size = 576, .clock = CLOCK_MONOTONIC};
    if (!read_settings(&s, argc, argv)) {
        fprintf(stderr,
                "usage: bench_gemm [--threads N] [--rows N] [--repeat N] [--variant NAME] "
                "[--dtype float32|bfloat16] [--cpu-time] [--only linear|formats|attention|head] "
                "[--size N, a multiple of 64]\n");
        return 64;
    }
    settle_openmp(s.n_threads, argv);
    struct ctw_backend *be;
    ok(ctw_backend_open(
        &be, "cpu", &(struct ctw_backend_options){.variant = s.variant, .n_threads = s.n_threads},
        &err));
    struct ctw_backend_info info;
    ctw_backend_get_info(be, &info);
    const dnnl_version_t *v = dnnl_version();
    printf("%s, variant %s, %d threads, %s; oneDNN %d.%d.%d, OMP_NUM_THREADS=%s; %d "
           "repetitions; GFLOP/s\n",
           info.device, info.variant, info.n_threads, ctw_dtype_name(s.dtype), v->major, v->minor,
           v->patch, getenv("OMP_NUM_THREADS"), s.n_repeat);
    if (wanted(&s, "linear"))
        bench_linear(be, &s);
    if (wanted(&s, "formats"))
        bench_formats(be, &s);
    if (wanted(&s, "attention")) {
        bench_attention(be, &s, 9, 3, 64);
        bench_attention(be, &s, 16, 4, 128);
    }
    if (wanted(&s, "head"))
        bench_head(be, &s);
    ctw_backend_close(be);
    return 0;
}
