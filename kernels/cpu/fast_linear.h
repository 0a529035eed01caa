/*
 * y = epilogue(x w^T). All rows of x are packed once. A task takes some columns of y: it decodes
 * their weights once, sweeps its rows in blocks of MC, and finishes each block from an fp32 tile.
 * If there are few columns, rows are split between tasks as well.
 */
#ifndef CTW_KERNELS_CPU_FAST_LINEAR_H
#define CTW_KERNELS_CPU_FAST_LINEAR_H

enum {
    MC = 96,           /* rows of a block: a multiple of every tile's height; its words of a sweep
                          stay in L2 */
    MAX_COLUMNS = 128, /* columns that a task decodes; a gate and its up count as two. Not fewer
                          than a band's: a task then decodes no band that another task decodes. */
    MAX_PANELS = MAX_COLUMNS / NR,
    FETCH_ROWS = 8,        /* rows of y that are prefetched before they are finished */
    MIN_TASK_ROWS = 256,   /* splitting rows repeats the decoding */
    DECODE_ROWS = 16,      /* decoding a column costs about as much as multiplying this many rows */
    DECODE_BAND_ROWS = 256 /* the same of bands */
};

_Static_assert((int)MAX_COLUMNS <= (int)BAND, "a task's columns are at most a band");
_Static_assert((int)MC % (int)MR == 0, "a block is whole tiles");
#if CTW_HAS_AMX
_Static_assert((int)MC % (int)TILE_ROWS == 0, "a block is whole tiles");
#endif

/* One thread's memory. */
struct linear_local {
    float *panels; /* [MAX_PANELS][words of k][NR] */
    float *c;      /* [MC][MAX_COLUMNS] */
    float *decode; /* [NR][SPAN] */
    float *row;    /* [3][MAX_COLUMNS]: biases of both matrices, and one row of y */
};

struct linear_job {
    const struct ctw_op_linear *op;
    enum mode mode;
    enum ctw_dtype w_dtype; /* to which weights are rounded */
    int64_t k, kw;
    int64_t n_columns;         /* of y */
    int n_matrices;            /* 2: gate and up */
    int64_t unit;              /* panels that no two tasks share */
    int64_t n_blocks, n_parts; /* tasks: column blocks times row parts */
    struct rows a;             /* packed x */
    float *local;
    int64_t local_floats; /* of one thread */
    bool has_bias;
};

INLINE int64_t linear_local_floats(int64_t kw)
{
    int64_t floats = MAX_PANELS * kw * NR + MC * MAX_COLUMNS + NR * SPAN + 3 * MAX_COLUMNS;
    return round_up(floats, 16);
}

INLINE struct linear_local linear_local(float *base, int64_t kw)
{
    struct linear_local l;
    l.panels = base;
    l.c = l.panels + MAX_PANELS * kw * NR;
    l.decode = l.c + MC * MAX_COLUMNS;
    l.row = l.decode + NR * SPAN;
    return l;
}

/* Floats of packed x: whole tiles, and a vector's overhang. */
INLINE int64_t packed_floats(enum mode mode, int64_t n_tok, int64_t kw)
{
    return round_up(round_up(n_tok, tile_height(mode)) * kw + VL, 16);
}

INLINE struct rows rows_open(enum mode mode, float *words, int64_t n_tok, int64_t kw)
{
    return (struct rows){words, round_up(n_tok, tile_height(mode)), kw};
}

/* ---- packing x ---------------------------------------------------------------------------- */

struct pack_job {
    enum mode mode;
    enum ctw_dtype dtype;
    const void *x;
    int64_t ldx, n_tok, k;
    const struct rows *a;
    const int32_t *rows; /* of x, or NULL; see struct ctw_op_linear */
    const float *weight;
};

