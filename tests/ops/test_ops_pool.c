/* Pooled keys, attention over them, their choice, and RoPE of heads' last elements, against their
 * definitions in double, whole and cut into calls. */
#include "kernels/pool.h"
#include "kernels/turn.h"
#include "places.h"

enum { N = 75, SPLIT = 31, HEADS = 3, MOST_DIM = 512, WORDS = 3 };

/* Tokens SPLIT .. N-1 of the sequence are in rows 0 .. of arrays, the others behind them. */
static const struct ctw_kv_run runs[] = {{N - SPLIT, SPLIT}, {0, N - SPLIT}};

static int64_t row_of(int64_t pos)
{
    return pos < SPLIT ? N - SPLIT + pos : pos - SPLIT;
}

/* Queries first .. first + n - 1. */
static struct ctw_attn_seq queries(int64_t first, int64_t n)
{
    return (struct ctw_attn_seq){
        .q_row = first, .n_q = n, .pos0 = first, .runs = runs, .n_runs = CTW_COUNT(runs)};
}

static double at(const struct buf *b, enum ctw_dtype dtype, int64_t i)
{
    return ctw_load_float(b->p, dtype, i);
}

/* cos and sin [N, turning] of angles. */
static struct buf angles(int turning)
{
    struct buf b = buf_open((size_t)(N * turning) * sizeof(float), 0);
    for (int64_t p = 0; p < N; p++)
        for (int i = 0; i < turning / 2; i++) {
            ((float *)b.p)[p * turning + i] = (float)cos((double)p / (1 + i));
            ((float *)b.p)[p * turning + turning / 2 + i] = (float)sin((double)p / (1 + i));
        }
    return b;
}

/* Rotates neighbours in pairs. */
static void turn(double *v, int turning, int64_t pos, double sign)
{
    for (int i = 0; i < turning / 2; i++) {
        double a = v[2 * i], b = v[2 * i + 1], angle = (double)pos / (1 + i) * sign;
        v[2 * i] = a * cos(angle) - b * sin(angle);
        v[2 * i + 1] = b * cos(angle) + a * sin(angle);
    }
}

static void the_last_elements_turn_and_turn_back(void **state)
{
    (void)state;
    enum { HEAD = 10, TURNING = 6, LD = HEADS * HEAD + 5 };
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    struct ctw_backend *be;
    int32_t positions[N];
    for (int i = 0; i < N; i++)
        positions[i] = N - 1 - i;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (size_t i = 0; i < 2 * CTW_COUNT(dtypes); i++) {
            const enum ctw_dtype dtype = dtypes[i / 2];
            struct buf x = buf_random(dtype, N * LD, 1, 0), cos_sin = angles(TURNING);
            struct buf got = buf_copy(&x, 0);
            struct dev d = dev_of(be, &x), c = dev_of(be, &cos_sin);
            struct dev p = dev_open(be, positions, sizeof(positions), 0);
            const struct ctw_op_turn op = {.dtype = dtype,
                                           .n_tok = N,
                                           .n_head = HEADS,
                                           .head = HEAD,
                                           .turning = TURNING,
                                           .back = i % 2 != 0,
                                           .pairing = CTW_ROPE_INTERLEAVED,
                                           .positions = (const int32_t *)(void *)p.p,
                                           .cos_sin = (const float *)(void *)c.p,
                                           .x = d.p,
                                           .ldx = LD};
            OK(ctw_turn(be, &op, &last_err));
            dev_read(&d, got.p);
            for (int64_t row = 0; row < N; row++) {
                double want[LD];
                for (int j = 0; j < LD; j++)
                    want[j] = at(&x, dtype, row * LD + j);
                for (int h = 1; h <= HEADS; h++)
                    turn(want + h * HEAD - TURNING, TURNING, positions[row], op.back ? -1 : 1);
                for (int j = 0; j < LD; j++)
                    near(at(&got, dtype, row * LD + j), want[j],
                         1e-5 + 2 * half_step(dtype, want[j]), "turn", row);
            }
            dev_close(&d);
            dev_close(&c);
            dev_close(&p);
            buf_close(&x);
            buf_close(&got);
            buf_close(&cos_sin);
        }
        ctw_backend_close(be);
    }
}

/* ---- keys of blocks ----------------------------------------------------------------------- */

struct pool {
    struct ctw_op_pool op;
    struct buf x, bias, norm, cos_sin;
    struct dev d[5];
};

