/* ctworker inspect --json: the checkpoint as one JSON object, for programs. */
#ifndef CTW_WORKER_INSPECT_JSON_H
#define CTW_WORKER_INSPECT_JSON_H

#include "worker/model/model.h"

/* Writes one line to standard output. Keys that `info` of the protocol has too mean the same. */
enum ctw_status ctw_inspect_json(const struct ctw_model *m, struct ctw_err *err) CTW_MUST_CHECK;

#endif
