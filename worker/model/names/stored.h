/*
 * Modules whose stored tensors contradict the configuration. AutoRound and ModelOpt write such
 * files: layers in another format, quantised modules on the list of unquantised modules. Used by
 * tensors.c only.
 */
#ifndef CTW_WORKER_STORED_H
#define CTW_WORKER_STORED_H

#include "worker/model/tensors.h"

/* The other quantisation methods, after `last` (NULL: the first), whose names and parts a module of
 * the configuration may have; NULL: no more. */
const struct ctw_part_names *ctw_stored_next(const struct ctw_quant_config *qc,
                                             const struct ctw_part_names *last);

/*
 * Replaces the configuration's *args by the arguments that the matrix's stored parts show, if the
 * two differ (*otherwise), and counts the matrix for a warning. Also counts matrices that are
 * stored unquantised. CTW_EUNSUP: the parts do not show which values share a scale.
 */
enum ctw_status ctw_stored_args(struct ctw_finder *finder, struct ctw_matrix *m,
                                const struct ctw_want *want, struct ctw_quant_args *args,
                                bool *otherwise, struct ctw_err *err) CTW_MUST_CHECK;

#endif