static void pack_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct pack_job *job = arg;
    const int64_t per_word = job->mode == PAIRS ? 2 : 1, height = tile_height(job->mode);
    const int64_t kw = job->a->kw, step = sweep_words(job->mode, kw);
    int64_t end = min64((item + 1) * MC, job->n_tok);
    float tmp[MOST_ROWS * SPAN];
    for (int64_t t = item * MC; t < end; t += height) {
        for (int64_t k0 = 0; k0 < kw; k0 += step) {
            int64_t n = min64(step, kw - k0), col = k0 * per_word;
            int64_t n_rows = min64(height, end - t), n_col = min64(n * per_word, job->k - col);
            float *to = rows_tile(job->a, t, k0, n);
            if (job->rows != NULL)
                pack_gathered(job->mode, to, tmp, job->x, job->dtype, job->ldx, col, job->rows + t,
                              job->weight != NULL ? job->weight + t : NULL, n_rows, n_col);
            else
                pack_tile(job->mode, to, tmp, at(job->x, job->dtype, t * job->ldx + col),
                          job->dtype, job->ldx, n_rows, n_col);
        }
    }
}

static void pack_x(struct ctw_cpu *cpu, enum mode mode, const struct rows *a, const void *x,
                   enum ctw_dtype dtype, int64_t ldx, int64_t n_tok, int64_t k)
{
    struct pack_job job = {mode, dtype, x, ldx, n_tok, k, a, NULL, NULL};
    ctw_threads_for(cpu->threads, ceil_div(n_tok, MC), pack_item, &job);
}

static void pack_rows_of(struct ctw_cpu *cpu, enum mode mode, const struct rows *a,
                         const struct ctw_op_linear *op, int64_t k)
{
    struct pack_job job = {mode, op->dtype, op->x,      op->ldx,     op->n_tok,
                           k,    a,         op->x_rows, op->x_weight};
    ctw_threads_for(cpu->threads, ceil_div(op->n_tok, MC), pack_item, &job);
}

/* ---- one task ----------------------------------------------------------------------------- */

static void load_bias(float *dst, const struct ctw_shard *shards, int64_t row0, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const struct ctw_shard *s = shards;
        int64_t row = row0 + i;
        while (row >= s->n)
            row -= s++->n;
        dst[i] =
            s->bias == NULL ? 0 : ctw_load_float(s->bias, s->bias_dtype, row * ctw_shard_step(s));
    }
}

/* c = act(c) * up for n vectors, a constant. up NULL: ones. */
INLINE void activate_each(enum ctw_activation act, const float *param, float *c, const float *up,
                          const int n)
{
    vf g[EACH_MOST];
    EACH(g[i] = vf_load(c + i * VL))
    vf_activate_each(act, param, g, n);
    if (up != NULL)
        EACH(g[i] = vf_mul(g[i], vf_load(up + i * VL)))
    EACH(vf_store(c + i * VL, g[i]))
}

/* The same for n elements, rounded up to a whole vector. */
static void activate(enum ctw_activation act, const float *param, float *c, const float *up,
                     int64_t n)
{
    int64_t i = 0;
    for (; i + EACH_AT_ONCE * VL <= n; i += EACH_AT_ONCE * VL)
        activate_each(act, param, c + i, up != NULL ? up + i : NULL, EACH_AT_ONCE);
    for (; i < n; i += VL)
        activate_each(act, param, c + i, up != NULL ? up + i : NULL, 1);
}

/* Joins gates c and ups of n elements, rounded up to a whole vector. NaN stays NaN, as the second
 * operand of vf_min() and vf_max(). */
static void join_gate(const struct ctw_op_linear *op, float *c, float *up, int64_t n)
{
    const struct ctw_glu *glu = &op->glu;
    const vf most = vf_set1(glu->limit), least = vf_set1(-glu->limit), one = vf_set1(1.0f);
    if (glu->kind == CTW_GLU_PLAIN) {
        activate(op->act, NULL, c, up, n);
        return;
    }
    if (glu->kind == CTW_GLU_BOUNDED) {
        for (int64_t i = 0; i < n; i += VL) {
            const vf g = vf_load(c + i), u = vf_load(up + i);
            const vf gate = vf_mul(vf_bounded(g, glu->alpha), vf_sigmoid(g));
            vf_store(c + i, vf_mul(gate, isinf(glu->limit) ? u : vf_bounded(u, glu->limit)));
        }
        return;
    }
    if (glu->kind == CTW_GLU_CLAMPED_ACT)
        activate(op->act, NULL, c, NULL, n);
    for (int64_t i = 0; i < n; i += VL) {
        vf g = vf_min(most, vf_load(c + i));
        vf u = vf_max(least, vf_min(most, vf_load(up + i)));
        if (glu->kind == CTW_GLU_OFFSET || glu->kind == CTW_GLU_SLOPED)
            g = vf_mul(g, vf_sigmoid(vf_mul(vf_set1(glu->alpha), g)));
        if (glu->kind == CTW_GLU_OFFSET)
            u = vf_add(u, one);
        vf_store(c + i, glu->kind == CTW_GLU_CLAMPED ? g : vf_mul(g, u));
        vf_store(up + i, u);
    }
    if (glu->kind == CTW_GLU_CLAMPED)
        activate(op->act, NULL, c, up, n);
}

