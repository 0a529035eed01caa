/* Part of test_ops_linear.c and tests/gpu/test_products.c: ctw_linear_qkv() gives the bits of its
 * two steps. */

#include "placed_weight.h"

struct split_shape {
    int n_head, n_kv, head, rot_dim;
    int64_t k;
};

static const struct split_shape split_shapes[] = {
    {9, 3, 64, 64, 96},   {4, 2, 128, 128, 256}, {2, 1, 256, 256, 64}, {3, 1, 64, 0, 512},
    {2, 2, 128, 32, 128}, {5, 1, 40, 20, 64},    {7, 1, 64, 64, 1024}, {14, 2, 128, 128, 512},
};

enum { SPLIT_ROWS = CTW_ON_GPU ? 80 : 20, SPLIT_POSITIONS = 500, SPLIT_MEMORY = 32 };

/* All pointers are the backend's. */
struct split_problem {
    struct ctw_op_linear op;
    struct ctw_op_qkv qkv;
    struct test_weight w[3];
    struct placed_weight placed[3];
    struct ctw_shard shards[3];
    void *memory[SPLIT_MEMORY];
    int n_memory;
};

static void *split_place(struct split_problem *p, struct ctw_backend *be, const void *src,
                         size_t bytes)
{
    assert_true(p->n_memory < SPLIT_MEMORY);
    return p->memory[p->n_memory++] = upload(be, src, bytes);
}

static void *split_random(struct split_problem *p, struct ctw_backend *be, enum ctw_dtype dtype,
                          int64_t n)
{
    struct buf b = buf_random(dtype, n, 1, 0);
    void *d = split_place(p, be, b.p, b.bytes);
    buf_close(&b);
    return d;
}

/* norms: bits 0 and 1: queries, keys */
static void split_open(struct split_problem *p, struct ctw_backend *be, const struct split_shape *s,
                       enum ctw_dtype dtype, int norms)
{
    memset(p, 0, sizeof(*p));
    int32_t positions[SPLIT_ROWS];
    int64_t columns = (int64_t)(s->n_head + 2 * s->n_kv) * s->head;
    for (int i = 0; i < 3; i++) {
        enum weight_kind kind;
        do
            kind = (enum weight_kind)rng_below(N_WEIGHT_KINDS);
        while (!weight_possible(kind, s->k));
        weight_open(&p->w[i], kind, (int64_t)(i == 0 ? s->n_head : s->n_kv) * s->head, s->k,
                    (int)rng_below(2));
        weight_place(&p->placed[i], &p->w[i], be, true);
        p->shards[i] = p->placed[i].shard;
    }
    for (int i = 0; i < SPLIT_ROWS; i++)
        positions[i] = (int32_t)(i == 0 ? SPLIT_POSITIONS - 1 : rng_below(SPLIT_POSITIONS));
    p->op = (struct ctw_op_linear){.shards = p->shards,
                                   .n_shards = 3,
                                   .slot = CTW_SLOT_FIRST,
                                   .dtype = dtype,
                                   .n_tok = SPLIT_ROWS,
                                   .ldx = s->k,
                                   .ldy = columns};
    p->op.x = split_random(p, be, dtype, SPLIT_ROWS * s->k);
    p->op.y = split_random(p, be, dtype, SPLIT_ROWS * columns);
    p->qkv = (struct ctw_op_qkv){.dtype = dtype,
                                 .n_tok = SPLIT_ROWS,
                                 .n_head = s->n_head,
                                 .n_kv = s->n_kv,
                                 .head = s->head,
                                 .qkv = p->op.y,
                                 .norm_eps = 1e-6f,
                                 .rot_dim = s->rot_dim};
    p->qkv.norm_dtype = rng_below(2) == 0 ? dtype : CTW_F32;
    p->qkv.q_norm = norms & 1 ? split_random(p, be, p->qkv.norm_dtype, s->head) : NULL;
    p->qkv.k_norm = norms & 2 ? split_random(p, be, p->qkv.norm_dtype, s->head) : NULL;
    p->qkv.pairing = rng_below(4) == 0 ? CTW_ROPE_INTERLEAVED : CTW_ROPE_HALVES;
    p->qkv.positions = split_place(p, be, positions, sizeof(positions));
    p->qkv.cos_sin = split_random(p, be, CTW_F32, SPLIT_POSITIONS * (s->rot_dim + 1));
}

