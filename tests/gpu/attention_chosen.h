/* Part of test_attention.cu: the choice of keys against its definition; attention over chosen keys. */

/* ---- the choice --------------------------------------------------------------------------- */

struct chooser {
    struct ctw_op_index op;
    struct problem p; /* sequences, heads of q, and k; its attention is not used */
    struct array weights, seen;
};

static void chooser_open(struct chooser *c, enum ctw_dtype dtype, int n_head, int head, int64_t chosen)
{
    static const int64_t lengths[] = {1, 129, 2, 65, 700, 63, 64, 127, 128, 200};
    const struct shape queries = {n_head, 1, head, 0, 0};
    memset(c, 0, sizeof(*c));
    rng = 88172645463325252u + (uint64_t)head * 977 + (uint64_t)n_head * 31 + (uint64_t)dtype;
    problem_open(&c->p, &queries, dtype, lengths, CTW_COUNT(lengths), 6);
    struct ctw_op_index *op = &c->op;
    op->dtype = dtype;
    op->n_head = n_head;
    op->head = head;
    op->chosen = chosen;
    op->q = c->p.op.q;
    op->k = c->p.op.k;
    op->seqs = c->p.seqs;
    op->n_seqs = c->p.op.n_seqs;
    op->ld_weights = n_head + 3;
    op->ld_seen = 24;
    c->weights = array_new(c->p.q_rows * op->ld_weights * ctw_dtype_bytes(dtype));
    for (int64_t i = 0; i < c->p.q_rows * op->ld_weights; i++)
        store(c->weights.host, dtype, i, i % 17 == 0 ? 0 : rng_normal());
    array_upload(&c->weights);
    op->weights = c->weights.device;
    c->seen = array_new(c->p.q_rows * op->ld_seen * sizeof(uint32_t));
    op->seen = (uint32_t *)c->seen.device;
}

static void chooser_close(struct chooser *c)
{
    problem_close(&c->p);
    array_close(&c->weights);
    array_close(&c->seen);
}

/* Runs op; its bits are then in `to`, the others' words are 0xFF bytes. */
static void choose(struct ctw_cuda *cu, const struct chooser *c, const struct ctw_op_index *op, void *to)
{
    CU(cudaMemset(c->seen.device, 0xFF, c->seen.bytes));
    CU(cudaDeviceSynchronize());
    OK(ctw_cuda_index(cu, op, &last_err));
    CU(cudaStreamSynchronize(cu->stream));
    CU(cudaMemcpy(to, c->seen.device, c->seen.bytes, cudaMemcpyDeviceToHost));
}

static int64_t key_row(const struct ctw_attn_seq *s, int64_t pos)
{
    int r = 0;
    while (pos >= s->runs[r].n_tok)
        pos -= s->runs[r++].n_tok;
    return s->runs[r].row + pos;
}

/* The score of a query row and a key row in double, in the order of kernels/cpu/c_index.c; *size: the
 * sum of what is added, in size. */
static double score_of(const struct chooser *c, int64_t q_row, int64_t k_row, double *size)
{
    const struct ctw_op_index *op = &c->op;
    double sum = 0;
    *size = 0;
    for (int h = 0; h < op->n_head; h++) {
        double lane[8] = {0}, w = load(c->weights.host, op->dtype, q_row * op->ld_weights + h), abs = 0;
        for (int d = 0; d < op->head; d++) {
            double x = load(c->p.q.host, op->dtype, (q_row * op->n_head + h) * op->head + d) *
                       load(c->p.k.host, op->dtype, k_row * op->head + d);
            lane[d % 8] += x;
            abs += fabs(x);
        }
        double s = (lane[0] + lane[1]) + (lane[2] + lane[3]);
        s += (lane[4] + lane[5]) + (lane[6] + lane[7]);
        double term = w * (s < 0 ? 0 : s);
        sum += term;
        *size += fabs(w) * abs;
    }
    return isnan(sum) ? -INFINITY : sum;
}

/*
 * Is one query's choice right? `chosen` keys; the least of them is not below the best of the others by
 * more than `error` times the largest size; with error 0, the lower keys of equal ones. Bits after the
 * query's own are 0, words after that untouched.
 */
