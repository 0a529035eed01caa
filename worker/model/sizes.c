/* A model's sizes, read for a family's function. */
#include <inttypes.h>

#include "worker/model/families/family.h"

static const char *or_default(const char *name, const char *absent)
{
    return name != NULL ? name : absent;
}

/* null: as for ctw_key_int(). */
static int64_t size(struct ctw_config *c, const char *name, const char *llama, int64_t absent,
                    int64_t null, int64_t max)
{
    name = or_default(name, llama);
    return name[0] == '\0' ? absent : ctw_key_int(c, name, absent, null, 1, max);
}

struct ctw_sizes ctw_key_sizes_as(struct ctw_config *c, const struct ctw_sizes *absent,
                                  const struct ctw_size_keys *keys)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_size_keys *k = keys;
    const char *heads = or_default(k->n_head, "num_attention_heads");
    const char *kv_heads = or_default(k->n_kv, "num_key_value_heads");
    struct ctw_sizes s = {
        .vocab = size(c, k->vocab, "vocab_size", absent->vocab, NO, 1 << 24),
        .hidden = size(c, k->hidden, "hidden_size", absent->hidden, NO, 1 << 18),
        .inner = size(c, k->inner, "intermediate_size", absent->inner, NO, 1 << 20),
        .n_layers =
            size(c, k->n_layers, "num_hidden_layers", absent->n_layers, NO, CTW_MAX_DECODERS),
        .n_head = size(c, heads, heads, absent->n_head, NO, 4096),
        .n_kv = size(c, kv_heads, kv_heads, absent->n_kv, 0, 4096),
        .max_length =
            size(c, k->max_length, "max_position_embeddings", absent->max_length, NO, 1 << 30),
    };
    s.hidden_key = or_default(k->hidden, "hidden_size");
    s.n_head_key = heads;
    if (s.n_kv == 0)
        s.n_kv = s.n_head;
    if (c->status == CTW_OK && s.n_head % s.n_kv != 0)
        c->status = ctw_json_fail(c->text, &c->err, CTW_EFORMAT,
                                  "%s %" PRId64 " is not a multiple of %s %" PRId64, heads,
                                  s.n_head, kv_heads, s.n_kv);
    return s;
}

struct ctw_sizes ctw_key_sizes(struct ctw_config *c, const struct ctw_sizes *absent)
{
    return ctw_key_sizes_as(c, absent, &(struct ctw_size_keys){0});
}

/* The size of a head that a key gives, or that is the quotient (name NULL). */
static int64_t check_head(struct ctw_config *c, const char *name, int64_t head)
{
    if (c->status == CTW_OK && (head % 2 != 0 || head > CTW_MAX_HEAD))
        c->status = ctw_json_fail(
            c->text, &c->err, CTW_EUNSUP, "%s: found %" PRId64 ", expected an even number, 2 to %d",
            name != NULL ? name : "head_dim (hidden_size / num_attention_heads)", head,
            CTW_MAX_HEAD);
    return head;
}

int64_t ctw_head_of(struct ctw_config *c, const struct ctw_sizes *s)
{
    if (c->status == CTW_OK && s->hidden % s->n_head != 0)
        c->status = ctw_json_fail(c->text, &c->err, CTW_EFORMAT,
                                  "%s %" PRId64 " is not a multiple of %s %" PRId64
                                  ", and there is no head_dim",
                                  or_default(s->hidden_key, "hidden_size"), s->hidden,
                                  or_default(s->n_head_key, "num_attention_heads"), s->n_head);
    return check_head(c, NULL, s->hidden / s->n_head);
}

int64_t ctw_key_head_dim(struct ctw_config *c, const struct ctw_sizes *s, int64_t absent,
                         int64_t null)
{
    int64_t head = ctw_key_int(c, "head_dim", absent, null, 1, 1 << 18);
    return head == 0 ? ctw_head_of(c, s) : check_head(c, "head_dim", head);
}

int64_t ctw_key_same_head(struct ctw_config *c, const struct ctw_sizes *s)
{
    int64_t head = ctw_head_of(c, s);
    if (ctw_key_int(c, "head_dim", head, head, 1, 1 << 18) != head)
        ctw_key_fail(c, "head_dim", CTW_EUNSUP,
                     "expected hidden_size / num_attention_heads = %" PRId64, head);
    return head;
}