static struct pool pool_open(struct ctw_backend *be, enum ctw_dtype dtype, int block, bool overlaps,
                             int dim, int turning)
{
    const int64_t columns = (overlaps ? 2 : 1) * dim, ldx = 2 * columns + 3, ldy = dim + 2;
    struct buf zeros = buf_open((size_t)(N * ldy) * ctw_dtype_bytes(dtype), 0);
    struct pool p = {.x = buf_random(dtype, N * ldx, 1, 0),
                     .bias = buf_random(CTW_F32, block * columns, 1, 0),
                     .norm = buf_random(dtype, dim, 1, 0),
                     .cos_sin = angles(turning > 0 ? turning : 2)};
    memset(zeros.p, 0, zeros.bytes);
    p.d[0] = dev_of(be, &p.x);
    p.d[1] = dev_of(be, &p.bias);
    p.d[2] = dev_of(be, &p.norm);
    p.d[3] = dev_of(be, &p.cos_sin);
    p.d[4] = dev_of(be, &zeros);
    buf_close(&zeros);
    p.op = (struct ctw_op_pool){.dtype = dtype,
                                .block = block,
                                .overlaps = overlaps,
                                .dim = dim,
                                .turning = turning,
                                .x = p.d[0].p,
                                .gate = element(p.d[0].p, dtype, columns),
                                .ldx = ldx,
                                .bias = p.d[1].p,
                                .norm = p.d[2].p,
                                .bias_dtype = CTW_F32,
                                .norm_dtype = dtype,
                                .norm_eps = 1e-5f,
                                .pairing = CTW_ROPE_INTERLEAVED,
                                .cos_sin = (const float *)(void *)p.d[3].p,
                                .n_seqs = 1,
                                .y = p.d[4].p,
                                .ldy = ldy};
    return p;
}

static void pool_close(struct pool *p)
{
    for (size_t i = 0; i < CTW_COUNT(p->d); i++)
        dev_close(&p->d[i]);
    buf_close(&p->x);
    buf_close(&p->bias);
    buf_close(&p->norm);
    buf_close(&p->cos_sin);
}

static void pooled_key(const struct pool *p, int64_t block, double v[MOST_DIM])
{
    const struct ctw_op_pool *op = &p->op;
    const int64_t columns = (op->overlaps ? 2 : 1) * op->dim;
    double squares = 0;
    for (int i = 0; i < op->dim; i++) {
        double total = 0, sum = 0;
        for (int64_t pos = (block - 1) * op->block; pos < (block + 1) * op->block; pos++) {
            const bool before = pos < block * op->block;
            if (before && (!op->overlaps || block == 0))
                continue;
            const int64_t column = op->overlaps && !before ? op->dim + i : i;
            const int64_t in = row_of(pos) * op->ldx + column;
            double e = op->gate == NULL
                           ? 1
                           : exp(at(&p->x, op->dtype, in + columns) +
                                 at(&p->bias, CTW_F32, pos % op->block * columns + column));
            total += e;
            sum += e * at(&p->x, op->dtype, in);
        }
        v[i] = sum / total;
        squares += v[i] * v[i];
    }
    for (int i = 0; op->norm != NULL && i < op->dim; i++)
        v[i] *=
            (at(&p->norm, op->dtype, i) + op->norm_offset) / sqrt(squares / op->dim + op->norm_eps);
    turn(v + (op->turns_first ? 0 : op->dim - op->turning), op->turning, block * op->block, 1);
}

/* Also that keys lie in the rows of their blocks' last tokens, and other rows stay. */
static void blocks_have_keys_wherever_calls_are_cut(void **state)
{
    (void)state;
    static const struct {
        enum ctw_dtype dtype;
        int block, dim, turning;
        bool overlaps, normless, means;
    } cases[] = {
        {CTW_F32, 4, 24, 8, true, false, false},   {CTW_BF16, 4, 40, 2, true, false, false},
        {CTW_F16, 20, 24, 4, false, false, false}, {CTW_F32, 128, 8, 8, false, false, false},
        {CTW_F32, 12, 16, 0, false, true, false},  {CTW_F32, 1, 3, 0, false, false, false},
        {CTW_F32, 8, 24, 8, false, false, true},   {CTW_BF16, 4, 16, 4, false, false, true}};
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (size_t i = 0; i < CTW_COUNT(cases); i++)
            for (int64_t most = N; most > 5; most /= 4) {
                struct pool p = pool_open(be, cases[i].dtype, cases[i].block, cases[i].overlaps,
                                          cases[i].dim, cases[i].turning);
                struct buf y = buf_open(p.d[4].bytes, 0);
                p.op.norm = cases[i].normless ? NULL : p.op.norm;
                if (cases[i].means) {
                    p.op.gate = p.op.bias = NULL;
                    p.op.turns_first = true;
                    p.op.norm_offset = 1;
                }
                for (int64_t from = 0; from < N; from += most) {
                    struct ctw_attn_seq seq = queries(from, from + most < N ? most : N - from);
                    p.op.seqs = &seq;
                    OK(ctw_pool(be, &p.op, &last_err));
                }
                dev_read(&p.d[4], y.p);
                for (int64_t pos = 0; pos < N; pos++) {
                    double want[MOST_DIM + 2] = {0};
                    if ((pos + 1) % p.op.block == 0)
                        pooled_key(&p, pos / p.op.block, want);
                    for (int64_t j = 0; j < p.op.ldy; j++)
                        near(at(&y, p.op.dtype, row_of(pos) * p.op.ldy + j), want[j],
                             2e-5 + half_step(p.op.dtype, want[j]), "pool", pos);
                }
                buf_close(&y);
                pool_close(&p);
            }
        ctw_backend_close(be);
    }
}

