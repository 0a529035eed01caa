/* Part of test_gemm.cu: the product that finishes heads of queries, keys and values, against the
 * two steps. */

/* One product; both paths put q, k and v at op's addresses. */
struct qkv {
    struct ctw_cuda_gemm g; /* its y is the two steps' product */
    struct ctw_op_qkv op;
};

static void run_qkv(const struct qkv *q, bool fused)
{
    struct ctw_err err;
    bool done = true;
    enum ctw_status st;
    if (fused) {
        st = ctw_cuda_qkv_hopper(&cu, &q->g, &q->op, &done, &err);
    } else {
        struct ctw_op_qkv op = q->op;
        int64_t q_n = (int64_t)op.n_head * op.head, kv_n = (int64_t)op.n_kv * op.head;
        op.columns = {q_n + 2 * kv_n, 0, q_n, q_n + kv_n, q_n / op.n_kv, op.head, op.head};
        run(&q->g, STORED, CTW_ACT_SILU);
        st = ctw_cuda_qkv(&cu, &op, &err);
    }
    if (st != CTW_OK || !done) {
        printf("FAILED qkv: %s\n", st != CTW_OK ? err.msg : "declined");
        exit(1);
    }
}

enum { QKV_POSITIONS = 300, QKV_MOST = 1000, QKV_COLS = 6144, QKV_K = 576 };

struct qkv_arrays {
    char *x, *w, *y, *norms;
    char *out[3]; /* q, k, v between guards: in two steps, fused, fused with other rows */
    float *bias, *cos_sin;
    int32_t *positions;
};

/* Puts q, k and v of m rows into `out`, which is filled with the guards' byte. Returns its bytes. */
static size_t place_qkv(struct qkv *q, char *out, int64_t m)
{
    size_t query = (size_t)(m * q->op.n_head * q->op.head) * 2;
    size_t key = (size_t)(m * q->op.n_kv * q->op.head) * 2, all = query + 2 * key + 4 * GUARD;
    q->g.m = q->op.n_tok = m;
    q->op.q = out + GUARD;
    q->op.k = (char *)q->op.q + query + GUARD;
    q->op.v = (char *)q->op.k + key + GUARD;
    must(cudaMemsetAsync(out, 0xA5, all, cu.stream), "memset");
    return all;
}

/* Half-words of rows row .. row+m-1 of q that differ from p's, all of p's. */
static unsigned long long rows_differ(const struct qkv *q, const struct qkv *p, int64_t row)
{
    size_t query = (size_t)(q->op.n_head * q->op.head) * 2;
    size_t key = (size_t)(q->op.n_kv * q->op.head) * 2, m = (size_t)p->g.m;
    return differences((const char *)q->op.q + row * query, p->op.q, m * query) +
           differences((const char *)q->op.k + row * key, p->op.k, m * key) +
           differences((const char *)q->op.v + row * key, p->op.v, m * key);
}

/* Rows alone, and without the 37 before them. */
static unsigned long long qkv_moved(const struct qkv_arrays *a, const struct qkv *all)
{
    unsigned long long bad = 0;
    int64_t m = all->g.m;
    for (int64_t row = 0; row < m; row += 37) {
        struct qkv part = *all;
        part.g.x = a->x + row * all->g.ldx * 2;
        part.op.positions = a->positions + row;
        place_qkv(&part, a->out[2], row == 37 ? m - 37 : 1);
        run_qkv(&part, true);
        bad += rows_differ(all, &part, row);
    }
    return bad;
}

