/* RoPEs of layers with and without a window whose parameters stand apart in rope_parameters. */
#ifndef CTW_WORKER_LAYER_ROPES_H
#define CTW_WORKER_LAYER_ROPES_H

#include "worker/model/families/family.h"

/* The RoPE of layers with a window, or of those that see everything (full). `rules`: of both; the
 * texts: each one's parameters if the config has none. */
static inline int layer_rope(struct ctw_config *c, struct ctw_rope_rules rules, bool full,
                             const char *absent_full, const char *absent_sliding)
{
    rules.layer_type = full ? "full_attention" : "sliding_attention";
    rules.absent = full ? absent_full : absent_sliding;
    return ctw_describe_rope(c, &rules);
}

#endif
