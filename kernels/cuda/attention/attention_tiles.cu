/* The list of an attention op's tiles. */
#include "kernels/cuda/attention/attention.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/mem.h"
}

/*
 * Sequences whose keys and values together have at most this many bytes are processed at the same
 * time: their tiles are mixed, longest first, and find keys read by other tiles in the GPU's cache.
 */
enum { GROUP_BYTES = 24 << 20, MAX_PACK = 32 };

/* Kernels read this many bytes past the list of runs, and do not use them. */
enum { BEHIND = CTW_ATTN_AHEAD * sizeof(struct ctw_attn_run) };

/* A list that grows until the table is full. */
struct plan {
    struct ctw_cuda *cu;
    const struct ctw_op_attention *op;
    struct ctw_attn a; /* the list is not filled in */
    ctw_attn_launch_fn *launch;
    int rows, keys;
    struct ctw_attn_tile *tiles;
    struct ctw_attn_run *runs;
    char *table;
    size_t limit; /* bytes of a table */
    int32_t n_tiles, n_runs;
    int32_t group; /* the first of the tiles that are not sorted yet */
};

/* Heads of a group in one tile of `rows` rows: the most that leave at most a tenth of the rows
 * unused. */
static int choose_pack(int group, int rows)
{
    int best = 1;
    for (int pack = 2; pack <= group && pack <= MAX_PACK && pack <= rows; pack++) {
        int n_sub = (group + pack - 1) / pack;
        if ((int64_t)group * (rows / pack) * 10 >= (int64_t)rows * n_sub * 9)
            best = pack;
    }
    return best;
}

static struct ctw_attn describe(const struct ctw_op_attention *op, int rows)
{
    struct ctw_attn a;
    memset(&a, 0, sizeof(a));
    a.q = op->q;
    a.k = op->k;
    a.v = op->v;
    a.out = op->out;
    double to_base_2 = 1.4426950408889634;
    a.head = op->head;
    a.head_v = op->head_v;
    a.v_factor = op->v_factor;
    a.n_head = op->n_head;
    a.n_kv = op->n_kv;
    a.group = op->n_head / op->n_kv;
    a.pack = choose_pack(a.group, rows);
    a.n_sub = (a.group + a.pack - 1) / a.pack;
    a.window = op->window > 0 && op->window < CTW_ATTN_ALL ? (int32_t)op->window : CTW_ATTN_ALL;
    a.factor = (float)((op->softcap > 0 ? 1.0 : (double)op->scale) * to_base_2);
    a.cap = op->softcap > 0 ? op->softcap : 0;
    a.cap_in = a.cap > 0 ? (float)(2 * to_base_2 * (double)op->scale / (double)a.cap) : 0;
    a.dtype = op->dtype;
    a.sinks = op->sinks;
    a.sinks_dtype = op->sinks_dtype;
    a.alibi = op->alibi;
    a.relative = op->relative;
    a.per_scale = (float)(1 / (double)op->scale);
    a.seen = op->seen;
    a.ld_seen = op->ld_seen;
    a.seen_head = op->seen_head;
    uintptr_t bits = (uintptr_t)op->q | (uintptr_t)op->k | (uintptr_t)op->v | (uintptr_t)op->out;
    a.aligned = (bits & 15) == 0 && op->head % 8 == 0 && op->head_v % 8 == 0;
    return a;
}

static int longest_first(const void *x, const void *y)
{
    const struct ctw_attn_seq *a = *(const struct ctw_attn_seq *const *)x;
    const struct ctw_attn_seq *b = *(const struct ctw_attn_seq *const *)y;
    int64_t na = a->pos0 + a->n_q, nb = b->pos0 + b->n_q;
    return na != nb ? (na > nb ? -1 : 1) : a < b ? -1 : a > b;
}

/* Until the list is sorted, `bad` holds the cost. */
static int costly_first(const void *x, const void *y)
{
    const struct ctw_attn_tile *a = (const struct ctw_attn_tile *)x;
    const struct ctw_attn_tile *b = (const struct ctw_attn_tile *)y;
    if (a->bad != b->bad)
        return a->bad > b->bad ? -1 : 1;
    return a->q_row < b->q_row ? -1 : a->q_row > b->q_row;
}

/* Ends a group of sequences that are processed at the same time. */
static void plan_order(struct plan *p)
{
    qsort(p->tiles + p->group, (size_t)(p->n_tiles - p->group), sizeof(*p->tiles), costly_first);
    for (; p->group < p->n_tiles; p->group++)
        p->tiles[p->group].bad = 0;
}

