/* Whether two engines can be compared, and how they share the device's memory. */
#include "base/text.h"
#include "worker/engine/compare/exchange.h"
#include "worker/engine/engine_state.h"

/*
 * Vocabularies may differ by padding, rows that some tools append to fill tiles and other tools cut
 * off: up to one in PADDING_PART of the larger vocabulary. Such rows get next to no probability.
 * Clients compare tokenizers.
 */
enum { PADDING_PART = 32 };

/* Chunks in a pass. Both models' buffers are held at the same time. This number keeps buffers
 * small, while reading or decoding a layer's weights costs under 1 % of computing with them. */
enum { PASS_CHUNKS = 3 };

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Streamed weights need longer passes, so that reading a model takes no longer than computing. */
static int64_t most_pass_tokens(const struct ctw_engine *e, const struct ctw_engine *reference)
{
    return max64(PASS_CHUNKS * ctw_backend_traits(e->be)->chunk_tokens,
                 max64(e->placing.hide_tokens, reference->placing.hide_tokens));
}

enum ctw_status ctw_engines_comparable(const struct ctw_engine *e,
                                       const struct ctw_engine *reference, int64_t *pass_tokens,
                                       struct ctw_err *err)
{
    int64_t a = e->model->vocab, b = reference->model->vocab, more = a > b ? a - b : b - a;
    if (e == reference)
        return ctw_fail(err, CTW_EINVAL,
                        "the model and its reference are the same loaded model: load it again "
                        "under another name to compare it with itself");
    if (e->device != reference->device)
        return ctw_fail(err, CTW_EINVAL,
                        "the model and its reference are on different devices: load both on one");
    if (more > (a > b ? a : b) / PADDING_PART)
        return ctw_fail(err, CTW_EINVAL,
                        "the model has %lld tokens and the reference %lld: models with different "
                        "tokenizers cannot be compared",
                        (long long)a, (long long)b);
    if (pass_tokens != NULL)
        *pass_tokens = min64(min64(e->plan.pass_tokens, reference->plan.pass_tokens),
                             most_pass_tokens(e, reference));
    return CTW_OK;
}

/* Were both engines' buffers made for comparing them? */
static bool share_already(const struct ctw_engine *e, const struct ctw_engine *reference)
{
    return e->forward != NULL && reference->forward != NULL && e->share > 0 &&
           e->share == reference->share;
}

static uint64_t stricter_limit(const struct ctw_engine *e, const struct ctw_engine *reference)
{
    return e->memory_limit < reference->memory_limit ? e->memory_limit : reference->memory_limit;
}

/* Divides the memory that the logits leave within the limit. */
static enum ctw_status divide(struct ctw_engine *e, struct ctw_engine *reference,
                              const struct ctw_compare_size *size, struct ctw_err *err)
{
    char need[32], have[32];
    uint64_t limit = stricter_limit(e, reference);
    if (limit / 2 <= size->bytes)
        return ctw_fail(err, CTW_ENOMEM,
                        "the memory limit of %s leaves no room beside logits of %s: raise "
                        "--memory-limit",
                        ctw_format_bytes(have, sizeof(have), (double)limit),
                        ctw_format_bytes(need, sizeof(need), (double)size->bytes));
    e->share = reference->share = (limit - size->bytes) / 2;
    return CTW_OK;
}

enum ctw_status ctw_engines_prepare(struct ctw_engine *e, struct ctw_engine *reference,
                                    const struct ctw_need *need, struct ctw_compare **compare,
                                    int64_t *pass_tokens, struct ctw_err *err)
{
    const int64_t longest = need->longest;
    struct ctw_need each = *need;
    enum ctw_status st = CTW_OK;
    if (!share_already(e, reference)) {
        ctw_engine_trim_here(e);
        ctw_engine_trim_here(reference);
        st = ctw_engine_measure_limit(e, err);
        if (st == CTW_OK)
            st = ctw_engine_measure_limit(reference, err);
    }
    if (st != CTW_OK)
        return st;
    int64_t most = each.total = min64(need->total, most_pass_tokens(e, reference));
    struct ctw_compare_size size =
        ctw_compare_size(e->be, e->model, reference->model,
                         e->placing.repeated > 0 || reference->placing.repeated > 0,
                         most > longest ? most : longest, stricter_limit(e, reference));
    size.bytes += ctw_differences_bytes(e->model, size.n_rows);
    size.bytes += ctw_exchange_bytes(reference->model, size.n_rows);
    if (!share_already(e, reference))
        st = divide(e, reference, &size, err);
    if (st == CTW_OK)
        st = ctw_engine_prepare(e, &each, err);
    if (st == CTW_OK)
        st = ctw_engine_prepare(reference, &each, err);
    if (st == CTW_OK)
        st = ctw_compare_open(compare, e->be, &size, err);
    if (st != CTW_OK) {
        ctw_engine_trim_here(e);
        ctw_engine_trim_here(reference);
        return ctw_fail_prefix(err, "for two models together");
    }
    int64_t pass = min64(e->forward->plan.pass_tokens, reference->forward->plan.pass_tokens);
    *pass_tokens = min64(pass, size.n_rows);
    return CTW_OK;
}
