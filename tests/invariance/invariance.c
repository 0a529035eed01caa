/*
 * Property test: the score and the final hidden states of a sequence are the same bits alone and in
 * any batch, in any order, with any chunk size, pass size and number of threads.
 *
 *   invariance DIR [VARIANT [SEED [ROUNDS]]]
 *
 * DIR is a checkpoint (tests/tools/tiny_checkpoint.py writes some). Sequences are scored alone
 * first; then every round scores a random selection, shuffled or in the trie's order, on an engine
 * with other settings, and compares bits. Prints the seed; exits 1 at the first difference.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/order.h"
#include "worker/engine/engine.h"

/* A batch has at most about MAX_CHUNKS chunks: every chunk decodes the weights again. */
enum { N_SEQS = 24, MAX_TOKENS = 300, MAX_CHUNKS = 250 };

/* The tile edges of the kernels (6 to 14 rows, 64 and 128 keys) and their neighbours. */
static const int64_t edges[] = {2,  3,  5,  6,  7,   12,  13,  15,  33,
                                63, 64, 65, 66, 127, 128, 129, 130, 257};
static const int64_t chunks[] = {1, 5, 6, 7, 11, 13, 63, 64, 65, 129, 4096};
static const int64_t passes[] = {1, 64, 200, 1000, 32768};
static const int threads[] = {1, 2, 3, 5};

static uint64_t rng_state;

static uint32_t random_u32(void)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng_state >> 33);
}

static int64_t random_below(int64_t n)
{
    return (int64_t)(random_u32() % (uint32_t)n);
}

struct expected {
    int32_t tokens[MAX_TOKENS];
    struct ctw_seq seq; /* as scored alone */
};

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "invariance: out of memory\n");
        exit(2);
    }
    return p;
}

static void make_room(struct ctw_seq *s, size_t hidden_bytes)
{
    size_t n = (size_t)(s->n_tok - s->first);
    s->logprob = must(ctw_calloc(n, sizeof(float)));
    s->greedy = must(ctw_calloc(n, sizeof(int32_t)));
    s->hidden = must(ctw_calloc(n, hidden_bytes));
}

static void free_room(struct ctw_seq *s)
{
    ctw_free(s->logprob);
    ctw_free(s->greedy);
    ctw_free(s->hidden);
}

static struct ctw_engine *open_engine(struct ctw_engine_options opt)
{
    struct ctw_engine *e;
    struct ctw_err err;
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK) {
        fprintf(stderr, "invariance: %s\n", err.msg);
        exit(2);
    }
    return e;
}

static void score(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n)
{
    struct ctw_err err;
    if (ctw_engine_score(e, seqs, n, NULL, &err) != CTW_OK) {
        fprintf(stderr, "invariance: %s\n", err.msg);
        exit(2);
    }
}

/* Random tokens; a third of the sequences share a prefix, so that equal work meets unequal, and
 * another third the beginning of it, up to an edge. */
static void make_sequences(struct expected *all, int64_t vocab, size_t hidden_bytes)
{
    int32_t prefix[MAX_TOKENS];
    for (int i = 0; i < MAX_TOKENS; i++)
        prefix[i] = (int32_t)random_below(vocab);
    for (int i = 0; i < N_SEQS; i++) {
        int64_t n = i < (int)CTW_COUNT(edges) ? edges[i] : 2 + random_below(MAX_TOKENS - 2);
        int64_t n_same = i % 3 == 0 ? n : i % 3 == 1 ? edges[random_below(CTW_COUNT(edges))] : 0;
        for (int64_t t = 0; t < n; t++)
            all[i].tokens[t] = t < n_same ? prefix[t] : (int32_t)random_below(vocab);
        all[i].seq = (struct ctw_seq){
            .tokens = all[i].tokens, .n_tok = n, .first = 1 + (i % 2 ? random_below(n - 1) : 0)};
        make_room(&all[i].seq, hidden_bytes);
    }
}

static bool same(const struct ctw_seq *a, const struct ctw_seq *b, size_t hidden_bytes)
{
    size_t n = (size_t)(a->n_tok - a->first);
    return memcmp(a->logprob, b->logprob, n * sizeof(float)) == 0 &&
           memcmp(a->greedy, b->greedy, n * sizeof(int32_t)) == 0 &&
           memcmp(a->hidden, b->hidden, n * hidden_bytes) == 0;
}