static void split_close(struct split_problem *p, struct ctw_backend *be)
{
    for (int i = 0; i < p->n_memory; i++)
        ctw_device_free(be, p->memory[i]);
    for (int i = 0; i < 3; i++) {
        weight_unplace(&p->placed[i]);
        weight_close(&p->w[i]);
    }
}

/* Queries, keys and values of all rows, `piece` rows at a time. */
static struct buf split_run(const struct split_problem *p, struct ctw_backend *be, int64_t piece,
                            bool one)
{
    size_t es = ctw_dtype_bytes(p->op.dtype), query = (size_t)(p->qkv.n_head * p->qkv.head) * es;
    size_t key = (size_t)(p->qkv.n_kv * p->qkv.head) * es;
    struct buf out = buf_open(SPLIT_ROWS * (query + 2 * key), 0);
    void *d;
    OK(ctw_device_alloc(be, &d, out.bytes, &last_err));
    OK(ctw_device_upload(be, d, out.p, out.bytes, &last_err));
    for (int64_t t = 0; t < SPLIT_ROWS; t += piece) {
        struct ctw_op_linear op = p->op;
        struct ctw_op_qkv qkv = p->qkv;
        op.n_tok = qkv.n_tok = piece < SPLIT_ROWS - t ? piece : SPLIT_ROWS - t;
        op.x = element(op.x, op.dtype, t * op.ldx);
        qkv.positions += t;
        qkv.q = (char *)d + (size_t)t * query;
        qkv.k = (char *)d + SPLIT_ROWS * query + (size_t)t * key;
        qkv.v = (char *)d + SPLIT_ROWS * (query + key) + (size_t)t * key;
        if (one) {
            OK(ctw_linear_qkv(be, &op, &qkv, &last_err));
        } else {
            OK(ctw_linear(be, &op, &last_err));
            OK(ctw_qkv(be, &qkv, &last_err));
        }
    }
    OK(ctw_device_download(be, out.p, d, out.bytes, &last_err));
    ctw_device_free(be, d);
    return out;
}

/* Every shape and dtype on one backend: in one step and in two, and in other pieces. A CPU always
 * does two steps: fewer. */
UNUSED_OK static void split_check(struct ctw_backend *be, const char *variant)
{
    static const enum ctw_dtype types[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const int64_t pieces[] = {SPLIT_ROWS, 13};
    for (size_t s = 0; s < 12 * CTW_COUNT(split_shapes); s += CTW_ON_GPU ? 1 : 11) {
        struct split_problem p;
        split_open(&p, be, &split_shapes[s / 12], types[s % 3], (int)(s / 3 % 4));
        struct buf want = split_run(&p, be, SPLIT_ROWS, false);
        for (size_t i = 0; i < CTW_COUNT(pieces); i++) {
            struct buf got = split_run(&p, be, pieces[i], true);
            if (memcmp(got.p, want.p, want.bytes) != 0)
                fail_msg(
                    "%s %s, %d/%d heads of %d, rot %d, norms %d, in pieces of %d: other bits than "
                    "in two steps",
                    variant, ctw_dtype_name(p.op.dtype), p.qkv.n_head, p.qkv.n_kv, p.qkv.head,
                    p.qkv.rot_dim, (int)(s / 3 % 4), (int)pieces[i]);
            buf_close(&got);
        }
        buf_close(&want);
        split_close(&p, be);
    }
}