/* ---- attention and choice ----------------------------------------------------------------- */

struct attention {
    struct ctw_op_pool_attention op;
    struct buf q, k, pooled, sinks, seen;
    struct dev d[6];
};

static float scale_of(int head)
{
    return head < MOST_DIM ? 0.4f : 0.1f;
}

static struct attention attention_open(struct ctw_backend *be, enum ctw_dtype dtype, int head,
                                       int64_t block, int64_t window, bool chooses)
{
    const int64_t width = HEADS * (int64_t)head, ld = head + (head < MOST_DIM ? 3 : 8);
    struct attention a = {.q = buf_random(dtype, N * width, 1, 0),
                          .k = buf_random(dtype, N * head, 1, 0),
                          .pooled = buf_random(dtype, N * ld, 1, 0),
                          .sinks = buf_random(CTW_F32, HEADS, 1, 0),
                          .seen = buf_open(N * WORDS * sizeof(uint32_t), 0)};
    for (int64_t i = 0; i < N * WORDS; i++)
        ((uint32_t *)a.seen.p)[i] = rng();
    struct buf out = buf_copy(&a.q, 0);
    a.d[0] = dev_of(be, &a.q);
    a.d[1] = dev_of(be, &a.k);
    a.d[2] = dev_of(be, &a.pooled);
    a.d[3] = dev_of(be, &a.sinks);
    a.d[4] = dev_of(be, &a.seen);
    a.d[5] = dev_of(be, &out);
    buf_close(&out);
    a.op = (struct ctw_op_pool_attention){.dtype = dtype,
                                          .n_head = HEADS,
                                          .head = head,
                                          .scale = scale_of(head),
                                          .window = window,
                                          .block = block,
                                          .q = a.d[0].p,
                                          .k = a.d[1].p,
                                          .pooled = a.d[2].p,
                                          .ld_pooled = ld,
                                          .seen = chooses ? (uint32_t *)(void *)a.d[4].p : NULL,
                                          .ld_seen = WORDS,
                                          .seen_from = 3,
                                          .sinks = a.d[3].p,
                                          .sinks_dtype = CTW_F32,
                                          .n_seqs = 1,
                                          .out = a.d[5].p};
    return a;
}

static void attention_close(struct attention *a)
{
    struct buf *bufs[] = {&a->q, &a->k, &a->pooled, &a->sinks, &a->seen};
    for (size_t i = 0; i < CTW_COUNT(a->d); i++)
        dev_close(&a->d[i]);
    for (size_t i = 0; i < CTW_COUNT(bufs); i++)
        buf_close(bufs[i]);
}

/* Weights of heads that tensor cores take are rounded once more. */
static double weights_step(const struct ctw_op_pool_attention *op)
{
    return op->head < MOST_DIM ? 0 : half_step(op->dtype, 1);
}

/* Adds the key at element `k` of an array. */
static void add_key(const struct attention *a, int64_t q, const struct buf *keys, int64_t k,
                    double *total, double sum[MOST_DIM])
{
    double s = 0, e;
    for (int d = 0; d < a->op.head; d++)
        s += at(&a->q, a->op.dtype, q + d) * at(keys, a->op.dtype, k + d);
    e = exp(a->op.scale * s);
    *total += e;
    for (int d = 0; d < a->op.head; d++)
        sum[d] += e * at(keys, a->op.dtype, k + d);
}

