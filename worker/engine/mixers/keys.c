#include "worker/engine/mixers/keys.h"

/* Bytes of a token's keys, of its values. */
struct row_bytes {
    size_t k, v;
    size_t index; /* the indexer's key; 0: there is none */
};

static struct row_bytes row_bytes(const struct ctw_step *s, const struct ctw_keys_shape *shape)
{
    size_t es = ctw_dtype_bytes(s->f->dtype), heads = (size_t)shape->n_kv * es;
    return (struct row_bytes){.k = heads * (size_t)shape->head,
                              .v = heads * (size_t)shape->head_v,
                              .index = (size_t)shape->index * es};
}

static enum ctw_status move_array(const struct ctw_step *s, void *array, size_t row,
                                  struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    size_t bytes = (size_t)s->chunk->n_moved * row;
    const void *source = (char *)array + (size_t)s->chunk->moved_from * row;
    enum ctw_status st = CTW_OK;
    /* If source and destination overlap, copy by way of f->wide. The keys fit: a sequence that
     * does not start at row 0 began in the previous chunk, so it has fewer keys than a chunk. */
    if (s->chunk->moved_from < s->chunk->n_moved) {
        st = ctw_device_copy(f->be, f->wide, source, bytes, err);
        source = f->wide;
    }
    return st == CTW_OK ? ctw_device_copy(f->be, array, source, bytes, err) : st;
}

enum ctw_status ctw_keys_begin(const struct ctw_step *s, const struct ctw_keys_shape *shape,
                               struct ctw_keys *out, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct row_bytes row = row_bytes(s, shape);
    int kept = shape->kept;
    bool carried = kept < 0;
    size_t here = (size_t)(carried ? s->chunk->kv_row : s->chunk->tok0);
    *out = (struct ctw_keys){.k = carried ? f->k : f->kept[kept].k,
                             .v = carried ? f->v : f->kept[kept].v,
                             .carried = carried};
    out->k_here = (char *)out->k + here * row.k;
    out->v_here = (char *)out->v + here * row.v;
    out->index_here = (char *)f->index_keys + here * row.index;
    if (!carried || s->chunk->n_moved == 0)
        return CTW_OK;
    enum ctw_status st = move_array(s, f->k, row.k, err);
    if (st == CTW_OK)
        st = move_array(s, f->v, row.v, err);
    if (st == CTW_OK && row.index > 0)
        st = move_array(s, f->index_keys, row.index, err);
    return st;
}

static enum ctw_status quantise(const struct ctw_step *s, const struct ctw_quantise *how, void *x,
                                int64_t n, int64_t ld, struct ctw_err *err)
{
    const struct ctw_op_quantise op = {.how = how,
                                       .dtype = s->f->dtype,
                                       .n_tok = s->chunk->n_tok,
                                       .dim = n,
                                       .x = x,
                                       .ldx = ld,
                                       .y = x,
                                       .ldy = ld};
    return ctw_quantise(s->f->be, &op, err);
}

enum ctw_status ctw_heads_quantise(const struct ctw_step *s, const struct ctw_heads_input *h,
                                   void *x, int n_heads, int64_t head, int64_t ld,
                                   struct ctw_err *err)
{
    struct ctw_quantise how = h->how;
    size_t bytes = (size_t)head * ctw_dtype_bytes(s->f->dtype);
    enum ctw_status st = CTW_OK;
    if (how.codes == CTW_CODES_NONE)
        return CTW_OK;
    if (h->scale == NULL)
        return quantise(s, &how, x, n_heads * head, ld, err);
    for (int i = 0; st == CTW_OK && i < n_heads; i++) {
        how.scale = h->scale[i];
        how.zero = h->zero != NULL ? h->zero[i] : 0;
        st = quantise(s, &how, (char *)x + (size_t)i * bytes, head, ld, err);
    }
    return st;
}

uint32_t *ctw_keys_seen(const struct ctw_step *s)
{
    int64_t row = s->f->plan.seen_by_pass ? s->chunk->tok0 : 0;
    return s->f->seen + row * s->f->plan.seen_words;
}

enum ctw_status ctw_keys_attend(const struct ctw_step *s, const struct ctw_keys *keys,
                                struct ctw_op_attention op, struct ctw_err *err)
{
    op.dtype = s->f->dtype;
    op.ld_seen = s->f->plan.seen_words;
    op.k = keys->k;
    op.v = keys->v;
    op.seqs = keys->carried ? s->chunk->seqs : s->chunk->kept_seqs;
    op.n_seqs = s->chunk->n_seqs;
    return ctw_attention(s->f->be, &op, err);
}
