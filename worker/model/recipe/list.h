/*
 * The kinds of a decoder layer's branches. A new kind is recipe/NAME.h and .c, one file in
 * worker/engine/mixers or mlps, one line here and one #include in all.h. X(name): the kind is
 * CTW_KIND_name, its member of struct ctw_branch `struct ctw_name name`, its facts
 * `ctw_kind_name`, its operations `ctw_ops_name` (worker/engine/pass/kinds.h).
 */
#ifndef CTW_WORKER_RECIPE_LIST_H
#define CTW_WORKER_RECIPE_LIST_H

#define CTW_KINDS(X)                                                                               \
    X(attention)                                                                                   \
    X(latent)                                                                                      \
    X(pooled)                                                                                      \
    X(dense)                                                                                       \
    X(mixture)                                                                                     \
    X(own_input)                                                                                   \
    X(ngram)                                                                                       \
    X(short_conv)                                                                                  \
    X(state_space)                                                                                 \
    X(delta_rule)                                                                                  \
    X(lightning)                                                                                   \
    X(recurrence)                                                                                  \
    X(projection)

#define CTW_KIND_VALUE(name) CTW_KIND_##name,
/* CTW_KIND_none: the layer has no such branch. */
enum ctw_kind { CTW_KIND_none, CTW_KINDS(CTW_KIND_VALUE) CTW_KIND_ends, CTW_N_KINDS };
#undef CTW_KIND_VALUE

/*
 * The kinds of the residual stream. A new kind is one file in worker/engine/residual, its facts in
 * recipe/residual.h, and one line here. X(name): the kind is CTW_RESIDUAL_name, its operations
 * `ctw_residual_name` (worker/engine/pass/residuals.h). The first is that of most models.
 */
#define CTW_RESIDUALS(X)                                                                           \
    X(one_stream)                                                                                  \
    X(beside_embedding)                                                                            \
    X(shortcut)                                                                                    \
    X(block_sums)                                                                                  \
    X(streams)                                                                                     \
    X(gated_streams)                                                                               \
    X(alternating)

#define CTW_RESIDUAL_VALUE(name) CTW_RESIDUAL_##name,
enum ctw_residual_kind { CTW_RESIDUALS(CTW_RESIDUAL_VALUE) CTW_N_RESIDUALS };
#undef CTW_RESIDUAL_VALUE

#endif
