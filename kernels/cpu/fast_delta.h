/*
 * The gated delta rule, token by token. S = factor * T, so that decay takes no operation on T's
 * elements, unless each row has a decay of its own: then S = T. A thread has T of one value head,
 * in tiles of columns. A pass over a tile adds the token before, and reads T for this one: T has
 * the token's bits wherever a call begins or ends.
 */
#ifndef CTW_KERNELS_CPU_FAST_DELTA_H
#define CTW_KERNELS_CPU_FAST_DELTA_H

enum { DELTA_TOKENS = 16, DELTA_COLUMNS = 2 * VL };

/* T is multiplied by a factor below this, which becomes 1. */
#define DELTA_LEAST_FACTOR 0x1p-40f

/* Some tokens of a value head: q and k normalised, q with its factor; 0 beyond `key` and `value`.
 */
struct delta_block {
    float q[DELTA_TOKENS][CTW_MAX_DELTA_HEAD], k[DELTA_TOKENS][CTW_MAX_DELTA_HEAD];
    float v[DELTA_TOKENS][CTW_MAX_DELTA_HEAD], y[DELTA_TOKENS][CTW_MAX_DELTA_HEAD];
    float beta[DELTA_TOKENS], qk[DELTA_TOKENS];
    float factor[DELTA_TOKENS]; /* with the token's decay */
    float scale[DELTA_TOKENS];  /* of T, before the token reads it; used if scaled */
    bool scaled[DELTA_TOKENS];
    float decay[DELTA_TOKENS][CTW_MAX_DELTA_CHANNELS]; /* of each row, if they differ */
    int n;
};

struct delta_task {
    const struct ctw_op_delta *op;
    char *scratch; /* of each thread: a struct delta_block, then T */
    size_t bytes;
};

static int64_t delta_pad(int64_t n)
{
    return round_up(n, DELTA_COLUMNS);
}

/* `key` elements of x, and zeros behind them; returns 1 / sqrt(sum of x^2 + 1e-6). */
static float delta_key(const struct ctw_op_delta *op, int64_t at, float *out)
{
    const int64_t n = delta_pad(op->key);
    vf sum = vf_zero();
    memset(out + op->key, 0, (size_t)(n - op->key) * sizeof(float));
    widen(out, (const char *)op->x + (size_t)at * ctw_dtype_bytes(op->dtype), op->dtype, op->key);
    for (int64_t i = 0; i < n; i += VL)
        sum = vf_fma(vf_load(out + i), vf_load(out + i), sum);
    return 1.0f / sqrtf(vf_sum(sum) + 1e-6f);
}

static void delta_scale(float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        vf_store(x + i, vf_mul(vf_load(x + i), vf_set1(by)));
}

/* exp(a_log) */
static double delta_rate(const struct ctw_op_delta *op, int head)
{
    double a_log = ctw_load_float(op->a_log, op->a_log_dtype, head);
    return op->as_rates ? fabs(a_log) : ctw_exp(a_log);
}

/* -rate softplus(x), or least sigmoid(rate x) */
static double delta_log_decay(double rate, double x, double least)
{
    if (least < 0)
        return least / (1 + ctw_exp(-rate * x));
    return -rate * (fmax(x, 0) + ctw_ln(1 + ctw_exp(-fabs(x))));
}

/*
 * The decays of the rows of a head, each within (6 + 6 |ln decay|) u; those of rows beyond `key`
 * are not read.
 */
static void delta_decays(const struct ctw_op_delta *op, int head, int64_t row, float *decay)
{
    const int64_t first = (int64_t)head * op->key, at = row * op->ldba + first;
    const vf rate = vf_set1((float)delta_rate(op, head));
    const vf least = vf_set1(op->least_log), none = vf_zero();
    float a[CTW_MAX_DELTA_CHANNELS] = {0}, bias[CTW_MAX_DELTA_CHANNELS] = {0};
    widen(a, (const char *)op->a + (size_t)at * ctw_dtype_bytes(op->dtype), op->dtype, op->key);
    widen(bias, (const char *)op->dt_bias + (size_t)first * ctw_dtype_bytes(op->dt_bias_dtype),
          op->dt_bias_dtype, op->key);
    for (int64_t i = 0; i < op->key; i += VL) {
        const vf x = vf_add(vf_load(a + i), vf_load(bias + i));
        const vf log = op->least_log < 0 ? vf_mul(least, vf_sigmoid(vf_mul(rate, x)))
                                         : vf_sub(none, vf_mul(rate, vf_softplus(x)));
        vf_store(decay + i, vf_exp(log));
    }
}

