/* Part of test_attention.cu: random numbers, and the sequences that attention is tested on. */

/* ---- numbers ------------------------------------------------------------------------------ */

static uint64_t rng = 88172645463325252u;

static uint32_t rng_next(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
}

static int64_t rng_below(int64_t n)
{
    return (int64_t)(rng_next() % (uint64_t)n);
}

/* About normal: the sum of 3 uniform numbers, up to 3 in size. */
static float rng_normal(void)
{
    float s = -1.5f;
    for (int i = 0; i < 3; i++)
        s += (float)(rng_next() >> 8) * 0x1p-24f;
    return 2 * s;
}

static uint16_t to_16(float x, enum ctw_dtype dtype)
{
    uint16_t r;
    if (dtype == CTW_BF16) {
        __nv_bfloat16 b = __float2bfloat16(x);
        memcpy(&r, &b, 2);
    } else {
        __half h = __float2half(x);
        memcpy(&r, &h, 2);
    }
    return r;
}

static void store(void *p, enum ctw_dtype dtype, int64_t i, float x)
{
    if (dtype == CTW_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = to_16(x, dtype);
}

__host__ __device__ static double load(const void *p, int dtype, int64_t i)
{
    if (dtype == CTW_F32)
        return (double)((const float *)p)[i];
    if (dtype == CTW_BF16)
        return (double)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
    return (double)__half2float(((const __half *)p)[i]);
}

/* ---- problems ----------------------------------------------------------------------------- */

struct shape {
    int n_head, n_kv, head;
    int64_t window;
    float softcap;
    int head_v; /* 0: head */
    int64_t chunk;
    float v_factor; /* 0: 1 */
};

/* An array on both sides. */
struct array {
    char *host, *device;
    size_t bytes;
};

struct problem {
    struct ctw_op_attention op;
    struct ctw_attn_seq seqs[MAX_SEQS];
    struct ctw_kv_run runs[MAX_SEQS][MAX_RUNS];
    int64_t q_rows, kv_rows;
    struct array q, k, v, out, sinks, alibi, seen; /* the last three: absent unless given */
};

static struct array array_new(size_t bytes)
{
    struct array a = {(char *)ctw_calloc(bytes, 1), NULL, bytes};
    if (a.host == NULL)
        _Exit(2);
    CU(cudaMalloc((void **)&a.device, bytes));
    return a;
}

static void array_upload(const struct array *a)
{
    CU(cudaMemcpy(a->device, a->host, a->bytes, cudaMemcpyHostToDevice));
    CU(cudaDeviceSynchronize()); /* the stream under test does not wait for the default stream */
}

static void array_close(struct array *a) /* also accepts an absent array */
{
    ctw_free(a->host);
    CU(cudaFree(a->device));
}

static void problem_close(struct problem *p)
{
    array_close(&p->q);
    array_close(&p->k);
    array_close(&p->v);
    array_close(&p->out);
    array_close(&p->sinks);
    array_close(&p->alibi);
    array_close(&p->seen);
}

/* Sequences of these lengths; rows that belong to no sequence are NaN. pieces: keys are in up to
 * this many runs, in reverse order. */
static void problem_open(struct problem *p, const struct shape *s, enum ctw_dtype dtype,
                         const int64_t *lengths, int n_seqs, int pieces)
{
    memset(p, 0, sizeof(*p));
    struct ctw_op_attention *op = &p->op;
    op->dtype = dtype;
    op->n_head = s->n_head;
    op->n_kv = s->n_kv;
    op->head = s->head;
    op->window = s->window;
    op->softcap = s->softcap;
    op->head_v = s->head_v > 0 ? s->head_v : s->head;
    op->chunk = s->chunk;
    op->v_factor = s->v_factor == 0 ? 1 : s->v_factor;
    op->scale = 1.0f / sqrtf((float)s->head);
    op->seqs = p->seqs;
    op->n_seqs = n_seqs;
    for (int i = 0; i < n_seqs; i++) {
        struct ctw_attn_seq *q = &p->seqs[i];
        q->pos0 = i % 3 == 1 ? rng_below(lengths[i]) : 0;
        q->n_q = lengths[i] - q->pos0;
        q->q_row = p->q_rows + rng_below(3);
        p->q_rows = q->q_row + q->n_q;
        q->runs = p->runs[i];
        int64_t left = lengths[i];
        while (left > 0) {
            int64_t n = q->n_runs + 1 < pieces ? 1 + rng_below(left) : left;
            p->runs[i][q->n_runs++].n_tok = n;
            left -= n;
        }
        for (int r = q->n_runs - 1; r >= 0; r--) {
            p->runs[i][r].row = p->kv_rows + rng_below(4);
            p->kv_rows = p->runs[i][r].row + p->runs[i][r].n_tok;
        }
    }
    p->q_rows += 1;
    p->kv_rows += 2;
    size_t b = ctw_dtype_bytes(dtype);
    size_t q_row = (size_t)s->n_head * s->head, k_row = (size_t)s->n_kv * s->head;
    size_t out_row = (size_t)s->n_head * op->head_v, v_row = (size_t)s->n_kv * op->head_v;
    p->q = array_new(p->q_rows * q_row * b);
    p->k = array_new(p->kv_rows * k_row * b);
    p->v = array_new(p->kv_rows * v_row * b);
    p->out = array_new(p->q_rows * out_row * b);
    for (size_t i = 0; i < p->q_rows * q_row; i++)
        store(p->q.host, dtype, i, NAN);
    for (size_t i = 0; i < p->kv_rows * k_row; i++)
        store(p->k.host, dtype, i, NAN);
    for (size_t i = 0; i < p->kv_rows * v_row; i++)
        store(p->v.host, dtype, i, NAN);
    for (int i = 0; i < n_seqs; i++) {
        for (size_t e = 0; e < p->seqs[i].n_q * q_row; e++)
            store(p->q.host, dtype, p->seqs[i].q_row * q_row + e, 2 * rng_normal());
        for (int r = 0; r < p->seqs[i].n_runs; r++) {
            const struct ctw_kv_run *run = &p->runs[i][r];
            for (size_t e = 0; e < run->n_tok * k_row; e++)
                store(p->k.host, dtype, run->row * k_row + e, 1.5f * rng_normal());
            for (size_t e = 0; e < run->n_tok * v_row; e++)
                store(p->v.host, dtype, run->row * v_row + e, rng_normal());
        }
    }
    array_upload(&p->q);
    array_upload(&p->k);
    array_upload(&p->v);
    op->q = p->q.device;
    op->k = p->k.device;
    op->v = p->v.device;
    op->out = p->out.device;
}

/* A random sink for each query head, about as large as scores are. */
static void give_sinks(struct problem *p, enum ctw_dtype dtype)
{
    p->sinks = array_new(p->op.n_head * ctw_dtype_bytes(dtype));
    for (int h = 0; h < p->op.n_head; h++)
        store(p->sinks.host, dtype, h, 3 * rng_normal());
    array_upload(&p->sinks);
    p->op.sinks = p->sinks.device;
    p->op.sinks_dtype = dtype;
}

/* ALiBi with slopes from 1/2 to 1/256. */
static void give_slopes(struct problem *p)
{
    p->alibi = array_new(p->op.n_head * sizeof(float));
    for (int h = 0; h < p->op.n_head; h++)
        store(p->alibi.host, CTW_F32, h, exp2f(-1 - 7 * (float)rng_below(1000) / 1000));
    array_upload(&p->alibi);
    p->op.alibi = (const float *)p->alibi.device;
}

/* Chooses keys at random, a quarter of them and the query's own; all for queries at positions below
 * `from`. Words past the query's own key are arbitrary. */
static void give_seen(struct problem *p, int64_t from)
{
    int64_t longest = 0;
    for (int s = 0; s < p->op.n_seqs; s++) {
        int64_t n = p->seqs[s].pos0 + p->seqs[s].n_q;
        longest = n > longest ? n : longest;
    }
    p->op.ld_seen = longest / 32 + 2;
    p->op.seen_from = from;
    p->seen = array_new(p->q_rows * p->op.ld_seen * sizeof(uint32_t));
    uint32_t *word = (uint32_t *)p->seen.host;
    for (int64_t i = 0; i < p->q_rows * p->op.ld_seen; i++)
        word[i] = rng_next() & rng_next();
    for (int s = 0; s < p->op.n_seqs; s++)
        for (int64_t i = 0; i < p->seqs[s].n_q; i++) {
            int64_t pos = p->seqs[s].pos0 + i;
            uint32_t *row = word + (p->seqs[s].q_row + i) * p->op.ld_seen;
            row[pos / 32] |= 1u << pos % 32;
            for (int64_t w = 0; pos < from && w <= pos / 32; w++)
                row[w] = 0xFFFFFFFFu;
        }
    array_upload(&p->seen);
    p->op.seen = (const uint32_t *)p->seen.device;
}

/* Does the query in row q_row of q see the key at position pos? words: op->seen, or its copy. */
__host__ __device__ static bool is_seen(const struct ctw_op_attention *op, const uint32_t *words,
                                        int64_t q_row, int64_t pos)
{
    return op->seen == NULL || (words[q_row * op->ld_seen + pos / 32] >> pos % 32 & 1) != 0;
}

static void poison(struct problem *p)
{
    CU(cudaMemset(p->out.device, 0xFF, p->out.bytes)); /* NaN in every dtype */
    CU(cudaDeviceSynchronize());
}

/* The results of op on the host; the caller frees them. */
static char *results(struct ctw_cuda *cu, struct problem *p, const struct ctw_op_attention *op)
{
    char *r = (char *)ctw_calloc(p->out.bytes, 1);
    OK(ctw_cuda_attention(cu, op, &last_err));
    CU(cudaStreamSynchronize(cu->stream));
    CU(cudaMemcpy(r, p->out.device, p->out.bytes, cudaMemcpyDeviceToHost));
    return r;
}

static void told(bool good, const char *what, const char *variant, const struct problem *p,
                 const char *more)
{
    n_passed += good;
    n_failed += !good;
    printf("%s %-9s %-7s %-4s heads %3d / %d of %3d and %3d, x %g, window %3d chunk %3d cap %2g %s "
           "%s\n",
           good ? "ok  " : "FAIL", what, variant, ctw_dtype_name(p->op.dtype), p->op.n_head,
           p->op.n_kv, p->op.head, p->op.head_v, (double)p->op.v_factor, (int)p->op.window,
           (int)p->op.chunk, (double)p->op.softcap,
           p->op.alibi != NULL   ? "alibi"
           : p->op.seen != NULL  ? "seen "
           : p->op.sinks != NULL ? "sinks"
                                 : "     ",
           more);
}