static void check_attention(const struct attention *a, const struct buf *out)
{
    const struct ctw_op_pool_attention *op = &a->op;
    for (int64_t i = 0; i < N * HEADS; i++) {
        const int64_t pos = i / HEADS, blocks = (pos + 1) / op->block, q = i * op->head;
        double total = exp(at(&a->sinks, CTW_F32, i % HEADS)), sum[MOST_DIM] = {0};
        for (int64_t b = 0; b < blocks; b++) {
            uint32_t word = ((uint32_t *)a->seen.p)[pos * WORDS + b / 32];
            if (op->seen == NULL || blocks <= op->seen_from || (word >> b % 32 & 1) != 0)
                add_key(a, q, &a->pooled, row_of((b + 1) * op->block - 1) * op->ld_pooled, &total,
                        sum);
        }
        for (int64_t p = 0; p <= pos; p++)
            if (p > pos - op->window)
                add_key(a, q, &a->k, row_of(p) * op->head, &total, sum);
        for (int d = 0; d < op->head; d++)
            near(at(out, op->dtype, q + d), sum[d] / total,
                 2e-5 + weights_step(op) + half_step(op->dtype, sum[d] / total), "pool_attention",
                 pos);
    }
}

static void queries_see_blocks_and_a_window(void **state)
{
    (void)state;
    static const struct {
        enum ctw_dtype dtype;
        int head;
        int64_t block, window;
        bool chooses;
    } cases[] = {{CTW_F32, 40, 4, 24, true},         {CTW_BF16, 33, 1, 1, true},
                 {CTW_F16, 16, 20, 200, false},      {CTW_F32, 5, 128, 7, false},
                 {CTW_BF16, MOST_DIM, 1, 24, false}, /* more keys than a tile has */
                 {CTW_BF16, MOST_DIM, 4, 70, true},  {CTW_F16, MOST_DIM, 1, 9, true}};
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (size_t i = 0; i < CTW_COUNT(cases); i++) {
            struct attention a = attention_open(be, cases[i].dtype, cases[i].head, cases[i].block,
                                                cases[i].window, cases[i].chooses);
            struct buf whole = buf_copy(&a.q, 0), cut = buf_copy(&a.q, 0);
            struct ctw_attn_seq seq = queries(0, N);
            a.op.seqs = &seq;
            OK(ctw_pool_attention(be, &a.op, &last_err));
            dev_read(&a.d[5], whole.p);
            check_attention(&a, &whole);
            for (int64_t from = 0; from < N; from += 11) {
                seq = queries(from, from + 11 < N ? 11 : N - from);
                OK(ctw_pool_attention(be, &a.op, &last_err));
            }
            dev_read(&a.d[5], cut.p);
            assert_memory_equal(cut.p, whole.p, whole.bytes);
            buf_close(&whole);
            buf_close(&cut);
            attention_close(&a);
        }
        ctw_backend_close(be);
    }
}

/* The choice among blocks is that among tokens, if the tokens are the blocks' keys. */
static void blocks_are_chosen_as_tokens_are(void **state)
{
    (void)state;
    enum { HEAD = 12, BLOCK = 4, LD = HEAD + 4, CHOSEN = 5, BLOCKS = N / BLOCK };
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        struct buf q = buf_random(CTW_F32, N * HEADS * HEAD, 1, 0),
                   k = buf_random(CTW_F32, N * LD, 1, 0);
        struct buf weights = buf_random(CTW_F32, N * HEADS, 1, 0);
        struct buf tokens = buf_open(BLOCKS * HEAD * sizeof(float), 0);
        struct buf own = buf_open(N * HEADS * HEAD * sizeof(float), 0);
        uint32_t got[N * WORDS] = {0}, want[BLOCKS * WORDS] = {0};
        for (int64_t b = 0; b < BLOCKS; b++) /* the query that ends block b, and block b's key */
            for (int64_t d = 0; d < HEADS * HEAD; d++) {
                const int64_t end = (b + 1) * BLOCK - 1;
                ((float *)own.p)[b * HEADS * HEAD + d] = ((float *)q.p)[end * HEADS * HEAD + d];
                if (d < HEAD)
                    ((float *)tokens.p)[b * HEAD + d] = ((float *)k.p)[row_of(end) * LD + d];
            }
        struct dev d[] = {dev_of(be, &q),
                          dev_of(be, &k),
                          dev_of(be, &weights),
                          dev_of(be, &tokens),
                          dev_of(be, &own),
                          dev_open(be, got, sizeof(got), 0),
                          dev_open(be, want, sizeof(want), 0)};
        struct ctw_attn_seq seq = queries(0, N);
        struct ctw_op_index op = {.dtype = CTW_F32,
                                  .n_head = HEADS,
                                  .head = HEAD,
                                  .chosen = CHOSEN,
                                  .q = d[0].p,
                                  .k = d[1].p,
                                  .ld_k = LD,
                                  .block = BLOCK,
                                  .weights = d[2].p,
                                  .ld_weights = HEADS,
                                  .seqs = &seq,
                                  .n_seqs = 1,
                                  .seen = (uint32_t *)(void *)d[5].p,
                                  .ld_seen = WORDS};
        OK(ctw_index(be, &op, &last_err));
        const struct ctw_kv_run run = {0, BLOCKS};
        seq = (struct ctw_attn_seq){.n_q = BLOCKS, .runs = &run, .n_runs = 1};
        op.q = d[4].p;
        op.k = d[3].p;
        op.ld_k = op.block = 0;
        op.seen = (uint32_t *)(void *)d[6].p;
        op.weights = element(d[2].p, CTW_F32, (BLOCK - 1) * HEADS);
        op.ld_weights = BLOCK * HEADS;
        OK(ctw_index(be, &op, &last_err));
        dev_read(&d[5], got);
        dev_read(&d[6], want);
        for (int64_t b = 0; b < BLOCKS; b++)
            assert_memory_equal(&got[((b + 1) * BLOCK - 1) * WORDS], &want[b * WORDS],
                                sizeof(uint32_t)); /* up to 32 blocks */
        struct buf *bufs[] = {&q, &k, &weights, &tokens, &own};
        for (size_t i = 0; i < CTW_COUNT(d); i++)
            dev_close(&d[i]);
        for (size_t i = 0; i < CTW_COUNT(bufs); i++)
            buf_close(bufs[i]);
        ctw_backend_close(be);
    }
}