/* The order in which sequences share what they have in common. */
static void order(struct ctw_seq *batch, int *of, int64_t n)
{
    struct ctw_leaf leaves[3 * 2 * N_SEQS];
    struct ctw_seq from[2 * N_SEQS];
    int was[2 * N_SEQS];
    memcpy(from, batch, (size_t)n * sizeof(*batch));
    memcpy(was, of, (size_t)n * sizeof(*of));
    for (int64_t i = 0; i < n; i++)
        leaves[i] = (struct ctw_leaf){batch[i].tokens, batch[i].n_tok, i, 0};
    ctw_order_sort(leaves, n, leaves + n);
    for (int64_t i = 0; i < n; i++) {
        batch[i] = from[leaves[i].index];
        of[i] = was[leaves[i].index];
    }
}

/* One random batch, of up to max_tok tokens if it has several sequences, on one engine; counts the
 * sequences that differ. */
static int one_batch(struct ctw_engine *e, const struct expected *all, size_t hidden_bytes,
                     int64_t max_tok)
{
    struct ctw_seq batch[2 * N_SEQS];
    int of[2 * N_SEQS], n_bad = 0;
    int64_t n = 0, n_tok = 0, most = 1 + random_below(2 * N_SEQS);
    for (int64_t i = 0; i < most; i++) {
        int next = (int)random_below(N_SEQS);
        if (n > 0 && n_tok + all[next].seq.n_tok > max_tok)
            continue;
        of[n] = next;
        batch[n] = all[next].seq;
        make_room(&batch[n], hidden_bytes);
        n_tok += batch[n++].n_tok;
    }
    if (random_below(3) > 0)
        order(batch, of, n);
    score(e, batch, n);
    for (int64_t i = 0; i < n; i++) {
        if (!same(&batch[i], &all[of[i]].seq, hidden_bytes)) {
            fprintf(stderr, "invariance: sequence %d (%lld tokens) differs at place %lld of %lld\n",
                    of[i], (long long)batch[i].n_tok, (long long)i, (long long)n);
            n_bad++;
        }
        free_room(&batch[i]);
    }
    return n_bad;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: invariance DIR [VARIANT [SEED [ROUNDS]]]\n");
        return 64;
    }
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
    int rounds = argc > 4 ? (int)strtol(argv[4], NULL, 0) : 12;
    rng_state = seed;
    struct ctw_engine_options opt = {.model_dir = argv[1]};
    if (argc > 2 && strncmp(argv[2], "cuda-", 5) == 0) {
        opt.backend = "cuda";
        opt.cuda_variant = argv[2] + 5;
    } else if (argc > 2 && strcmp(argv[2], "auto") != 0) {
        opt.backend = "cpu";
        opt.variant = argv[2];
    }
    struct ctw_engine *e = open_engine(opt);
    struct ctw_engine_info info;
    ctw_engine_get_info(e, &info);
    char numerics[128];
    snprintf(numerics, sizeof(numerics), "%s", info.numerics);
    size_t hidden_bytes = (size_t)info.model->hidden * ctw_dtype_bytes(info.dtype);
    struct expected *all = must(ctw_calloc(N_SEQS, sizeof(*all)));
    make_sequences(all, info.vocab, hidden_bytes);
    for (int i = 0; i < N_SEQS; i++)
        score(e, &all[i].seq, 1);
    ctw_engine_close(e);

    int n_bad = 0;
    for (int r = 0; r < rounds && n_bad == 0; r++) {
        opt.chunk_tokens = chunks[random_below(CTW_COUNT(chunks))];
        opt.pass_tokens = passes[random_below(CTW_COUNT(passes))];
        opt.n_threads = threads[random_below(CTW_COUNT(threads))];
        e = open_engine(opt);
        for (int b = 0; b < 2; b++)
            n_bad += one_batch(e, all, hidden_bytes, MAX_CHUNKS * opt.chunk_tokens);
        ctw_engine_close(e);
        if (n_bad != 0)
            fprintf(stderr, "invariance: chunk %lld, pass %lld, %d threads\n",
                    (long long)opt.chunk_tokens, (long long)opt.pass_tokens, opt.n_threads);
    }
    printf("%s: %s, %s, seed %llu, %d rounds\n", n_bad == 0 ? "same bits" : "DIFFERS", argv[1],
           numerics, (unsigned long long)seed, rounds);
    for (int i = 0; i < N_SEQS; i++)
        free_room(&all[i].seq);
    ctw_free(all);
    return n_bad != 0;
}
