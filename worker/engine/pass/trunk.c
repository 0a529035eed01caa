/* The memory of a trunk: its size, and the copies between it and the carry. See carry.h. */
#include "worker/engine/pass/step.h"

/* Sees to it that the array of a carry for the pass has one block, its first layer's. */
struct owners {
    bool has[CTW_N_CARRIES];
};

static bool is_of_trunk(const struct ctw_carry_rule *r, int array, struct owners *owners)
{
    if (r->bytes == 0 || r->alone || r->life == CTW_FOR_CHUNK)
        return false;
    bool first = r->life != CTW_FOR_PASS || !owners->has[array];
    owners->has[array] |= r->life == CTW_FOR_PASS;
    return first;
}

static size_t place_of(int layer, int branch, int carry)
{
    return (size_t)(((layer - 1) * CTW_MAX_BRANCHES + branch) * CTW_BRANCH_CARRIES + carry);
}

size_t ctw_trunk_n_places(const struct ctw_model *m)
{
    return (size_t)(m->n_decoders * CTW_MAX_BRANCHES * CTW_BRANCH_CARRIES);
}

struct ctw_trunk_size ctw_trunk_size(const struct ctw_model *m, enum ctw_dtype dtype,
                                     int64_t longest, int64_t n_tok, size_t *places)
{
    struct ctw_trunk_size size = {0};
    struct owners owners = {{0}};
    for (int l = 1; l <= m->n_decoders; l++)
        for (int b = 0; b < m->layers[l].n_branches; b++) {
            const struct ctw_branch *branch = &m->layers[l].branch[b];
            struct ctw_carry_rule rules[CTW_BRANCH_CARRIES];
            ctw_branch_carry(m, branch, longest, dtype, rules);
            for (int i = 0; i < CTW_BRANCH_CARRIES; i++) {
                const struct ctw_carry_rule *r = &rules[i];
                bool has = is_of_trunk(r, ctw_carry_array(r, b, i), &owners);
                if (places != NULL)
                    places[place_of(l, b, i)] =
                        has ? (size_t)n_tok * size.row + size.state : CTW_NO_PLACE;
                if (has && r->life == CTW_STATE)
                    size.state += r->bytes;
                else if (has)
                    size.row += r->bytes;
            }
        }
    return size;
}

/* A carry of the step's branch: its array, and its block of the trunk. */
struct carried {
    const struct ctw_carry_rule *rule;
    char *array, *block; /* block NULL: no trunk has it */
};

static struct carried carried_of(const struct ctw_step *s, const struct ctw_carry_rule *r, int i)
{
    const struct ctw_forward *f = s->f;
    const int layer = (int)(s->layer - f->model->layers);
    size_t place = f->trunk_places[place_of(layer, s->index, i)];
    return (struct carried){r, f->carry[ctw_carry_array(r, s->index, i)],
                            place == CTW_NO_PLACE ? NULL : (char *)f->trunk + place};
}

static enum ctw_status read_one(const struct ctw_step *s, const struct carried *c,
                                struct ctw_err *err)
{
    const struct ctw_plan *plan = &s->f->plan;
    const size_t bytes = c->rule->bytes;
    const int64_t at[CTW_N_LIVES] = {[CTW_FOR_LAYER] = plan->carry_rows,
                                     [CTW_FOR_PASS] = plan->pass_tokens,
                                     [CTW_STATE] = plan->states};
    int64_t n = c->rule->life == CTW_STATE ? 1 : s->chunk->of_trunk;
    return ctw_device_copy(s->f->be, c->array + (size_t)at[c->rule->life] * bytes, c->block,
                           (size_t)n * bytes, err);
}

static enum ctw_status leave_one(const struct ctw_step *s, const struct carried *c,
                                 struct ctw_err *err)
{
    const struct ctw_chunk *chunk = s->chunk;
    const size_t bytes = c->rule->bytes;
    const int64_t row0 = c->rule->life == CTW_FOR_LAYER ? chunk->row0 : chunk->tok0;
    enum ctw_status st = CTW_OK;
    if (c->rule->life == CTW_STATE)
        return ctw_chunk_ends_trunk(chunk)
                   ? ctw_device_copy(s->f->be, c->block,
                                     c->array + (size_t)(s->f->plan.states + 1) * bytes, bytes, err)
                   : CTW_OK;
    for (int i = 0; st == CTW_OK && i < chunk->n_leaves; i++) {
        const struct ctw_path_span part = ctw_span_in_chunk(&chunk->leaves[i], chunk);
        if (part.n_tok > 0)
            st = ctw_device_copy(s->f->be, c->block + (size_t)part.pos0 * bytes,
                                 c->array + (size_t)(row0 + part.tok0 - chunk->tok0) * bytes,
                                 (size_t)part.n_tok * bytes, err);
    }
    return st;
}

static enum ctw_status each(const struct ctw_step *s,
                            enum ctw_status (*one)(const struct ctw_step *s,
                                                   const struct carried *c, struct ctw_err *err),
                            struct ctw_err *err)
{
    const struct ctw_forward *f = s->f;
    struct ctw_carry_rule rules[CTW_BRANCH_CARRIES];
    enum ctw_status st = CTW_OK;
    ctw_branch_carry(f->model, s->branch, f->plan.longest, f->dtype, rules);
    for (int i = 0; st == CTW_OK && i < CTW_BRANCH_CARRIES; i++) {
        const struct carried c = carried_of(s, &rules[i], i);
        if (c.block != NULL)
            st = one(s, &c, err);
    }
    return st;
}

enum ctw_status ctw_trunk_read(const struct ctw_step *s, struct ctw_err *err)
{
    return s->chunk->of_trunk > 0 ? each(s, read_one, err) : CTW_OK;
}

enum ctw_status ctw_trunk_leave(const struct ctw_step *s, struct ctw_err *err)
{
    return s->chunk->n_leaves > 0 ? each(s, leave_one, err) : CTW_OK;
}