static bool is_right(const struct chooser *c, const struct ctw_attn_seq *s, int64_t i,
                     const uint32_t *row, double error)
{
    const int64_t n = s->pos0 + i + 1;
    int64_t n_chosen = 0, last_least = -1, first_best = n;
    double least = INFINITY, best = -INFINITY, largest = 0;
    for (int64_t j = 0; j < n; j++) {
        double size, x = score_of(c, s->q_row + i, key_row(s, j), &size);
        largest = size > largest ? size : largest;
        if ((row[j / 32] >> j % 32 & 1) != 0) {
            n_chosen++;
            last_least = x <= least ? j : last_least;
            least = x < least ? x : least;
        } else {
            first_best = x > best ? j : first_best;
            best = x > best ? x : best;
        }
    }
    bool clear = n % 32 == 0 || row[n / 32] >> n % 32 == 0;
    for (int64_t w = (n + 31) / 32; w < c->op.ld_seen; w++)
        clear = clear && row[w] == 0xFFFFFFFFu;
    bool order = error > 0 || least > best || (least == best && last_least < first_best);
    return clear && n_chosen == (n < c->op.chosen ? n : c->op.chosen) && order &&
           !(least < best - error * largest);
}

/* Sums in fp32 of `head` products and of the heads: each addition is off by 2^-23 at most (tensor cores
 * cut off), and a sum has as many as its terms; a choice compares two. */
static double choice_error(const struct ctw_op_index *op)
{
    return op->dtype == CTW_F32 || op->head > 128 ? 0 : 2 * (op->head + op->n_head) * 0x1p-23;
}

static void chosen_told(bool good, const char *what, const char *variant, const struct chooser *c,
                        const char *more)
{
    n_passed += good;
    n_failed += !good;
    printf("%s %-9s %-7s %-4s %d heads of %d, %d chosen %s\n", good ? "ok  " : "FAIL", what, variant,
           ctw_dtype_name(c->op.dtype), c->op.n_head, c->op.head, (int)c->op.chosen, more);
}

static void check_choice(struct ctw_cuda *cu, struct chooser *c, const char *variant)
{
    int64_t n_wrong = 0;
    uint32_t *got = (uint32_t *)ctw_calloc(c->seen.bytes, 1);
    choose(cu, c, &c->op, got);
    for (int s = 0; s < c->op.n_seqs; s++)
        for (int64_t i = 0; i < c->p.seqs[s].n_q; i++)
            n_wrong += !is_right(c, &c->p.seqs[s], i, got + (c->p.seqs[s].q_row + i) * c->op.ld_seen,
                                 choice_error(&c->op));
    char more[64];
    snprintf(more, sizeof(more), "%lld queries choose wrongly", (long long)n_wrong);
    chosen_told(n_wrong == 0, "choice", variant, c, more);
    ctw_free(got);
}

/* Each sequence alone, in two calls. */
static void check_choice_company(struct ctw_cuda *cu, struct chooser *c, const char *variant)
{
    int n_differ = 0;
    uint32_t *all = (uint32_t *)ctw_calloc(c->seen.bytes, 1);
    uint32_t *got = (uint32_t *)ctw_calloc(c->seen.bytes, 1);
    choose(cu, c, &c->op, all);
    for (int s = 0; s < c->op.n_seqs; s++) {
        struct ctw_attn_seq one = c->p.seqs[s];
        int64_t cut = rng_below(one.n_q), ld = c->op.ld_seen;
        struct ctw_op_index op = c->op;
        op.seqs = &one;
        op.n_seqs = 1;
        for (int part = 0; part < 2; part++) {
            one = c->p.seqs[s];
            one.q_row += part * cut;
            one.pos0 += part * cut;
            one.n_q = part == 0 ? cut : one.n_q - cut;
            choose(cu, c, &op, got);
            n_differ += memcmp(got + one.q_row * ld, all + one.q_row * ld, one.n_q * ld * 4) != 0;
        }
    }
    char more[64];
    snprintf(more, sizeof(more), "%d differ alone", n_differ);
    chosen_told(n_differ == 0, "company", variant, c, more);
    ctw_free(all);
    ctw_free(got);
}

