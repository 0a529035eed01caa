/* Which keys of config.json the RoPEs read. */
#include <string.h>

#include "worker/model/rope/rope_internal.h"

enum {
    USED_DEFAULT = 1 << CTW_ROPE_DEFAULT,
    USED_LINEAR = 1 << CTW_ROPE_LINEAR,
    USED_DYNAMIC = 1 << CTW_ROPE_DYNAMIC,
    USED_LLAMA3 = 1 << CTW_ROPE_LLAMA3,
    USED_YARN = 1 << CTW_ROPE_YARN,
    USED_LONGROPE = 1 << CTW_ROPE_LONGROPE,
    USED_ALL = (1 << CTW_ROPE_N_TYPES) - 1,
    USED_SCALED = USED_ALL - USED_DEFAULT,
    USED_PARTIAL = 1 << CTW_ROPE_N_TYPES, /* families that rotate a part of each head */
    USED_ALPHA = USED_PARTIAL << 1,       /* families whose type dynamic has alpha */
    USED_MSCALES = USED_ALPHA << 1,       /* families whose type longrope has mscales */
    USED_FACTOR = USED_MSCALES << 1       /* longrope, if it has none */
};

/* Which types read a member in transformers' functions; other types ignore it, and so do we. */
static const struct {
    const char *name;
    unsigned used;
} members[] = {
    {"rope_type", USED_ALL},
    {"type", USED_ALL},
    {"rope_theta", USED_ALL},
    {"partial_rotary_factor", USED_SCALED | USED_PARTIAL}, /* scaled: must be 1 */
    {"factor", USED_SCALED},
    {"low_freq_factor", USED_LLAMA3},
    {"high_freq_factor", USED_LLAMA3},
    {"original_max_position_embeddings", USED_LLAMA3 | USED_YARN | USED_LONGROPE},
    {"attention_factor", USED_YARN | USED_FACTOR},
    {"beta_fast", USED_YARN},
    {"beta_slow", USED_YARN},
    {"mscale", USED_YARN},
    {"mscale_all_dim", USED_YARN},
    {"truncate", USED_YARN},
    {"short_factor", USED_LONGROPE},
    {"long_factor", USED_LONGROPE},
    {"alpha", USED_ALPHA},
    {"short_mscale", USED_MSCALES},
    {"long_mscale", USED_MSCALES},
};

static bool is_used(const char *key, unsigned used)
{
    for (size_t i = 0; i < CTW_COUNT(members); i++)
        if (strcmp(members[i].name, key) == 0)
            return (members[i].used & used) != 0;
    return false;
}

static bool reads(const struct ctw_rope_params *p, const char *key)
{
    unsigned partial = p->rules.partial_key != NULL ? USED_PARTIAL : 0;
    unsigned alpha = p->rules.alpha && p->type == CTW_ROPE_DYNAMIC ? USED_ALPHA : 0;
    unsigned factors = p->type != CTW_ROPE_LONGROPE ? 0
                       : p->rules.mscales           ? USED_MSCALES
                                                    : USED_FACTOR;
    if (p->rules.own_theta != 0 && strcmp(key, "rope_theta") == 0)
        return false;
    return is_used(key, 1u << p->type | partial | alpha | factors);
}

static bool is_own(const struct ctw_rope_readers *r, const char *key)
{
    for (int i = 0; r->keys != NULL && r->keys[i] != NULL; i++)
        if (strcmp(r->keys[i], key) == 0)
            return true;
    return false;
}

static bool reads_at_top(const struct ctw_rope_params *p, const char *key)
{
    static const char original[] = "original_max_position_embeddings";
    if (strcmp(key, "rope_scaling") == 0 || strcmp(key, "rope_parameters") == 0)
        return true;
    if (strcmp(key, ctw_rope_theta_key(&p->rules)) == 0)
        return p->rules.own_theta == 0;
    if (strcmp(key, ctw_rope_partial_key(&p->rules)) == 0)
        return reads(p, "partial_rotary_factor");
    return strcmp(key, original) == 0 && reads(p, original);
}

bool ctw_rope_reads(const struct ctw_rope_readers *r, const char *key)
{
    for (int i = 0; i < r->n; i++)
        if (reads_at_top(&r->rope[i], key))
            return true;
    return is_own(r, key);
}

/* Where a member of rope_scaling or rope_parameters is. */
struct member_place {
    bool by_layer_type;     /* the object has an object per layer type */
    const char *layer_type; /* the member is in this one; NULL: in none */
};

/* Does one of the RoPEs read the member `key`; NULL: any member there? */
static bool any_reads(const struct ctw_rope_readers *r, struct member_place at, const char *key)
{
    for (int i = 0; i < r->n; i++) {
        const struct ctw_rope_rules *rules = &r->rope[i].rules;
        bool here = rules->layer_type == NULL || !at.by_layer_type
                        ? at.layer_type == NULL && !rules->unscaled
                        : at.layer_type != NULL && strcmp(at.layer_type, rules->layer_type) == 0;
        if (here && (key == NULL || reads(&r->rope[i], key)))
            return true;
    }
    return key != NULL && at.layer_type == NULL && is_own(r, key);
}

static enum ctw_status list_unread(const struct ctw_rope_readers *r,
                                   const struct ctw_json_node *object, struct ctw_unread *unread,
                                   struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    struct member_place flat = {0};
    for (int i = 0; i < r->n; i++) {
        const char *layer_type = r->rope[i].rules.layer_type;
        flat.by_layer_type |= layer_type != NULL && ctw_rope_is_by_layer_type(object, layer_type);
    }
    for (const struct ctw_json_node *m = ctw_json_first(object); m != NULL && st == CTW_OK;
         m = ctw_json_next(m)) {
        struct member_place own = {flat.by_layer_type, ctw_json_key(m)};
        const struct ctw_json_node *inner = NULL;
        if (any_reads(r, own, NULL))
            inner = ctw_json_first(m);
        else if (!any_reads(r, flat, ctw_json_key(m)))
            st = ctw_unread_add(unread, m, err);
        for (; inner != NULL && st == CTW_OK; inner = ctw_json_next(inner))
            if (!any_reads(r, own, ctw_json_key(inner)))
                st = ctw_unread_add(unread, inner, err);
    }
    return st;
}

enum ctw_status ctw_rope_list_unread(const struct ctw_rope_readers *r,
                                     const struct ctw_json_node *root, struct ctw_unread *unread,
                                     struct ctw_err *err)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    enum ctw_status st = CTW_OK;
    for (size_t i = 0; i < CTW_COUNT(objects) && r->n > 0; i++) {
        const struct ctw_json_node *object = ctw_json_get(root, objects[i]);
        if (st == CTW_OK && object != NULL)
            st = list_unread(r, object, unread, err);
    }
    return st;
}
