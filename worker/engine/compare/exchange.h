/*
 * Measures the effect of each quantised matrix alone. The reference with one matrix from the model
 * is compared with the reference itself. Layers before the matrix's layer are the reference's own,
 * so a run starts at that layer from the reference's residual stream. On average, a matrix costs
 * half a pass and both heads.
 *
 * An exchange follows a compared pass (worker/engine/compare/compare.h) and takes over both of its
 * passes. The reference's pass runs the exchanged models one after another. The model's pass holds
 * the reference's final hidden states.
 */
#ifndef CTW_WORKER_EXCHANGE_H
#define CTW_WORKER_EXCHANGE_H

#include "worker/engine/compare/compare.h"
#include "worker/engine/engine.h"

struct ctw_exchange;

/* Bytes of device memory for passes of up to n_tok tokens. */
size_t ctw_exchange_bytes(const struct ctw_model *model, int64_t n_tok);

/* Both engines have their buffers, and outlive it. */
enum ctw_status ctw_exchange_open(struct ctw_exchange **out, struct ctw_engine *e,
                                  struct ctw_engine *reference, int64_t n_tok,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Restores the engines' own state. NULL is fine. */
void ctw_exchange_close(struct ctw_exchange *x);

/* Call this after both passes have run their heads. The object owns both passes until the last
 * step. */
enum ctw_status ctw_exchange_begin(struct ctw_exchange *x, struct ctw_pass *model,
                                   struct ctw_pass *reference, struct ctw_err *err) CTW_MUST_CHECK;
/* Has it begun, and not done its last step? */
bool ctw_exchange_is_running(const struct ctw_exchange *x);
/* Runs one layer of one run. After a run's last layer, writes an element of `matrices` to the
 * model's sequences and, if the run's numbers were not finite, bad_layer. *done: this was the last
 * run. *in_reference: a failure is the reference's. */
enum ctw_status ctw_exchange_step(struct ctw_exchange *x, struct ctw_compare *c, bool *done,
                                  bool *in_reference, struct ctw_err *err) CTW_MUST_CHECK;
/* The part of a pass's whole work, both models' own layers included, that is done so far. */
double ctw_exchange_done(const struct ctw_exchange *x);

#endif