/* c[i] += add[i] for n columns, rounded up to a whole vector. */
INLINE void add_row(float *c, const float *add, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        vf_store(c + i, vf_add(vf_load(c + i), vf_load(add + i)));
}

/* Token t's row of y, from column col0 on. */
INLINE void *y_at(const struct ctw_op_linear *op, int64_t t, int64_t col0)
{
    int64_t row = op->y_rows != NULL ? op->y_rows[t] : t;
    return at(op->y, ctw_linear_y_dtype(op), row * op->ldy + col0);
}

/* Prefetches columns col0 .. col0+n-1 of it, for writing. */
INLINE void fetch_row(const struct ctw_op_linear *op, int64_t t, int64_t col0, int64_t n)
{
    const char *y = y_at(op, t, col0);
    for (size_t b = 0; b < (size_t)n * ctw_dtype_bytes(ctw_linear_y_dtype(op)); b += 64)
        __builtin_prefetch(y + b, 1);
}

/* c[i] = c[i] * factor for n columns, rounded up to a whole vector. */
INLINE void scale_row(float *c, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        vf_store(c + i, vf_mul(vf_load(c + i), vf_set1(factor)));
}

/* Row t of y, columns col0 .. col0+n-1, from its sums c; the sums of up are `up` floats further. */
static void finish_row(const struct linear_job *job, const struct linear_local *l, float *c,
                       int64_t up, int64_t t, int64_t col0, int64_t n)
{
    const struct ctw_op_linear *op = job->op;
    enum ctw_dtype y_dtype = ctw_linear_y_dtype(op);
    void *y = y_at(op, t, col0);
    if (job->has_bias) {
        add_row(c, l->row, n);
        if (job->n_matrices == 2)
            add_row(c + up, l->row + MAX_COLUMNS, n);
    }
    if (op->epilogue == CTW_EPI_SCATTER && op->y_weight != NULL)
        scale_row(c, op->y_weight[t], n);
    if (op->epilogue == CTW_EPI_ADD || op->epilogue == CTW_EPI_SCATTER) {
        float *old = l->row + 2 * MAX_COLUMNS;
        widen(old, y, y_dtype, n);
        add_row(c, old, n);
    } else if (op->epilogue == CTW_EPI_GATE) {
        join_gate(op, c, c + up, n);
    }
    narrow(y, y_dtype, c, n);
}