/* Equal keys: the first are chosen. A key that is not a number is chosen last. */
static void check_choice_ties(struct ctw_cuda *cu, struct chooser *c, const char *variant)
{
    int64_t n_wrong = 0;
    const struct ctw_attn_seq *s = &c->p.seqs[4];
    for (int64_t i = 0; i < c->p.kv_rows * c->op.head; i++)
        store(c->p.k.host, c->op.dtype, i, i / c->op.head == key_row(s, 3) ? NAN : 1);
    array_upload(&c->p.k);
    uint32_t *got = (uint32_t *)ctw_calloc(c->seen.bytes, 1);
    choose(cu, c, &c->op, got);
    for (int64_t i = 0; i < s->n_q; i++)
        for (int64_t j = 0; j <= s->pos0 + i; j++) {
            bool is = (got[(s->q_row + i) * c->op.ld_seen + j / 32] >> j % 32 & 1) != 0;
            bool all = s->pos0 + i + 1 <= c->op.chosen;
            n_wrong += is != (all || (j != 3 && j < c->op.chosen + (c->op.chosen > 3)));
        }
    char more[64];
    snprintf(more, sizeof(more), "%lld bits are wrong", (long long)n_wrong);
    chosen_told(n_wrong == 0, "ties", variant, c, more);
    ctw_free(got);
}

/* ---- attention over chosen keys ----------------------------------------------------------- */

/* All bits set: the results are those without a choice, if both are by the same kernel: that for values
 * of their own size. */
static void check_all_seen(struct ctw_cuda *cu, struct problem *p, const char *variant)
{
    struct ctw_op_attention none = p->op, all = p->op;
    bool hopper = cu->hopper;
    none.seen = NULL;
    all.seen_from = 0;
    memset(p->seen.host, 0xFF, p->seen.bytes);
    array_upload(&p->seen);
    poison(p);
    cu->hopper = false;
    char *want = results(cu, p, &none);
    poison(p);
    char *got = results(cu, p, &all);
    cu->hopper = hopper;
    bool same = memcmp(want, got, p->out.bytes) == 0;
    told(same, "all seen", variant, p, same ? "" : "other bits");
    ctw_free(want);
    ctw_free(got);
}

static void check_seen(struct ctw_cuda *cu, const char *variant, const struct shape *s,
                       enum ctw_dtype dtype)
{
    static const int64_t lengths[] = {1, 129, 2, 65, 400, 63, 64, 127, 128, 200};
    struct problem p;
    rng = 88172645463325252u + (uint64_t)s->head * 977 + (uint64_t)s->n_head * 31 + (uint64_t)dtype;
    problem_open(&p, s, dtype, lengths, CTW_COUNT(lengths), 6);
    give_seen(&p, 70);
    check_values(cu, &p, variant);
    check_company(cu, &p, variant);
    check_runs(cu, &p, variant);
    check_not_finite(cu, &p, variant, 4);
    if (p.op.head_v != p.op.head)
        check_all_seen(cu, &p, variant);
    problem_close(&p);
}

static void check_chosen(struct ctw_cuda *cu, const char *variant)
{
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const int heads[][3] = {{64, 128, 96}, {4, 32, 1}, {3, 20, 40}, {5, 136, 64}, {2, 300, 33}};
    static const struct shape seen_shapes[] = {
        {4, 4, 192, 0, 0, 128}, {6, 3, 24, 0, 0, 16}, {2, 2, 256, 0, 0},
        {4, 1, 128, 64, 0},     {2, 1, 300, 0, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(heads); i++)
        for (int d = 0; d < 3; d++) {
            struct chooser c;
            chooser_open(&c, dtypes[d], heads[i][0], heads[i][1], heads[i][2]);
            check_choice(cu, &c, variant);
            check_choice_company(cu, &c, variant);
            check_choice_ties(cu, &c, variant);
            chooser_close(&c);
        }
    for (size_t i = 0; i < CTW_COUNT(seen_shapes); i++)
        for (int d = 0; d < 3; d++)
            check_seen(cu, variant, &seen_shapes[i], dtypes[d]);
}
