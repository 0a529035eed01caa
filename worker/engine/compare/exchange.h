/*
 * What each quantised matrix does alone: the reference, with one matrix at a time from the model,
 * is compared with the reference itself. All before the matrix's layer is the reference's own, so a
 * run starts at that layer, from the residual stream that the reference has there: on average, a
 * matrix costs half a pass and both heads.
 *
 * It follows a compared pass (worker/engine/compare/compare.h), and takes both of its passes over:
 * the reference's runs the exchanged models, one after another, and the model's holds the
 * reference's final hidden states.
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
/* Gives the engines back what is theirs. NULL is fine. */
void ctw_exchange_close(struct ctw_exchange *x);

/* Both passes are through their heads. Until the last step, they are this object's. */
enum ctw_status ctw_exchange_begin(struct ctw_exchange *x, struct ctw_pass *model,
                                   struct ctw_pass *reference, struct ctw_err *err) CTW_MUST_CHECK;
/* Has it begun, and not done its last step? */
bool ctw_exchange_is_running(const struct ctw_exchange *x);
/* One layer of one run. After a run's last layer, writes an element of `matrices` of the model's
 * sequences; if the run's numbers were not finite, bad_layer too. *done: it was the last run.
 * *in_reference: a failure is not the model's. */
enum ctw_status ctw_exchange_step(struct ctw_exchange *x, struct ctw_compare *c, bool *done,
                                  bool *in_reference, struct ctw_err *err) CTW_MUST_CHECK;
/* How much of a pass's whole work, both models' own layers included, is done after those. */
double ctw_exchange_done(const struct ctw_exchange *x);

#endif