static bool bit(const uint32_t *seen, int64_t query, int64_t i)
{
    return (seen[query * WORDS + i / 32] >> i % 32 & 1) != 0;
}

/* The bits of tokens are those of their blocks; tokens behind the last whole block are seen. */
static void choices_of_blocks_are_spread_over_tokens(void **state)
{
    (void)state;
    enum { HEAD = 12, CHOSEN = 3 };
    static const int64_t sizes[] = {1, 2, 7, 16, 40, N + 1};
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        struct buf q = buf_random(CTW_F32, N * HEADS * HEAD, 1, 0);
        struct buf k = buf_random(CTW_F32, N * HEAD, 1, 0);
        struct buf weights = buf_random(CTW_F32, N * HEADS, 1, 0);
        uint32_t blocks[N * WORDS] = {0}, tokens[N * WORDS] = {0};
        struct dev d[] = {dev_of(be, &q), dev_of(be, &k), dev_of(be, &weights),
                          dev_open(be, blocks, sizeof(blocks), 0),
                          dev_open(be, tokens, sizeof(tokens), 0)};
        const struct ctw_attn_seq parts[] = {queries(0, 30), queries(30, N - 30)};
        for (size_t i = 0; i < CTW_COUNT(sizes); i++) {
            struct ctw_op_index op = {.dtype = CTW_F32,
                                      .n_head = HEADS,
                                      .head = HEAD,
                                      .chosen = CHOSEN,
                                      .q = d[0].p,
                                      .k = d[1].p,
                                      .block = sizes[i],
                                      .weights = d[2].p,
                                      .ld_weights = HEADS,
                                      .seqs = parts,
                                      .n_seqs = CTW_COUNT(parts),
                                      .seen = (uint32_t *)(void *)d[3].p,
                                      .ld_seen = WORDS};
            OK(ctw_index(be, &op, &last_err));
            op.by_token = true;
            op.seen = (uint32_t *)(void *)d[4].p;
            OK(ctw_index(be, &op, &last_err));
            dev_read(&d[3], blocks);
            dev_read(&d[4], tokens);
            for (int64_t t = 0; t < N; t++)
                for (int64_t p = 0; p < (t / 32 + 1) * 32; p++) {
                    const int64_t b = p / sizes[i];
                    bool sees = b >= (t + 1) / sizes[i] || bit(blocks, t, b);
                    assert_int_equal(bit(tokens, t, p), p <= t && sees);
                }
        }
        for (size_t i = 0; i < CTW_COUNT(d); i++)
            dev_close(&d[i]);
        buf_close(&q);
        buf_close(&k);
        buf_close(&weights);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_elements_turn_and_turn_back),
        cmocka_unit_test(blocks_have_keys_wherever_calls_are_cut),
        cmocka_unit_test(choices_of_blocks_are_spread_over_tokens),
        cmocka_unit_test(queries_see_blocks_and_a_window),
        cmocka_unit_test(blocks_are_chosen_as_tokens_are),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