/* The token of row `row`, as number t of the block; *factor: of T before it. */
static void delta_take(const struct ctw_op_delta *op, int head, int64_t row, int t, float *factor,
                       struct delta_block *b)
{
    const int64_t keys = (int64_t)op->n_key * op->key, n = delta_pad(op->key);
    const int64_t from = row * op->ldx + (int64_t)ctw_delta_key_head(op, head) * op->key;
    const int64_t ba = row * op->ldba + ctw_delta_column(op, head);
    const float rq = delta_key(op, from, b->q[t]) / sqrtf((float)op->key);
    const float rk = delta_key(op, from + keys, b->k[t]);
    const int64_t v = row * op->ldx + 2 * keys + (int64_t)head * op->value;
    vf qk = vf_zero();
    for (int64_t i = 0; i < n; i += VL)
        qk = vf_fma(vf_load(b->q[t] + i), vf_load(b->k[t] + i), qk);
    b->qk[t] = vf_sum(qk) * rq * rk;
    delta_scale(b->q[t], rq, n);
    delta_scale(b->k[t], rk, n);
    memset(b->v[t], 0, (size_t)delta_pad(op->value) * sizeof(float));
    widen(b->v[t], (const char *)op->x + (size_t)v * ctw_dtype_bytes(op->dtype), op->dtype,
          op->value);
    b->beta[t] = (float)(1 / (1 + ctw_exp(-(double)ctw_load_float(op->b, op->dtype, ba))));
    if (op->twice)
        b->beta[t] *= 2;
    if (op->by_channel) {
        delta_decays(op, head, row, b->decay[t]);
        return;
    }
    float decay =
        (float)ctw_exp(delta_log_decay(delta_rate(op, head),
                                       (double)ctw_load_float(op->a, op->dtype, ba) +
                                           ctw_load_float(op->dt_bias, op->dt_bias_dtype, head),
                                       op->least_log));
    b->scale[t] = *factor * decay;
    b->scaled[t] = !(b->scale[t] >= DELTA_LEAST_FACTOR);
    *factor = b->factor[t] = b->scaled[t] ? 1.0f : b->scale[t];
}

/*
 * Columns of T, [key][DELTA_COLUMNS]: T += add k^T, if k is not NULL; then T's rows times `decay`,
 * if that is not NULL; then read = T^T k_next, out = T^T q_next, if these are not NULL. Rows of
 * even and odd numbers are summed apart.
 */
INLINE void delta_pass(float *T, int key, const float *k, const vf add[2], const float *decay,
                       const float *k_next, const float *q_next, vf read[2], vf out[2])
{
    vf r[2][2] = {{vf_zero(), vf_zero()}, {vf_zero(), vf_zero()}};
    vf o[2][2] = {{vf_zero(), vf_zero()}, {vf_zero(), vf_zero()}};
    for (int i = 0; i < key; i += 2)
        for (int h = 0; h < 2; h++)
            for (int c = 0; c < 2; c++) {
                float *p = T + (int64_t)(i + h) * DELTA_COLUMNS + c * VL;
                vf e = vf_load(p);
                if (k != NULL)
                    e = vf_fma(vf_set1(k[i + h]), add[c], e);
                if (decay != NULL)
                    e = vf_mul(vf_set1(decay[i + h]), e);
                if (k != NULL || decay != NULL)
                    vf_store(p, e);
                if (k_next != NULL) {
                    r[h][c] = vf_fma(vf_set1(k_next[i + h]), e, r[h][c]);
                    o[h][c] = vf_fma(vf_set1(q_next[i + h]), e, o[h][c]);
                }
            }
    for (int c = 0; c < 2 && k_next != NULL; c++) {
        read[c] = vf_add(r[0][c], r[1][c]);
        out[c] = vf_add(o[0][c], o[1][c]);
    }
}

/* The block's tokens, for columns col .. of the head. key: even. */
static void delta_tile(struct delta_block *b, float *T, int key, int64_t col)
{
    vf add[2] = {vf_zero(), vf_zero()}, read[2], out[2];
    for (int t = 0; t < b->n; t++) {
        const float *before = t > 0 ? b->k[t - 1] : NULL;
        if (b->scaled[t]) {
            if (before != NULL)
                delta_pass(T, key, before, add, NULL, NULL, NULL, read, out);
            delta_scale(T, b->scale[t], (int64_t)key * DELTA_COLUMNS);
            before = NULL;
        }
        if (before != NULL)
            delta_pass(T, key, before, add, NULL, b->k[t], b->q[t], read, out);
        else
            delta_pass(T, key, NULL, add, NULL, b->k[t], b->q[t], read, out);
        const vf factor = vf_set1(b->factor[t]), beta = vf_set1(b->beta[t]);
        for (int c = 0; c < 2; c++) {
            const vf v = vf_load(b->v[t] + col + c * VL);
            const vf d = vf_mul(beta, vf_sub(v, vf_mul(factor, read[c])));
            vf_store(b->y[t] + col + c * VL, vf_fma(vf_set1(b->qk[t]), d, vf_mul(factor, out[c])));
            add[c] = vf_div(d, factor);
        }
    }
    delta_pass(T, key, b->k[b->n - 1], add, NULL, NULL, NULL, read, out);
}

