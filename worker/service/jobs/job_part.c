/* Checks the items of a client's part, and adds them to a job. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "worker/service/jobs/job.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bin columns are little-endian");

/* ---- items ---- */

/* The columns of a part, which need not be aligned. */
struct columns {
    const struct ctw_items_map *map;
    enum ctw_job_kind kind;
    bool texts; /* column n_tokens; else n_context and n_continuation */
    int64_t n_items, n_tokens;
};

static int32_t int_at(struct ctw_span s, int64_t i)
{
    int32_t v;
    memcpy(&v, s.data + i * (int64_t)sizeof(v), sizeof(v));
    return v;
}

static enum ctw_status check_columns(struct columns *c, struct ctw_err *err)
{
    const struct ctw_items_map *m = c->map;
    if (m->has.n_tokens != c->texts || m->has.n_context == c->texts ||
        m->has.n_continuation == c->texts)
        return ctw_fail(
            err, CTW_EINVAL, "submit.items: kind %s needs exactly the columns tokens, %s",
            ctw_job_kind_name(c->kind), c->texts ? "n_tokens" : "n_context, n_continuation");
    size_t bytes = m->tokens.n + m->n_context.n + m->n_continuation.n + m->n_tokens.n;
    if (bytes > CTW_IPC_PART_BYTES)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: %zu bytes, a part may have %d: send more parts", bytes,
                        CTW_IPC_PART_BYTES);
    if (m->tokens.n % 4 != 0 || m->n_context.n % 4 != 0 || m->n_continuation.n % 4 != 0 ||
        m->n_tokens.n % 4 != 0)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: the bytes of a column are not a multiple of 4 (int32)");
    if (m->n_context.n != m->n_continuation.n)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: n_context has %zu items, n_continuation %zu",
                        m->n_context.n / 4, m->n_continuation.n / 4);
    c->n_items = (int64_t)(c->texts ? m->n_tokens.n : m->n_context.n) / 4;
    c->n_tokens = (int64_t)m->tokens.n / 4;
    return CTW_OK;
}

static enum ctw_status check_lengths(int64_t item, int32_t n_context, int32_t n_targets,
                                     const struct ctw_job_head *head, struct ctw_err *err)
{
    if (n_context < 0 || n_targets < 0)
        return ctw_fail(err, CTW_EINVAL, "item %" PRId64 ": a negative number of tokens", item);
    if (ctw_job_kind_has_texts(head->kind))
        return CTW_OK;
    if (n_context == 0)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64 ": the context is empty: put the prefix token there", item);
    if (n_targets == 0)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64 ": the continuation is empty: there is nothing to score",
                        item);
    if (n_targets > head->max_length)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64
                        ": the continuation has %d tokens, more than max_length %" PRId64,
                        item, n_targets, head->max_length);
    return CTW_OK;
}

static enum ctw_status check_tokens(int64_t item, const int32_t *tokens, int64_t n,
                                    const struct ctw_job_head *head, struct ctw_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= head->vocab)
            return ctw_fail(err, CTW_EINVAL,
                            "item %" PRId64 ": token %" PRId64
                            " is %d, the vocabulary of model %s has 0..%" PRId64,
                            item, i, tokens[i], head->model, head->vocab - 1);
    }
    return CTW_OK;
}

/* An input that can never be scored is refused now, not when its pass is prepared. */
static enum ctw_status check_cut(int64_t item, const struct ctw_item *it, const struct ctw_cut *cut,
                                 const struct ctw_job_head *head, struct ctw_err *err)
{
    const double mib = 1024 * 1024;
    if (cut->n_targets > INT32_MAX)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64 ": its windows have %" PRId64
                        " targets, the maximum is %d: use a larger stride, or split the text",
                        item, cut->n_targets, INT32_MAX);
    int64_t bytes = ctw_item_column_bytes(it, head);
    if (bytes > CTW_IPC_ITEM_BYTES)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64 ": its results have %" PRId64
                        " bytes, a reply has room for %d: ask for fewer columns, use a larger "
                        "stride, or split the text",
                        item, bytes, CTW_IPC_ITEM_BYTES);
    if (cut->longest > head->fit_length)
        return ctw_fail(err, CTW_ENOMEM,
                        "item %" PRId64 ": its input of %" PRId64
                        " tokens does not fit the memory limit of %.1f MiB beyond the weights, "
                        "enough for %" PRId64
                        " tokens: start the worker with a larger --memory-limit or with "
                        "--max-length %" PRId64,
                        item, cut->longest, (double)head->memory_limit / mib, head->fit_length,
                        head->fit_length);
    return CTW_OK;
}

/* Sets p's item i, which is the job's item number `item`, and counts its tokens, windows and
 * targets. */
