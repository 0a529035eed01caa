/*
 * Modules whose tensors are stored otherwise than the configuration says. AutoRound and ModelOpt
 * write such files: layers of another format, quantised modules on the list of those that are not.
 * Used by tensors.c only.
 */
#ifndef CTW_WORKER_STORED_H
#define CTW_WORKER_STORED_H

#include "worker/model/tensors.h"

/* The other quantisation methods, after `last` (NULL: the first), whose names and parts a module of
 * the configuration may have; NULL: no more. */
const struct ctw_part_names *ctw_stored_next(const struct ctw_quant_config *qc,
                                             const struct ctw_part_names *last);

/*
 * Replaces *args, the configuration's, by those that the matrix's stored parts show, if the
 * configuration says otherwise (*otherwise), and counts the matrix for a warning. Counts those,
 * too, that are stored unquantised. CTW_EUNSUP: the parts do not show which values share a scale.
 */
enum ctw_status ctw_stored_args(struct ctw_finder *finder, struct ctw_matrix *m,
                                const struct ctw_want *want, struct ctw_quant_args *args,
                                bool *otherwise, struct ctw_err *err) CTW_MUST_CHECK;

#endif
