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
           a->theta_at_top == b->theta_at_top && a->own_theta == b->own_theta &&
           a->backwards == b->backwards && a->unscaled == b->unscaled && a->partial == b->partial &&
           a->rotated == b->rotated && a->old_longrope == b->old_longrope &&
           a->original_length == b->original_length && a->mrope == b->mrope &&
           a->alpha == b->alpha && a->mscales == b->mscales &&
           a->unscaled_yarn == b->unscaled_yarn && a->lists == b->lists && a->layer == b->layer &&
           same_string(a->theta_key, b->theta_key) && same_string(a->layer_type, b->layer_type) &&
           same_string(a->partial_key, b->partial_key) && same_string(a->absent, b->absent) &&
           same_string(a->yarn, b->yarn);
}

static void release(struct ctw_rope *r)
{
    ctw_free(r->inv_freq);
    ctw_free(r->long_inv_freq);
}

/* Computes a RoPE from its parameters. */
static enum ctw_status make(struct ctw_rope *r, const struct ctw_rope_params *p,
                            struct ctw_err *err)
{
    size_t n = (size_t)p->rot_dim / 2;
    bool two = p->type == CTW_ROPE_LONGROPE;
    *r = (struct ctw_rope){.pairing = p->rules.pairing,
                           .rot_dim = p->rot_dim,
                           .scale = (float)p->attention_factor,
                           .long_scale = (float)p->long_attention_factor};
    r->inv_freq = ctw_calloc(n, sizeof(float));
    r->long_inv_freq = two ? ctw_calloc(n, sizeof(float)) : NULL;
    if (r->inv_freq == NULL || (two && r->long_inv_freq == NULL)) {
        release(r);
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the model's description");
    }
    ctw_rope_frequencies(p, p->rot_dim, r->inv_freq);
    if (two) {
        ctw_rope_long_frequencies(p, p->rot_dim, r->long_inv_freq);
        r->long_from = (int64_t)p->original_length;
    }
    for (size_t i = 0; p->rules.backwards && i < n; i++) {
        r->inv_freq[i] = -r->inv_freq[i];
        if (two)
            r->long_inv_freq[i] = -r->long_inv_freq[i];
    }
    return CTW_OK;
}

static bool equal(const struct ctw_rope *a, const struct ctw_rope *b)
{
    size_t bytes = sizeof(float) * (size_t)a->rot_dim / 2;
    return a->pairing == b->pairing && a->rot_dim == b->rot_dim && a->scale == b->scale &&
           memcmp(a->inv_freq, b->inv_freq, bytes) == 0 && a->long_from == b->long_from &&
           (a->long_inv_freq == NULL || a->long_scale == b->long_scale) &&
           (a->long_inv_freq == NULL) == (b->long_inv_freq == NULL) &&
           (a->long_inv_freq == NULL || memcmp(a->long_inv_freq, b->long_inv_freq, bytes) == 0);
}

/* A token has one row in all tables (ctw_plan_long_from()). */
static enum ctw_status check_long(const struct ctw_model *m, const struct ctw_rope *r,
                                  const struct ctw_config *c, struct ctw_err *err)
{
    for (int i = 0; r->long_inv_freq != NULL && i < m->n_ropes; i++)
        if (m->rope[i].long_inv_freq != NULL && m->rope[i].long_from != r->long_from)
            return ctw_json_fail(c->text, err, CTW_EUNSUP,
                                 "two RoPEs of type longrope with original_max_position_embeddings "
                                 "%" PRId64 " and %" PRId64 " in one model are not supported",
                                 m->rope[i].long_from, r->long_from);
    return CTW_OK;
}

/* The index of the model's RoPE that equals *r, which is freed, or of *r, which is added. */
static int add(struct ctw_model *m, struct ctw_rope *r)
{
    for (int i = 0; i < m->n_ropes; i++)
        if (equal(&m->rope[i], r)) {
            release(r);
            return i;
        }
    m->rope[m->n_ropes] = *r;
    return m->n_ropes++;
}

/* The longest sequence that a RoPE is scaled for. Some files keep the unscaled length in
 * max_position_embeddings (Qwen's advice for YaRN, linear scaling), others the scaled one. */
static int64_t length_of(const struct ctw_rope_params *p, int64_t max_length)
{
    double scaled = p->type == CTW_ROPE_LINEAR ? p->factor * (double)max_length
                    : p->type == CTW_ROPE_YARN ? p->factor * p->original_length
                                               : 0;
    return scaled > (double)max_length && scaled < 1e15 ? (int64_t)scaled : max_length;
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
        c->status = ctw_fail(&c->err, CTW_EUNSUP,
                             "%s: more than %d different RoPEs in one model "
                             "are not supported",
                             c->file, CTW_MAX_ROPES);
        return 0;
    }
    struct ctw_rope_params *p = &c->rope[c->n_ropes];
    c->status = ctw_rope_read(p, c->text, rules, m->max_length, &c->err);
    if (c->status == CTW_OK)
        c->status = make(&rope, p, &c->err);
    if (c->status != CTW_OK)
        return 0;
    c->status = check_long(m, &rope, c, &c->err);
    if (c->status != CTW_OK) {
        release(&rope);
        return 0;
    }
    int64_t length = length_of(p, m->max_length);
    m->own_length = c->n_ropes == 0 || length < m->own_length ? length : m->own_length;
    if (p->type == CTW_ROPE_DYNAMIC) {
        m->length_limit = m->max_length;
        m->limited_by = "RoPE type dynamic";
    }
    return c->rope_index[c->n_ropes++] = add(m, &rope);
}

bool ctw_key_has_rope(const struct ctw_config *c)
{
    return ctw_key_is_given(c, "rope_parameters") || ctw_key_is_given(c, "rope_scaling");
}

double ctw_key_rope_number(struct ctw_config *c, const char *name, double absent)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    const struct ctw_json_node *root = c->text;
    double value = absent;
    if (c->status != CTW_OK)
        return absent;
    if (c->n_rope_keys == CTW_MAX_ROPE_KEYS) {
        c->status = ctw_fail(&c->err, CTW_EINTERNAL,
                             "%s: the family %s reads more than %d of "
                             "RoPE's keys by name",
                             c->file, c->family->model_type, c->n_rope_keys);
        return absent;
    }
    c->rope_keys[c->n_rope_keys++] = name;
    c->status = ctw_json_read_double(root, name, CTW_JSON_OPTIONAL, &value, &c->err);
    for (size_t i = 0; i < CTW_COUNT(objects) && c->status == CTW_OK; i++)
        if (ctw_json_has(root, objects[i]))
            c->status = ctw_json_read_double(ctw_json_get(root, objects[i]), name,
                                             CTW_JSON_OPTIONAL, &value, &c->err);
    return value;
}
