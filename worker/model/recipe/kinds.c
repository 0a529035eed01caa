#include "worker/model/recipe/kinds.h"

#define DECLARE(name) extern const struct ctw_kind_row ctw_kind_##name;
CTW_KINDS(DECLARE)

#define ROW(name) [CTW_KIND_##name] = &ctw_kind_##name,
static const struct ctw_kind_row nothing = {.name = ""};
static const struct ctw_kind_row ends = {.name = "ends", .not_meant = ~(1u << CTW_M_INPUTS_PROJ)};
static const struct ctw_kind_row *const rows[CTW_N_KINDS] = {[CTW_KIND_none] = &nothing,
                                                             CTW_KINDS(ROW)[CTW_KIND_ends] = &ends};

const struct ctw_kind_row *ctw_kind_at(enum ctw_kind kind)
{
    return rows[kind];
}

const struct ctw_kind_row *ctw_kind_of(const struct ctw_branch *b)
{
    return rows[b->kind];
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct ctw_facts ctw_layer_facts(const struct ctw_layer *l)
{
    struct ctw_facts all = {0};
    for (int i = 0; i < l->n_branches; i++) {
        const struct ctw_kind_row *k = ctw_kind_of(&l->branch[i]);
        struct ctw_facts one = {0};
        if (k->facts != NULL)
            one = k->facts(&l->branch[i]);
        all.n_head = max64(all.n_head, one.n_head);
        all.n_kv = max64(all.n_kv, one.n_kv);
        all.head = max64(all.head, one.head);
        all.inner = max64(all.inner, one.inner);
        all.window = max64(all.window, one.window);
    }
    return all;
}

bool ctw_layer_changes_inputs(const struct ctw_layer *l)
{
    bool changes = true;
    for (int i = 0; i < l->n_branches; i++) {
        const struct ctw_kind_row *k = ctw_kind_of(&l->branch[i]);
        changes = changes && (k->changes_inputs == NULL || k->changes_inputs(&l->branch[i]));
    }
    return changes;
}
