#include "worker/engine/mixers/keys.h"

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

enum ctw_status ctw_keys_attend(const struct ctw_step *s, const struct ctw_keys *keys,
                                struct ctw_op_attention op, struct ctw_err *err)
{
    op.dtype = s->f->dtype;
    op.k = keys->k.all;
    op.v = keys->v.all;
    op.seqs = s->chunk->seqs[keys->k.life];
    op.n_seqs = s->chunk->n_seqs;
    return ctw_attention(s->f->be, &op, err);
}