static void linear_item(void *arg, int64_t item, int thread)
{
    const struct linear_job *job = arg;
    const struct ctw_op_linear *op = job->op;
    struct linear_local l = linear_local(job->local + thread * job->local_floats, job->kw);
    const int64_t height = tile_height(job->mode), n_tiles = ceil_div(op->n_tok, height);
    int64_t n_units = ceil_div(job->n_columns, NR * job->unit);
    int64_t block = item / job->n_parts, part = item % job->n_parts;
    int64_t p0 = block * n_units / job->n_blocks * job->unit;
    int64_t p1 =
        min64((block + 1) * n_units / job->n_blocks * job->unit, ceil_div(job->n_columns, NR));
    int64_t t0 = part * n_tiles / job->n_parts * height;
    int64_t t1 = min64((part + 1) * n_tiles / job->n_parts * height, op->n_tok);
    int64_t col0 = p0 * NR, n = min64(p1 * NR, job->n_columns) - col0;
    int64_t width = (p1 - p0) * NR * job->n_matrices;

    for (int m = 0; m < job->n_matrices; m++) {
        int64_t row0 = m * job->n_columns + col0;
        decode_panels(job->mode, l.panels + m * (p1 - p0) * job->kw * NR, l.decode, op->shards,
                      row0, n, job->w_dtype);
        if (job->has_bias)
            load_bias(l.row + m * MAX_COLUMNS, op->shards, row0, n);
    }
    products_begin(job->mode);
    for (int64_t t = t0; t < t1; t += MC) {
        int64_t rows = min64(MC, t1 - t);
        block_product(job->mode, &job->a, t, rows, l.panels, width / NR, l.c);
        for (int64_t i = 0; i < rows; i++) {
            if (i + FETCH_ROWS < rows)
                fetch_row(op, t + i + FETCH_ROWS, col0, n);
            finish_row(job, &l, l.c + i * width, width / job->n_matrices, t + i, col0, n);
        }
    }
    products_end(job->mode);
}

/*
 * Splits the work into tasks of nearly equal cost, so that no thread waits long for the last task:
 * the split with the shortest estimated time, from the numbers of panels, rows and decodings. Does
 * not change any result.
 */
static void cut_linear(struct linear_job *job, int n_threads)
{
    int64_t max = MAX_PANELS / job->n_matrices, decode_rows = DECODE_ROWS;
    for (int i = 0; i < job->op->n_shards; i++)
        if (job->op->shards[i].weight->format->decode_rows != NULL) {
            job->unit = max;
            decode_rows = DECODE_BAND_ROWS;
        }
    int64_t n_units = ceil_div(job->n_columns, NR * job->unit);
    int64_t least = ceil_div(n_units, max / job->unit), best = INT64_MAX;
    for (int64_t parts = 1; parts <= max64(1, job->op->n_tok / MIN_TASK_ROWS); parts *= 2) {
        int64_t rows = round_up(ceil_div(job->op->n_tok, parts), MR) + decode_rows;
        for (int64_t blocks = least; blocks <= min64(n_units, least + n_threads); blocks++) {
            int64_t rounds = ceil_div(blocks * parts, n_threads);
            int64_t time = rounds * ceil_div(n_units, blocks) * rows;
            if (time < best) {
                best = time;
                job->n_blocks = blocks;
                job->n_parts = parts;
            }
        }
    }
}

static enum ctw_status fast_linear(struct ctw_cpu *cpu, const struct ctw_op_linear *op,
                                   struct ctw_err *err)
{
    struct linear_job job = {.op = op, .w_dtype = op->dtype, .n_matrices = 1, .unit = 1};
    if (op->epilogue == CTW_EPI_LOGITS)
        job.w_dtype = CTW_F32;
    job.mode = mode_of(job.w_dtype);
    int n_threads = ctw_threads_count(cpu->threads);
    job.k = op->shards[0].weight->k;
    job.kw = n_words(job.mode, job.k);
    for (int i = 0; i < op->n_shards; i++) {
        job.n_columns += op->shards[i].n;
        job.has_bias |= op->shards[i].bias != NULL;
    }
    if (op->epilogue == CTW_EPI_GATE) {
        job.n_matrices = 2;
        job.n_columns /= 2;
    }
    if (op->n_tok == 0)
        return CTW_OK;
    int64_t a_floats = packed_floats(job.mode, op->n_tok, job.kw);
    job.local_floats = linear_local_floats(job.kw);
    size_t bytes = (size_t)(a_floats + n_threads * job.local_floats) * sizeof(float);
    void *scratch;
    enum ctw_status st = ctw_cpu_scratch(cpu, bytes, &scratch, err);
    if (st != CTW_OK)
        return st;
    job.a = rows_open(job.mode, scratch, op->n_tok, job.kw);
    job.local = job.a.words + a_floats;
    cut_linear(&job, n_threads);
    pack_rows_of(cpu, job.mode, &job.a, op, job.k);
    ctw_threads_for(cpu->threads, job.n_blocks * job.n_parts, linear_item, &job);
    return CTW_OK;
}

#endif