static enum ctw_status set_item(struct ctw_job_part *p, int64_t i, int64_t item,
                                const int32_t *tokens, int64_t n_tok, int64_t n_targets,
                                const struct ctw_job_head *head, struct ctw_err *err)
{
    struct ctw_item *it = &p->items[i];
    int64_t most = head->max_length + 1;
    int64_t left_out = ctw_job_kind_has_texts(head->kind) || n_tok <= most ? 0 : n_tok - most;
    *it = (struct ctw_item){.tokens = tokens + left_out,
                            .n_tok = (int32_t)(n_tok - left_out),
                            .n_targets = (int32_t)n_targets,
                            .truncated = (int32_t)left_out,
                            .out = p->n_targets,
                            .is_greedy = true};
    const struct ctw_cut cut = ctw_item_cut(it, head);
    it->n_targets = (int32_t)cut.n_targets;
    it->n_sequences = it->sequences_left = (int32_t)cut.n_windows;
    p->n_targets += cut.n_targets;
    p->n_sequences += cut.n_windows;
    p->n_input += cut.n_input;
    if (head->rule.bos_mode != CTW_BOS_NONE)
        p->n_copied += cut.n_input + cut.n_windows;
    return check_cut(item, it, &cut, head, err);
}

static enum ctw_status read_items(struct ctw_job_part *p, const struct columns *c,
                                  const struct ctw_job_head *head, int64_t first_item,
                                  int64_t *bad_item, struct ctw_err *err)
{
    bool rolling = c->kind == CTW_JOB_ROLLING;
    int32_t *to = p->tokens;
    int64_t from = 0; /* of c->n_tokens */
    for (int64_t i = 0; i < c->n_items; i++) {
        int32_t n_context = c->texts ? 0 : int_at(c->map->n_context, i);
        int32_t n_targets =
            c->texts ? int_at(c->map->n_tokens, i) : int_at(c->map->n_continuation, i);
        *bad_item = first_item + i;
        enum ctw_status st = check_lengths(first_item + i, n_context, n_targets, head, err);
        if (st != CTW_OK)
            return st;
        int64_t n = (int64_t)n_context + n_targets;
        if (n > c->n_tokens - from)
            return ctw_fail(err, CTW_EINVAL,
                            "item %" PRId64 ": it has %" PRId64 " tokens, but only %" PRId64
                            " are left in the column tokens",
                            first_item + i, n, c->n_tokens - from);
        int32_t *start = to;
        if (rolling)
            *to++ = head->prefix_token;
        memcpy(to, c->map->tokens.data + from * 4, (size_t)n * 4);
        st = check_tokens(first_item + i, to, n, head, err);
        if (st != CTW_OK)
            return st;
        to += n;
        from += n;
        st = set_item(p, i, first_item + i, start, n + rolling, n_targets, head, err);
        if (st != CTW_OK)
            return st;
    }
    *bad_item = -1;
    if (from != c->n_tokens)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: the items have %" PRId64
                        " tokens, the column tokens %" PRId64,
                        from, c->n_tokens);
    return CTW_OK;
}

enum ctw_status ctw_job_part_create(struct ctw_job_part **out, const struct ctw_items_map *items,
                                    const struct ctw_job_head *head, int64_t first_item,
                                    int64_t *bad_item, struct ctw_err *err)
{
    struct columns c = {
        .map = items, .kind = head->kind, .texts = ctw_job_kind_has_texts(head->kind)};
    *bad_item = -1;
    enum ctw_status st = check_columns(&c, err);
    if (st != CTW_OK)
        return st;
    if (first_item + c.n_items > CTW_IPC_JOB_ITEMS)
        return ctw_fail(err, CTW_EINVAL, "the job has more than %d items: split it",
                        CTW_IPC_JOB_ITEMS);
    struct ctw_job_part *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
    int64_t n_stored = c.n_tokens + (c.kind == CTW_JOB_ROLLING ? c.n_items : 0);
    p->n_items = c.n_items;
    p->tokens = ctw_calloc((size_t)n_stored, sizeof(*p->tokens));
    p->items = ctw_calloc((size_t)c.n_items, sizeof(*p->items));
    if (p->tokens == NULL || p->items == NULL) {
        st = ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
        goto fail;
    }
    st = read_items(p, &c, head, first_item, bad_item, err);
    if (st != CTW_OK)
        goto fail;
    p->bytes =
        sizeof(*p) + (size_t)(n_stored + p->n_copied) * sizeof(*p->tokens) +
        (size_t)p->n_items * (sizeof(*p->items) + sizeof(int32_t)) +
        (size_t)p->n_sequences * (sizeof(struct ctw_sequence) + head->key_bytes +
                                  (size_t)head->n_layers * sizeof(struct ctw_difference_result) +
                                  (size_t)head->n_matrices * sizeof(double)) +
        (size_t)(p->n_targets * ctw_job_target_bytes(head));
    *out = p;
    return CTW_OK;
fail:
    ctw_job_part_destroy(p);
    return st;
}

void ctw_job_part_destroy(struct ctw_job_part *p)
{
    if (p == NULL)
        return;
    ctw_free(p->tokens);
    ctw_free(p->items);
    ctw_free(p);
}
