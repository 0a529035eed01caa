/* A model's RoPEs, for a family's function. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"

static bool same_string(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_rules(const struct ctw_rope_rules *a, const struct ctw_rope_rules *b)
{
    return a->head == b->head && a->pairing == b->pairing && a->theta == b->theta &&
           a->unscaled == b->unscaled && a->partial == b->partial &&
           same_string(a->theta_key, b->theta_key) && same_string(a->layer_type, b->layer_type) &&
           same_string(a->partial_key, b->partial_key);
}

/* Computes a RoPE from its parameters; rot_dim: elements of a head. */
static enum ctw_status make(struct ctw_rope *r, const struct ctw_rope_params *p, int rot_dim,
                            struct ctw_err *err)
{
    *r = (struct ctw_rope){
        .pairing = p->rules.pairing, .rot_dim = rot_dim, .scale = (float)p->attention_factor};
    r->inv_freq = ctw_calloc((size_t)rot_dim / 2, sizeof(float));
    if (r->inv_freq == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the model's description");
    ctw_rope_frequencies(p, rot_dim, r->inv_freq);
    return CTW_OK;
}

static bool equal(const struct ctw_rope *a, const struct ctw_rope *b)
{
    return a->pairing == b->pairing && a->rot_dim == b->rot_dim && a->scale == b->scale &&
           memcmp(a->inv_freq, b->inv_freq, sizeof(float) * (size_t)a->rot_dim / 2) == 0;
}

/* The index of the model's RoPE that equals *r, which is freed, or of *r, which is added. */
static int add(struct ctw_model *m, struct ctw_rope *r)
{
    for (int i = 0; i < m->n_ropes; i++)
        if (equal(&m->rope[i], r)) {
            ctw_free(r->inv_freq);
            return i;
        }
    m->rope[m->n_ropes] = *r;
    return m->n_ropes++;
}

int ctw_describe_rope(struct ctw_config *c, const struct ctw_rope_rules *rules)
{
    struct ctw_model *m = c->model;
    struct ctw_rope rope;
    if (c->status != CTW_OK)
        return 0;
    for (int i = 0; i < c->n_ropes; i++)
        if (same_rules(&c->rope[i].rules, rules))
            return c->rope_index[i];
    if (c->n_ropes == CTW_MAX_ROPES) {
        c->status = ctw_fail(&c->err, CTW_EINTERNAL, "%s: the family %s has more than %d RoPEs",
                             c->file, c->family->model_type, CTW_MAX_ROPES);
        return 0;
    }
    struct ctw_rope_params *p = &c->rope[c->n_ropes];
    c->status = ctw_rope_read(p, ctw_json_root(c->doc), rules, m->max_length, &c->err);
    int rot_dim = (int)((double)rules->head * p->partial_factor);
    if (c->status == CTW_OK && (rot_dim < 2 || rot_dim % 2 != 0))
        c->status = ctw_fail(&c->err, CTW_EUNSUP,
                             "%s: %s: %g of %" PRId64 " elements is not an even number of elements",
                             c->file, rules->partial_key != NULL ? rules->partial_key : "head_dim",
                             p->partial_factor, rules->head);
    if (c->status == CTW_OK)
        c->status = make(&rope, p, rot_dim, &c->err);
    if (c->status != CTW_OK)
        return 0;
    if (p->type == CTW_ROPE_DYNAMIC)
        m->length_limit = m->max_length;
    return c->rope_index[c->n_ropes++] = add(m, &rope);
}