/* The same, if each row has its own decay. Beyond `key`, rows of T are 0, and decays finite. */
static void delta_own_tile(struct delta_block *b, float *T, int key, int64_t col)
{
    vf add[2] = {vf_zero(), vf_zero()}, read[2], out[2];
    for (int t = 0; t < b->n; t++) {
        if (t > 0)
            delta_pass(T, key, b->k[t - 1], add, b->decay[t], b->k[t], b->q[t], read, out);
        else
            delta_pass(T, key, NULL, add, b->decay[t], b->k[t], b->q[t], read, out);
        for (int c = 0; c < 2; c++) {
            const vf v = vf_load(b->v[t] + col + c * VL);
            add[c] = vf_mul(vf_set1(b->beta[t]), vf_sub(v, read[c]));
            vf_store(b->y[t] + col + c * VL, vf_fma(vf_set1(b->qk[t]), add[c], out[c]));
        }
    }
    delta_pass(T, key, b->k[b->n - 1], add, NULL, NULL, NULL, read, out);
}

/* T of a head, from or to an array [key, value]. */
static void delta_move(const struct ctw_op_delta *op, float *T, int64_t key, float *state,
                       bool leaves)
{
    for (int64_t col = 0; col < op->value; col += DELTA_COLUMNS) {
        const size_t bytes = (size_t)min64(DELTA_COLUMNS, op->value - col) * sizeof(float);
        for (int64_t i = 0; i < op->key; i++) {
            float *in_tile = T + col * key + i * DELTA_COLUMNS;
            float *in_state = state + i * op->value + col;
            memcpy(leaves ? in_state : in_tile, leaves ? in_tile : in_state, bytes);
        }
    }
}

/* One value head of one part. */
static void delta_head(void *arg, int64_t item, int thread)
{
    const struct delta_task *task = arg;
    const struct ctw_op_delta *op = task->op;
    const int64_t size = (int64_t)op->key * op->value, key = round_up(op->key, 2);
    const int head = (int)(item % op->n_value);
    const struct ctw_seq_part *p = &op->parts[item / op->n_value];
    float *before = ctw_state_at(&op->states, p->before);
    float *after = ctw_state_at(&op->states, p->after);
    const size_t es = ctw_dtype_bytes(op->dtype);
    struct delta_block *b = (void *)(task->scratch + (size_t)thread * task->bytes);
    float *T = (float *)(b + 1), factor = 1;
    memset(T, 0, (size_t)(key * delta_pad(op->value)) * sizeof(float));
    if (before != NULL) {
        delta_move(op, T, key, before + head * size, false);
        factor = before[op->n_value * size + head];
    }
    for (int64_t row = p->q_row; row < p->q_row + p->n_q; row += b->n) {
        b->n = (int)min64(DELTA_TOKENS, p->q_row + p->n_q - row);
        for (int t = 0; t < b->n; t++)
            delta_take(op, head, row + t, t, &factor, b);
        for (int64_t col = 0; col < op->value; col += DELTA_COLUMNS)
            if (op->by_channel)
                delta_own_tile(b, T + col * key, (int)key, col);
            else
                delta_tile(b, T + col * key, (int)key, col);
        for (int t = 0; t < b->n; t++)
            narrow((char *)op->y + (size_t)((row + t) * op->ldy + (int64_t)head * op->value) * es,
                   op->dtype, b->y[t], op->value);
    }
    if (after != NULL) {
        delta_move(op, T, key, after + head * size, true);
        after[op->n_value * size + head] = factor;
    }
}

/* Of a thread. `state`: elements of a head's S, columns padded. */
static size_t delta_scratch(int64_t state)
{
    return sizeof(struct delta_block) + (size_t)round_up(state, 16) * sizeof(float);
}

static enum ctw_status fast_delta(struct ctw_cpu *cpu, const struct ctw_op_delta *op,
                                  struct ctw_err *err)
{
    struct delta_task task = {.op = op,
                              .bytes = delta_scratch(round_up(op->key, 2) * delta_pad(op->value))};
    void *scratch;
    enum ctw_status st =
        ctw_cpu_scratch(cpu, (size_t)ctw_threads_count(cpu->threads) * task.bytes, &scratch, err);
    if (st != CTW_OK)
        return st;
    task.scratch = scratch;
    ctw_threads_for(cpu->threads, op->n_parts * op->n_value, delta_head, &task);
    return CTW_OK;
}

#endif
