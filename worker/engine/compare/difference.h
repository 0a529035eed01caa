/*
 * How the hidden states of two passes of the same sequences differ after each layer: both residual
 * streams are compared where they are, on the device, as they pass.
 */
#ifndef CTW_WORKER_DIFFERENCE_H
#define CTW_WORKER_DIFFERENCE_H

#include "worker/engine/pass/pass.h"

struct ctw_differences;

/* Device memory for passes of up to n_tok tokens. */
size_t ctw_differences_bytes(const struct ctw_model *model, int64_t n_tok);

enum ctw_status ctw_differences_open(struct ctw_differences **out, struct ctw_backend *be,
                                     const struct ctw_model *model, int64_t n_tok,
                                     struct ctw_err *err) CTW_MUST_CHECK;
void ctw_differences_close(struct ctw_differences *d); /* NULL is fine */

/* Call this after both passes have taken the same step, the embedding or a decoder layer. Writes
 * one element of divergence->layers to each of the model's sequences that wants layers. */
enum ctw_status ctw_differences_take(struct ctw_differences *d, const struct ctw_pass *model,
                                     const struct ctw_pass *reference,
                                     struct ctw_err *err) CTW_MUST_CHECK;

#endif