/* Launches the tiles listed so far. */
static enum ctw_status plan_flush(struct plan *p, struct ctw_err *err)
{
    if (p->n_tiles == 0)
        return CTW_OK;
    size_t state_bytes = CTW_ATTN_STATES * sizeof(int32_t);
    size_t tile_bytes = (size_t)p->n_tiles * sizeof(*p->tiles);
    size_t run_bytes = (size_t)p->n_runs * sizeof(*p->runs);
    size_t bytes = state_bytes + tile_bytes + run_bytes + BEHIND;
    plan_order(p);
    memset(p->table, 0, state_bytes);
    memcpy(p->table + state_bytes, p->tiles, tile_bytes);
    memcpy(p->table + state_bytes + tile_bytes, p->runs, run_bytes);
    void *device = NULL;
    enum ctw_status st = ctw_cuda_table(p->cu, p->table, bytes, &device, err);
    if (st != CTW_OK)
        return st;
    struct ctw_attn a = p->a;
    a.state = (int32_t *)device;
    a.tiles = (struct ctw_attn_tile *)((char *)device + state_bytes);
    a.runs = (const struct ctw_attn_run *)((char *)device + state_bytes + tile_bytes);
    a.n_tiles = p->n_tiles;
    p->n_tiles = p->n_runs = p->group = 0;
    return p->launch(p->cu, &a, err);
}

static bool plan_has_room(const struct plan *p, int64_t n_tiles, int64_t n_runs)
{
    return CTW_ATTN_STATES * sizeof(int32_t) + (size_t)(p->n_tiles + n_tiles) * sizeof(*p->tiles) +
               (size_t)(p->n_runs + n_runs) * sizeof(*p->runs) <=
           p->limit;
}

/* Lists a sequence's runs up to n_keys; runs that are adjacent in memory become one. */
static void plan_runs(struct plan *p, const struct ctw_attn_seq *s, int64_t n_keys)
{
    int64_t pos = 0;
    struct ctw_attn_run *last = NULL, *first = p->runs + p->n_runs;
    for (int r = 0; pos < n_keys; r++) {
        int64_t n = s->runs[r].n_tok < n_keys - pos ? s->runs[r].n_tok : n_keys - pos;
        int32_t shift = (int32_t)(s->runs[r].row - pos);
        pos += n;
        if (n == 0)
            continue;
        if (last == NULL || last->shift != shift) {
            last = &p->runs[p->n_runs++];
            last->shift = shift;
        }
        last->end = (int32_t)pos;
    }
    for (const struct ctw_attn_run *r = first; r < last; r++)
        p->a.spans = p->a.spans || r->end % p->keys != 0;
}

static enum ctw_status plan_seq(struct plan *p, const struct ctw_attn_seq *s, struct ctw_err *err)
{
    int64_t n_keys = s->pos0 + s->n_q, step = p->rows / p->a.pack;
    int32_t run = -1;
    for (int64_t at = 0; at < s->n_q; at += step) {
        if (run < 0 || !plan_has_room(p, 1, 0)) {
            if (!plan_has_room(p, 1, s->n_runs)) {
                enum ctw_status st = plan_flush(p, err);
                if (st != CTW_OK)
                    return st;
            }
            if (!plan_has_room(p, 1, s->n_runs))
                return ctw_fail(err, CTW_EUNSUP, "cuda: attention over keys in %d pieces",
                                s->n_runs);
            run = p->n_runs;
            plan_runs(p, s, n_keys);
        }
        int64_t pos = s->pos0 + at, n = s->n_q - at < step ? s->n_q - at : step;
        int64_t first = pos >= p->a.window ? (pos - p->a.window + 1) / p->keys : 0;
        while (p->runs[run].end <= first * p->keys)
            run++;
        p->tiles[p->n_tiles++] =
            (struct ctw_attn_tile){.q_row = (int32_t)(s->q_row + at),
                                   .n_q = (int32_t)n,
                                   .pos = (int32_t)pos,
                                   .key_end = (int32_t)n_keys,
                                   .run = run,
                                   .shift = p->runs[run].shift,
                                   .end = p->runs[run].end,
                                   .bad = (int32_t)((pos + n - 1) / p->keys + 1 - first)};
    }
    return CTW_OK;
}

