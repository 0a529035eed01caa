/*
 * The head of two passes of the same sequences through two models on one device: both models'
 * logits of a block of rows, then the divergence of one from the other. Only a block's logits exist
 * at a time. The final hidden states of a model come from the residual stream of its pass, or from
 * the caller, who kept them.
 */
#ifndef CTW_WORKER_COMPARE_H
#define CTW_WORKER_COMPARE_H

#include "worker/engine/pass/pass.h"

struct ctw_compare;

/* Allocates device memory for passes of up to n_rows targets. in_parts: a head comes in parts.
 * `limit` bounds all memory beyond the weights, in bytes; a block's logits take at most a quarter
 * of the limit. */
struct ctw_compare_size {
    int64_t block; /* rows of a block */
    int64_t n_rows;
    int64_t ld[2];
    size_t bytes;
};
struct ctw_compare_size ctw_compare_size(const struct ctw_backend *be,
                                         const struct ctw_model *model,
                                         const struct ctw_model *reference, bool in_parts,
                                         int64_t n_rows, uint64_t limit);

enum ctw_status ctw_compare_open(struct ctw_compare **out, struct ctw_backend *be,
                                 const struct ctw_compare_size *size,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_compare_close(struct ctw_compare *c); /* NULL is fine */

/*
 * The last step of both passes, which are at their heads. Writes their sequences' results, as
 * ctw_pass_step() would, and the `divergence` of the model's sequences; bad_layer of these is then
 * of either model. *in_reference: a failure is the reference's.
 */
enum ctw_status ctw_compare_heads(struct ctw_compare *c, struct ctw_pass *model,
                                  struct ctw_pass *reference, bool *in_reference,
                                  struct ctw_err *err) CTW_MUST_CHECK;

#endif
