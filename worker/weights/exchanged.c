/* The layers of one provider, with one matrix from another. */
#include "base/mem.h"
#include "worker/weights/provider_ops.h"

struct exchanged {
    struct ctw_provider base;
    struct ctw_provider *most, *other;
    int layer;           /* -1: no layer has an exchanged matrix */
    int role, n_experts; /* arguments of ctw_provider_exchange() */
    bool is_head;
    int n_held;                     /* parts of `layer` that stay until its release */
    struct ctw_weight_data *expert; /* memory that data.expert points to */
    bool failed_in_other;           /* the last acquire failed, in `other` */
    const struct ctw_layer_data *of_most, *of_other; /* of `layer` while it is acquired */
    struct ctw_layer_data data;                      /* of_most with the matrix of of_other */
};

static void exchange_experts(struct exchanged *p, const struct ctw_weight_data *most,
                             const struct ctw_weight_data *other)
{
    for (int i = 0; i < p->n_experts * CTW_N_EXPERT_MATRICES; i++)
        p->expert[i] = i % CTW_N_EXPERT_MATRICES == p->role - CTW_N_MATRICES ? other[i] : most[i];
    p->data.expert = p->expert;
}

/* Sets p->data to the layer of `most` with the matrix of `other`. */
static void exchange(struct exchanged *p)
{
    p->data = *p->of_most;
    if (p->role >= CTW_N_MATRICES) {
        exchange_experts(p, p->of_most->expert, p->of_other->expert);
        return;
    }
    p->data.matrix[p->role] = p->of_other->matrix[p->role];
    if (p->is_head) {
        p->data.row0 = p->of_other->row0;
        p->data.n_rows = p->of_other->n_rows;
    }
}

static enum ctw_status exchanged_acquire(struct ctw_provider *base, int layer,
                                         const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct exchanged *p = (struct exchanged *)base;
    p->failed_in_other = false;
    enum ctw_status st = ctw_provider_acquire(p->most, layer, out, err);
    if (st != CTW_OK || layer != p->layer)
        return st;
    p->of_most = *out;
    st = ctw_provider_acquire(p->other, layer, &p->of_other, err);
    if (st != CTW_OK) {
        p->failed_in_other = true;
        ctw_provider_release(p->most, layer);
        return st;
    }
    exchange(p);
    *out = &p->data;
    return CTW_OK;
}

/* Is this the head, with the head's matrix exchanged? Then only parts of `other` are acquired,
 * because nothing reads the head of `most`. */
static bool has_other_head(const struct exchanged *p, int layer)
{
    return layer == p->layer && p->is_head;
}

/* Do the parts of this layer stay until its release? They do in a decoder layer with an exchanged
 * matrix: if the inputs of the reference's product are unequal, the product is not prepared, and it
 * reads the matrices of both models until the layer ends. */
static bool stays_to_the_end(const struct exchanged *p, int layer)
{
    return layer == p->layer && layer > 0 && !p->is_head;
}

static int exchanged_parts(struct ctw_provider *base, int layer)
{
    struct exchanged *p = (struct exchanged *)base;
    return ctw_provider_parts(has_other_head(p, layer) ? p->other : p->most, layer);
}

static enum ctw_status exchanged_acquire_part(struct ctw_provider *base, int layer, int part,
                                              struct ctw_err *err)
{
    struct exchanged *p = (struct exchanged *)base;
    bool head = has_other_head(p, layer);
    enum ctw_status st = head ? CTW_OK : ctw_provider_acquire_part(p->most, layer, part, err);
    if (st != CTW_OK || layer != p->layer)
        return st;
    st = ctw_provider_acquire_part(p->other, layer, part, err);
    if (st != CTW_OK) {
        p->failed_in_other = true;
        if (!head)
            ctw_provider_release_part(p->most, layer, part);
        return st;
    }
    p->n_held = stays_to_the_end(p, layer) ? part + 1 : 0;
    exchange(p);
    return CTW_OK;
}

static void release_part(struct exchanged *p, int layer, int part)
{
    if (!has_other_head(p, layer))
        ctw_provider_release_part(p->most, layer, part);
    if (layer == p->layer)
        ctw_provider_release_part(p->other, layer, part);
}

static void exchanged_release_part(struct ctw_provider *base, int layer, int part)
{
    struct exchanged *p = (struct exchanged *)base;
    if (!stays_to_the_end(p, layer))
        release_part(p, layer, part);
}

static void exchanged_release(struct ctw_provider *base, int layer)
{
    struct exchanged *p = (struct exchanged *)base;
    for (int part = 0; stays_to_the_end(p, layer) && part < p->n_held; part++)
        release_part(p, layer, part);
    p->n_held = 0;
    ctw_provider_release(p->most, layer);
    if (layer == p->layer)
        ctw_provider_release(p->other, layer);
}

static void exchanged_repeat(struct ctw_provider *base, int64_t n)
{
    struct exchanged *p = (struct exchanged *)base;
    ctw_provider_repeat(p->most, n);
    ctw_provider_repeat(p->other, n);
}

static bool exchanged_needs_files(struct ctw_provider *base)
{
    struct exchanged *p = (struct exchanged *)base;
    return ctw_provider_needs_files(p->most) || ctw_provider_needs_files(p->other);
}

static void exchanged_close(struct ctw_provider *base)
{
    ctw_free(((struct exchanged *)base)->expert);
    ctw_free(base);
}

enum ctw_status ctw_provider_open_exchanged(struct ctw_provider **out, struct ctw_provider *most,
                                            struct ctw_provider *other, int n_experts,
                                            struct ctw_err *err)
{
    static const struct ctw_provider_ops ops = {
        exchanged_acquire, exchanged_release,      exchanged_needs_files,  exchanged_close,
        exchanged_parts,   exchanged_acquire_part, exchanged_release_part, exchanged_repeat};
    struct exchanged *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    *p = (struct exchanged){.base.ops = &ops, .most = most, .other = other, .layer = -1};
    p->expert = ctw_calloc((size_t)n_experts * CTW_N_EXPERT_MATRICES + 1, sizeof(*p->expert));
    if (p->expert == NULL) {
        ctw_free(p);
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    }
    *out = &p->base;
    return CTW_OK;
}

void ctw_provider_exchange(struct ctw_provider *base, int layer, int role, bool is_head,
                           int n_experts)
{
    struct exchanged *p = (struct exchanged *)base;
    p->layer = layer;
    p->role = role;
    p->is_head = is_head;
    p->n_experts = n_experts;
}

bool ctw_provider_failed_in_other(const struct ctw_provider *base)
{
    return ((const struct exchanged *)base)->failed_in_other;
}
