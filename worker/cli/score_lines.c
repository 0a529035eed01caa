#include "worker/cli/score_lines.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/order.h"

/* Appends the ids of one array to item->tokens. */
static enum ctw_status read_ids(struct ctw_score_item *item, const struct ctw_json_node *root,
                                const char *key, int64_t vocab, struct ctw_err *err)
{
    const struct ctw_json_node *array;
    enum ctw_status st =
        ctw_json_read_node(root, key, CTW_JSON_REQUIRED, CTW_JSON_ARRAY, &array, err);
    if (st != CTW_OK)
        return st;
    size_t n_old = (size_t)item->seq.n_tok, n_new = (size_t)ctw_json_count(array);
    int32_t *tokens = ctw_realloc(item->tokens, n_old + n_new, sizeof(*tokens));
    if (tokens == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for %zu tokens", n_old + n_new);
    item->tokens = tokens;
    for (const struct ctw_json_node *n = ctw_json_first(array); n != NULL; n = ctw_json_next(n)) {
        int64_t id;
        st = ctw_json_as_int(n, 0, vocab - 1, &id, err);
        if (st != CTW_OK)
            return st;
        item->tokens[item->seq.n_tok++] = (int32_t)id;
    }
    return CTW_OK;
}

static enum ctw_status refuse_other_keys(const struct ctw_json_node *root, struct ctw_err *err)
{
    static const char *const known[] = {"id", "tokens", "context", "continuation"};
    for (const struct ctw_json_node *n = ctw_json_first(root); n != NULL; n = ctw_json_next(n)) {
        bool found = false;
        for (size_t i = 0; i < CTW_COUNT(known); i++)
            found = found || strcmp(ctw_json_key(n), known[i]) == 0;
        if (!found)
            return ctw_json_fail(n, err, CTW_EFORMAT,
                                 "unknown key; known keys are id, tokens, context, continuation");
    }
    return CTW_OK;
}

static enum ctw_status read_id(struct ctw_score_item *item, const struct ctw_json_node *root,
                               struct ctw_err *err)
{
    const struct ctw_json_node *id = ctw_json_get(root, "id");
    if (id == NULL)
        return CTW_OK;
    size_t bytes;
    const char *source = ctw_json_source(id, &bytes);
    item->id = ctw_calloc(bytes + 1, 1);
    if (item->id == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    memcpy(item->id, source, bytes);
    return CTW_OK;
}

static enum ctw_status read_tokens(struct ctw_score_item *item, const struct ctw_json_node *root,
                                   int64_t vocab, struct ctw_err *err)
{
    bool whole = ctw_json_get(root, "tokens") != NULL;
    bool pair = ctw_json_get(root, "context") != NULL || ctw_json_get(root, "continuation") != NULL;
    if (whole == pair)
        return ctw_json_fail(root, err, CTW_EFORMAT,
                             "expected either tokens, or context and continuation");
    enum ctw_status st = read_ids(item, root, whole ? "tokens" : "context", vocab, err);
    if (st != CTW_OK)
        return st;
    if (item->seq.n_tok == 0)
        return ctw_json_fail(root, err, CTW_EFORMAT,
                             "%s is empty: the model needs a first token, such as BOS",
                             whole ? "tokens" : "context");
    item->seq.first = whole ? 1 : item->seq.n_tok;
    return whole ? CTW_OK : read_ids(item, root, "continuation", vocab, err);
}

static enum ctw_status make_room(struct ctw_score_item *item, struct ctw_err *err)
{
    size_t n = (size_t)(item->seq.n_tok - item->seq.first);
    item->seq.tokens = item->tokens;
    item->seq.bad_layer = -1;
    item->seq.logprob = ctw_calloc(n, sizeof(*item->seq.logprob));
    item->seq.greedy = ctw_calloc(n, sizeof(*item->seq.greedy));
    if (item->seq.logprob == NULL || item->seq.greedy == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for %zu results", n);
    return CTW_OK;
}

enum ctw_status ctw_score_item_read(struct ctw_score_item *item, int64_t line, const char *text,
                                    size_t bytes, int64_t max_length, int64_t vocab,
                                    struct ctw_err *err)
{
    *item = (struct ctw_score_item){.line = line};
    char what[40];
    snprintf(what, sizeof(what), "line %lld", (long long)line);
    struct ctw_json *doc;
    enum ctw_status st = ctw_json_parse(&doc, what, text, bytes, CTW_SCORE_LINE_BYTES, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_json_node *root = ctw_json_root(doc);
    st = ctw_json_expect(root, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = refuse_other_keys(root, err);
    if (st == CTW_OK)
        st = read_id(item, root, err);
    if (st == CTW_OK)
        st = read_tokens(item, root, vocab, err);
    if (st == CTW_OK && item->seq.n_tok - 1 > max_length)
        st = ctw_json_fail(root, err, CTW_EFORMAT,
                           "%lld tokens are more than the maximum length of %lld plus the last "
                           "target: truncate the tokens or raise --max-length",
                           (long long)item->seq.n_tok, (long long)max_length);
    if (st == CTW_OK)
        st = make_room(item, err);
    ctw_json_close(doc);
    return st;
}

void ctw_score_item_fini(struct ctw_score_item *item)
{
    ctw_free(item->id);
    ctw_free(item->tokens);
    ctw_free(item->seq.logprob);
    ctw_free(item->seq.greedy);
    *item = (struct ctw_score_item){0};
}

/* NaN is reported with the layer that produced it; an infinite score may come without a layer. */
static enum ctw_status check_finite(const struct ctw_score_item *item, int n_decoders,
                                    struct ctw_err *err)
{
    const struct ctw_seq *s = &item->seq;
    if (s->bad_layer >= 0)
        return ctw_fail(
            err, CTW_ENUMERIC,
            s->bad_layer == n_decoders
                ? "line %lld: scores are not finite; the output of every layer is finite, "
                  "so the fault is in the head (%d)"
                : "line %lld: scores are not finite; the first numbers that are not finite "
                  "came from layer %d",
            (long long)item->line, s->bad_layer);
    for (int64_t t = 0; t < s->n_tok - s->first; t++)
        if (!isfinite(s->logprob[t]))
            return ctw_fail(err, CTW_ENUMERIC, "line %lld: the score of token %lld is not finite",
                            (long long)item->line, (long long)(s->first + t));
    return CTW_OK;
}

enum ctw_status ctw_score_item_write(const struct ctw_score_item *item, int n_decoders,
                                     struct ctw_json_writer *w, struct ctw_err *err)
{
    const struct ctw_seq *s = &item->seq;
    enum ctw_status st = check_finite(item, n_decoders, err);
    if (st != CTW_OK)
        return st;
    double sum = 0;
    bool is_greedy = true;
    ctw_json_write_open(w, '{');
    if (item->id != NULL) {
        ctw_json_write_key(w, "id");
        ctw_json_write_source(w, item->id, strlen(item->id));
    }
    ctw_json_write_key(w, "logprobs");
    ctw_json_write_open(w, '[');
    for (int64_t t = 0; t < s->n_tok - s->first; t++) {
        ctw_json_write_float(w, s->logprob[t]);
        sum += (double)s->logprob[t];
        is_greedy = is_greedy && s->greedy[t] == s->tokens[s->first + t];
    }
    ctw_json_write_close(w, ']');
    ctw_json_write_key_double(w, "sum", sum);
    ctw_json_write_key(w, "greedy");
    ctw_json_write_open(w, '[');
    for (int64_t t = 0; t < s->n_tok - s->first; t++)
        ctw_json_write_int(w, s->greedy[t]);
    ctw_json_write_close(w, ']');
    ctw_json_write_key_bool(w, "is_greedy", is_greedy);
    ctw_json_write_close(w, '}');
    ctw_json_write_newline(w);
    return CTW_OK;
}

/* ---- blocks ---- */

int64_t ctw_score_block_new(const struct ctw_score_block *b, const struct ctw_score_item *item)
{
    int64_t n = ctw_score_item_inputs(item);
    if (b->n_items == 0 || n == 0 || !b->shares)
        return n;
    const struct ctw_score_item *last = &b->items[b->n_items - 1];
    return n - ctw_shared_tokens(last->tokens, ctw_score_item_inputs(last), item->tokens, n);
}

enum ctw_status ctw_score_block_add(struct ctw_score_block *b, const struct ctw_score_item *item,
                                    struct ctw_err *err)
{
    if (b->n_items == b->capacity) {
        int64_t grown = b->capacity == 0 ? 64 : 2 * b->capacity;
        struct ctw_score_item *items = ctw_realloc(b->items, (size_t)grown, sizeof(*items));
        if (items == NULL)
            return ctw_fail(err, CTW_ENOMEM, "line %lld: out of memory", (long long)item->line);
        b->items = items;
        b->capacity = grown;
    }
    b->n_new += ctw_score_block_new(b, item);
    b->items[b->n_items++] = *item;
    b->n_tok += ctw_score_item_inputs(item);
    b->n_held += item->seq.n_tok;
    return CTW_OK;
}

/* Sequences that begin alike follow one another. */
static void order_sequences(struct ctw_score_block *b, struct ctw_leaf *leaves)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->n_items; i++)
        if (!b->is_scored[i])
            leaves[n++] = (struct ctw_leaf){b->items[i].tokens, b->items[i].seq.n_tok, i, 0};
    if (b->shares)
        ctw_order_sort(leaves, n, leaves + n);
    for (b->n_seqs = 0; b->n_seqs < n; b->n_seqs++) {
        b->item_of[b->n_seqs] = leaves[b->n_seqs].index;
        b->seqs[b->n_seqs] = b->items[leaves[b->n_seqs].index].seq;
    }
}

enum ctw_status ctw_score_block_collect(struct ctw_score_block *b, struct ctw_err *err)
{
    struct ctw_leaf *leaves = ctw_calloc(3 * (size_t)b->n_items, sizeof(*leaves));
    b->seqs = ctw_calloc((size_t)b->n_items, sizeof(*b->seqs));
    b->item_of = ctw_calloc((size_t)b->n_items, sizeof(*b->item_of));
    b->is_scored = ctw_calloc((size_t)b->n_items, sizeof(*b->is_scored));
    bool ok = leaves != NULL && b->seqs != NULL && b->item_of != NULL && b->is_scored != NULL;
    for (int64_t i = 0; ok && i < b->n_items; i++)
        b->is_scored[i] = ctw_score_item_inputs(&b->items[i]) == 0;
    if (ok)
        order_sequences(b, leaves);
    ctw_free(leaves);
    return ok ? CTW_OK
              : ctw_fail(err, CTW_ENOMEM, "out of memory for %lld items", (long long)b->n_items);
}

void ctw_score_block_free(struct ctw_score_block *b)
{
    if (b == NULL)
        return;
    for (int64_t i = 0; i < b->n_items; i++)
        ctw_score_item_fini(&b->items[i]);
    ctw_free(b->items);
    ctw_free(b->seqs);
    ctw_free(b->item_of);
    ctw_free(b->is_scored);
    ctw_free(b);
}
