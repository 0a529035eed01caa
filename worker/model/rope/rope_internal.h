/* Between rope.c, rope_types.c and rope_keys.c. */
#ifndef CTW_WORKER_ROPE_INTERNAL_H
#define CTW_WORKER_ROPE_INTERNAL_H

#include "worker/model/rope/rope.h"

/* Where a RoPE's parameters are. */
struct ctw_rope_place {
    const struct ctw_json_node *root;
    const struct ctw_json_node *object; /* NULL: only at the top level */
    bool own; /* the object is this RoPE's own, and root's keys are only defaults for it */
    int64_t max_length;
    bool lists; /* the rules' */
    int64_t layer;
};

static inline const char *ctw_rope_theta_key(const struct ctw_rope_rules *rules)
{
    return rules->theta_key != NULL ? rules->theta_key : "rope_theta";
}

static inline const char *ctw_rope_partial_key(const struct ctw_rope_rules *rules)
{
    return rules->partial_key != NULL ? rules->partial_key : "partial_rotary_factor";
}

/* Has the object rope_scaling or rope_parameters an object per layer type? */
bool ctw_rope_is_by_layer_type(const struct ctw_json_node *object, const char *layer_type);

/* Reads a number that may be in the RoPE object or at the top level (transformers 4), there as
 * top_key. If it is in both, the two must be equal. */
enum ctw_status ctw_rope_read_either(double *out, const struct ctw_rope_place *at, const char *key,
                                     const char *top_key, struct ctw_err *err) CTW_MUST_CHECK;

/* CTW_EFORMAT unless value > above. */
enum ctw_status ctw_rope_positive(const struct ctw_json_node *node, const char *key, double value,
                                  double above, struct ctw_err *err) CTW_MUST_CHECK;

/* Reads the parameters of p->type, which is not default, once the others are read. */
enum ctw_status ctw_rope_read_type(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/* Warns of ambiguous YaRN parameters, which we read as transformers does. */
enum ctw_status ctw_rope_warn_yarn(const struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
