#include "worker/engine/pass/before.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

int32_t *ctw_tokens_before(const struct ctw_model *m, const struct ctw_layout *l,
                           const struct ctw_seq *seqs)
{
    const int n = m->ngram_before;
    int32_t *all = n > 0 ? ctw_calloc((size_t)(l->n_tok * (n + 1)), sizeof(*all)) : NULL;
    for (int64_t s = 0; all != NULL && s < l->n_seqs; s++)
        for (int64_t t = l->start[s]; t < l->start[s + 1]; t++) {
            const int32_t *own = seqs[s].tokens + l->positions[t];
            int32_t *out = all + t * (n + 1);
            bool ended = false;
            out[0] = own[0];
            for (int j = 1; j <= n; j++) {
                ended |= j > l->positions[t] || own[-j] == m->ngram_end;
                out[j] = ended ? m->ngram_end : own[-j];
            }
        }
    return all;
}

size_t ctw_gathered_bytes(const struct ctw_model *m, int64_t chunk_tokens)
{
    size_t most = 0;
    for (int i = 1; i <= m->n_decoders; i++) {
        const struct ctw_layer *l = &m->layers[i];
        if (l->table.n == 0)
            continue;
        const size_t columns = (size_t)ctw_ngram_columns(&l->branch[CTW_NGRAM].ngram);
        const size_t bytes = columns * ctw_dtype_bytes(l->table.part[0]->dtype);
        most = bytes > most ? bytes : most;
    }
    return most * (size_t)chunk_tokens;
}

/* The row of head h, of n-grams of h / each + 2 tokens: products wrap, and the remainder is that of
 * the number as signed, never below 0. */
static int64_t row_of(const struct ctw_ngram *g, const int32_t *before, int h)
{
    uint64_t mixed = 0;
    for (int j = 0; j < h / g->each + 2; j++)
        mixed ^= (uint64_t)(int64_t)before[j] * g->multiplier[j];
    int64_t id = (int64_t)mixed % g->size[h];
    return g->first[h] + (id < 0 ? id + g->size[h] : id);
}

static const char *address_of(const struct ctw_model *m, const struct ctw_table *table, int64_t row)
{
    int low = 0, high = table->n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (table->row0[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    const struct ctw_tensor *t = table->part[low];
    const size_t bytes = (size_t)t->shape[1] * ctw_dtype_bytes(t->dtype);
    return (const char *)ctw_container_data(m->container, t) +
           (size_t)(row - table->row0[low]) * bytes;
}

/* Asks the kernel to read a row soon, so that the rows of many tokens cost one disk's latency
 * together. Best effort. */
static void read_ahead(const char *at, size_t bytes, uintptr_t page)
{
    const uintptr_t first = (uintptr_t)at & ~(page - 1);
    (void)madvise((void *)first, (uintptr_t)at + bytes - first, MADV_WILLNEED);
}

struct gather {
    const struct ctw_model *m;
    const struct ctw_table *table;
    const struct ctw_ngram *g;
    const int32_t *before;
    int64_t n_tok;
    size_t bytes; /* of a row */
    char *out;
};

enum { PART = 64 }; /* tokens that a thread takes at a time */

/* Of tokens PART * part .. */
static void gather_part(void *arg, int64_t part, int thread)
{
    const struct gather *x = arg;
    const int heads = ctw_ngram_heads(x->g), step = x->m->ngram_before + 1;
    const int64_t end = PART * (part + 1) < x->n_tok ? PART * (part + 1) : x->n_tok;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)thread;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = PART * part; t < end; t++)
            for (int h = 0; h < heads; h++) {
                const char *row = address_of(x->m, x->table, row_of(x->g, x->before + t * step, h));
                if (pass == 0)
                    read_ahead(row, x->bytes, page);
                else
                    memcpy(x->out + (size_t)(t * heads + h) * x->bytes, row, x->bytes);
            }
}

enum ctw_status ctw_gather_rows(const struct ctw_model *m, const struct ctw_table *table,
                                const struct ctw_ngram *g, const int32_t *before, int64_t n_tok,
                                struct ctw_threads *pool, char *out, struct ctw_err *err)
{
    struct gather x = {.m = m,
                       .table = table,
                       .g = g,
                       .before = before,
                       .n_tok = n_tok,
                       .bytes = (size_t)g->dim * ctw_dtype_bytes(table->part[0]->dtype),
                       .out = out};
    ctw_threads_for(pool, (n_tok + PART - 1) / PART, gather_part, &x);
    return ctw_container_check_maps(m->container, err);
}
