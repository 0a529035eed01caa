/* Attention: selects the kernel for an op. */
#include "kernels/cuda/attention/attention.cuh"

extern "C" {
#include "base/mem.h"
}

/* ---- chunks of positions ------------------------------------------------------------------ */

/* The part of s in chunk c of its positions, as a sequence of its own: it sees no keys before its
 * chunk. Its runs go to `runs`, which has room for s->n_runs. */
static struct ctw_attn_seq chunk_of(const struct ctw_attn_seq *s, int64_t chunk, int64_t c,
                                    struct ctw_kv_run *runs)
{
    int64_t base = c * chunk, begin = s->pos0 > base ? s->pos0 : base, end = s->pos0 + s->n_q;
    struct ctw_attn_seq part = {s->q_row + begin - s->pos0, 0, begin - base, runs, 0};
    end = end < base + chunk ? end : base + chunk;
    part.n_q = end - begin;
    int64_t skip = base, want = end - base;
    for (int r = 0; want > 0; r++) {
        struct ctw_kv_run run = s->runs[r];
        int64_t n = run.n_tok < skip ? run.n_tok : skip;
        run.row += n;
        run.n_tok -= n;
        skip -= n;
        run.n_tok = run.n_tok < want ? run.n_tok : want;
        want -= run.n_tok;
        if (run.n_tok > 0)
            runs[part.n_runs++] = run;
    }
    return part;
}

/* Each chunk of a sequence as a sequence of its own. */
static enum ctw_status by_chunks(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                 struct ctw_err *err)
{
    struct ctw_op_attention parts = *op;
    int64_t n_seqs = 0, n_runs = 0;
    for (int64_t i = 0; i < op->n_seqs; i++) {
        const struct ctw_attn_seq *s = &op->seqs[i];
        if (s->n_q == 0)
            continue;
        int64_t n = (s->pos0 + s->n_q - 1) / op->chunk - s->pos0 / op->chunk + 1;
        n_seqs += n;
        n_runs += n * s->n_runs;
    }
    if (n_seqs == 0)
        return CTW_OK;
    struct ctw_attn_seq *seqs = (struct ctw_attn_seq *)ctw_calloc((size_t)n_seqs, sizeof(*seqs));
    struct ctw_kv_run *runs = (struct ctw_kv_run *)ctw_calloc((size_t)n_runs, sizeof(*runs));
    enum ctw_status st = CTW_OK;
    if (seqs == NULL || runs == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    struct ctw_kv_run *at = runs;
    parts.n_seqs = 0;
    for (int64_t i = 0; st == CTW_OK && i < op->n_seqs; i++) {
        const struct ctw_attn_seq *s = &op->seqs[i];
        for (int64_t c = s->pos0 / op->chunk; c * op->chunk < s->pos0 + s->n_q; c++) {
            if (s->n_q == 0)
                continue;
            seqs[parts.n_seqs++] = chunk_of(s, op->chunk, c, at);
            at += s->n_runs;
        }
    }
    parts.seqs = seqs;
    parts.chunk = 0;
    if (st == CTW_OK)
        st = ctw_cuda_attention(cu, &parts, err);
    ctw_free(runs);
    ctw_free(seqs);
    return st;
}

/* ---- chosen keys -------------------------------------------------------------------------- */

/* By the kernel for the op's dtype, heads and keys. */
static enum ctw_status attend(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                              struct ctw_err *err)
{
    if (op->dtype == CTW_F32)
        return ctw_cuda_attention_f32(cu, op, err);
    bool done = false;
    enum ctw_status st = CTW_OK;
    if (cu->hopper && op->seen == NULL)
        st = ctw_cuda_attention_hopper(cu, op, &done, err);
    return st != CTW_OK || done ? st : ctw_cuda_attention_general(cu, op, err);
}

/* The queries of s at positions from .. to-1, as a sequence of their own. */
static struct ctw_attn_seq queries_of(const struct ctw_attn_seq *s, int64_t from, int64_t to)
{
    int64_t begin = s->pos0, end = s->pos0 + s->n_q;
    begin = from > begin ? from : begin;
    end = to < end ? to : end;
    struct ctw_attn_seq part = {s->q_row + begin - s->pos0, end > begin ? end - begin : 0, begin,
                                s->runs, s->n_runs};
    return part;
}

/*
 * First the queries that see all keys, then the others. Which kernel a query gets depends on its
 * position alone, so a sequence that is no longer than the choice has the same bits whatever the
 * lengths of the others.
 */
static enum ctw_status by_choice(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                 struct ctw_err *err)
{
    struct ctw_op_attention part = *op;
    struct ctw_attn_seq *seqs =
        (struct ctw_attn_seq *)ctw_calloc((size_t)op->n_seqs + 1, sizeof(*seqs));
    enum ctw_status st = seqs == NULL ? ctw_fail(err, CTW_ENOMEM, "cuda: out of memory") : CTW_OK;
    part.seqs = seqs;
    for (int chosen = 0; st == CTW_OK && chosen < 2; chosen++) {
        part.n_seqs = 0;
        part.seen = chosen ? op->seen : NULL;
        for (int64_t i = 0; i < op->n_seqs; i++) {
            struct ctw_attn_seq s = queries_of(&op->seqs[i], chosen ? op->seen_from : 0,
                                               chosen ? INT64_MAX : op->seen_from);
            if (s.n_q > 0)
                seqs[part.n_seqs++] = s;
        }
        st = attend(cu, &part, err);
    }
    ctw_free(seqs);
    return st;
}

enum ctw_status ctw_cuda_attention(struct ctw_cuda *cu, const struct ctw_op_attention *op,
                                   struct ctw_err *err)
{
    if (op->chunk > 0)
        return by_chunks(cu, op, err);
    if (!(op->scale > 0))
        return ctw_fail(err, CTW_EUNSUP, "cuda: attention with scale %g; it must be positive",
                        (double)op->scale);
    return op->seen != NULL ? by_choice(cu, op, err) : attend(cu, op, err);
}