static void check_qkv(void)
{
    static const int heads[][3] = {{9, 3, 64},  {14, 2, 64}, {1, 1, 64},  {32, 8, 128},
                                   {5, 1, 128}, {2, 1, 256}, {3, 3, 256}};
    static const int ms[] = {1, 63, 129, 300, QKV_MOST};
    const size_t most = (size_t)QKV_MOST * QKV_COLS * 2 + 4 * GUARD;
    struct qkv_arrays a = {(char *)device((size_t)QKV_MOST * QKV_K * 2),
                           (char *)device((size_t)QKV_COLS * QKV_K * 2),
                           (char *)device(most),
                           (char *)device(2 * 256 * 2),
                           {(char *)device(most), (char *)device(most), (char *)device(most)},
                           (float *)device(QKV_COLS * 4),
                           (float *)device(QKV_POSITIONS * 256 * 4),
                           (int32_t *)device(QKV_MOST * 4)};
    fill<<<64, 256, 0, cu.stream>>>(a.bias, QKV_COLS, CTW_F32, 1, 3);
    fill<<<64, 256, 0, cu.stream>>>(a.cos_sin, QKV_POSITIONS * 256, CTW_F32, 0.7f, 4);
    make_targets<<<4, 256, 0, cu.stream>>>(a.positions, QKV_MOST, QKV_POSITIONS);
    for (int i = 0; i < 7 * 8; i++) {
        const int *h = heads[i / 8];
        unsigned long long bad = 0, moved = 0;
        struct qkv q = {};
        enum ctw_dtype t = i % 2 ? CTW_F16 : CTW_BF16;
        int norms = i / 2 % 4;
        bool turns = i % 8 != 5, bias = i / 4 % 2 != 0;
        q.g.n = q.g.ldy = (h[0] + 2 * h[1]) * h[2];
        q.g.k = q.g.ldx = q.g.ldw = i % 3 ? QKV_K : 72;
        q.g.dtype = q.g.y_dtype = q.op.dtype = q.op.norm_dtype = t;
        q.g.x = a.x, q.g.w = a.w, q.g.y = a.y;
        q.g.bias = bias ? a.bias : NULL;
        q.op.n_head = h[0], q.op.n_kv = h[1], q.op.head = h[2];
        q.op.qkv = a.y;
        q.op.q_norm = norms & 1 ? a.norms : NULL;
        q.op.k_norm = norms & 2 ? a.norms + 512 : NULL;
        q.op.norm_eps = 1e-6f;
        q.op.pairing = CTW_ROPE_HALVES;
        q.op.rot_dim = turns ? h[2] : 0;
        q.op.positions = a.positions, q.op.cos_sin = a.cos_sin;
        fill<<<64, 256, 0, cu.stream>>>(a.x, (int64_t)QKV_MOST * q.g.k, t, 1, i);
        fill<<<64, 256, 0, cu.stream>>>(a.w, q.g.n * q.g.k, t, 1 / sqrtf(q.g.k), i + 100);
        fill<<<1, 256, 0, cu.stream>>>(a.norms, 2 * 256, t, 1, i + 200);
        set_half(a.x, 5 * q.g.k + 3, 0x7FFF); /* NaN; below, infinity */
        set_half(a.x, 7 * q.g.k + 3, t == CTW_F16 ? 0x7C00 : 0x7F80);
        for (size_t j = 0; j < CTW_COUNT(ms); j++) {
            place_qkv(&q, a.out[0], ms[j]);
            run_qkv(&q, false);
            size_t bytes = place_qkv(&q, a.out[1], ms[j]);
            run_qkv(&q, true);
            bad += differences(a.out[0], a.out[1], bytes);
        }
        moved = qkv_moved(&a, &q);
        n_failed += bad || moved;
        printf("%s qkv %d/%d heads of %d, %s, k %lld, norms %d%s%s: %llu half-words differ from two "
               "steps', %llu moved\n",
               bad || moved ? "FAILED" : "ok", h[0], h[1], h[2], t == CTW_F16 ? "f16" : "bf16",
               (long long)q.g.k, norms, turns ? ", turned" : "", bias ? ", bias" : "", bad, moved);
    }
    cudaFree(a.x), cudaFree(a.w), cudaFree(a.y), cudaFree(a.norms), cudaFree(a.bias);
    cudaFree(a.cos_sin), cudaFree(a.positions);
    for (int i = 0; i < 3; i++)
        cudaFree(a.out[i]);
}

/* As in a Llama: heads of 128, 8 of keys and of values, the others queries; windows of 2048. The
 * results are in y, after the product's. */
static void make_qkv(struct qkv *q, const struct ctw_cuda_gemm *g, int32_t *positions, float *cos_sin)
{
    int n_all = (int)g->n / 128;
    q->g = *g;
    q->op.dtype = g->dtype;
    q->op.n_tok = g->m;
    q->op.n_kv = 8;
    q->op.n_head = n_all - 16;
    q->op.head = q->op.rot_dim = 128;
    q->op.qkv = g->y;
    q->op.pairing = CTW_ROPE_HALVES;
    q->op.positions = positions;
    q->op.cos_sin = cos_sin;
    q->op.q = (char *)g->y + ((size_t)1 << 29);
    q->op.k = (char *)q->op.q + (size_t)(g->m * q->op.n_head) * 256;
    q->op.v = (char *)q->op.k + (size_t)g->m * 8 * 256;
}