/* The device counts rows and positions in 32 bits. */
static enum ctw_status measure(struct plan *p, int64_t *n_tiles, int64_t *n_runs,
                               struct ctw_err *err)
{
    int64_t step = p->rows / p->a.pack;
    for (int64_t i = 0; i < p->op->n_seqs; i++) {
        const struct ctw_attn_seq *s = &p->op->seqs[i];
        int64_t q_end = s->q_row + s->n_q;
        *n_tiles += (s->n_q + step - 1) / step;
        *n_runs += s->n_runs;
        p->a.q_rows = s->n_q > 0 && q_end > p->a.q_rows ? q_end : p->a.q_rows;
        for (int r = 0; r < s->n_runs; r++) {
            int64_t end = s->runs[r].row + s->runs[r].n_tok;
            p->a.kv_rows = s->runs[r].n_tok > 0 && end > p->a.kv_rows ? end : p->a.kv_rows;
        }
        if (s->pos0 + s->n_q >= CTW_ATTN_ALL / 2)
            return ctw_fail(err, CTW_EUNSUP, "cuda: attention over more than 2^29 keys");
    }
    if (p->a.q_rows >= CTW_ATTN_ALL || p->a.kv_rows >= CTW_ATTN_ALL)
        return ctw_fail(err, CTW_EUNSUP, "cuda: attention in arrays of more than 2^30 rows");
    return CTW_OK;
}

enum ctw_status ctw_attn_each(struct ctw_cuda *cu, const struct ctw_op_attention *op, int rows,
                              int keys, ctw_attn_launch_fn *launch, struct ctw_err *err)
{
    return ctw_attn_each_of(cu, op, NULL, rows, keys, launch, err);
}

enum ctw_status ctw_attn_each_of(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                 const void *of, int rows, int keys, ctw_attn_launch_fn *launch,
                                 struct ctw_err *err)
{
    struct plan p;
    memset(&p, 0, sizeof(p));
    p.cu = cu;
    p.op = op;
    p.a = describe(op, rows);
    p.a.of = of;
    p.launch = launch;
    p.rows = rows;
    p.keys = keys;
    p.limit = cu->ring.bytes / 4 - BEHIND;
    const struct ctw_attn_seq **order = NULL;
    int64_t n_tiles = 0, n_runs = 0, bytes = 0;
    enum ctw_status st = measure(&p, &n_tiles, &n_runs, err);
    if (st != CTW_OK || n_tiles == 0)
        return st;
    size_t most = p.limit / sizeof(*p.tiles);
    p.tiles = (struct ctw_attn_tile *)ctw_calloc((size_t)n_tiles < most ? (size_t)n_tiles : most,
                                                 sizeof(*p.tiles));
    most = p.limit / sizeof(*p.runs);
    p.runs = (struct ctw_attn_run *)ctw_calloc((size_t)n_runs < most ? (size_t)n_runs : most,
                                               sizeof(*p.runs));
    size_t table = CTW_ATTN_STATES * sizeof(int32_t) + (size_t)n_tiles * sizeof(*p.tiles) +
                   (size_t)n_runs * sizeof(*p.runs);
    p.table = (char *)ctw_calloc((table < p.limit ? table : p.limit) + BEHIND, 1);
    order = (const struct ctw_attn_seq **)ctw_calloc((size_t)op->n_seqs, sizeof(const void *));
    if (p.tiles == NULL || p.runs == NULL || p.table == NULL || order == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    for (int64_t i = 0; st == CTW_OK && i < op->n_seqs; i++)
        order[i] = &op->seqs[i];
    if (st == CTW_OK)
        qsort(order, (size_t)op->n_seqs, sizeof(*order), longest_first);
    for (int64_t i = 0; st == CTW_OK && i < op->n_seqs; i++) {
        int64_t more = (order[i]->pos0 + order[i]->n_q) * op->n_kv * (op->head + op->head_v) *
                       (int64_t)ctw_dtype_bytes(op->dtype);
        if (bytes > 0 && bytes + more > GROUP_BYTES) {
            plan_order(&p);
            bytes = 0;
        }
        bytes += more;
        st = plan_seq(&p, order[i], err);
    }
    if (st == CTW_OK)
        st = plan_flush(&p, err);
    ctw_free(order);
    ctw_free(p.table);
    ctw_free(p.runs);
    ctw_free(p.tiles);
    return st;
}
