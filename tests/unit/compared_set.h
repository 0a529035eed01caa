/*
 * Sequences that two models are compared on, with their results, for tests of what comparing can
 * add. Include it after cmocka.h.
 */
#ifndef CTW_TESTS_COMPARED_SET_H
#define CTW_TESTS_COMPARED_SET_H

#include "tiny_model.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/devices.h"

enum { N_TOK = 6, N = N_TOK - 1, N_SEQS = 4, MOST_LAYERS = 4, MOST_MATRICES = 24 };

static const char *backend;
static struct ctw_devices devices;

static struct ctw_engine *open_with(const char *dir, int64_t chunk_tokens, int64_t pass_tokens,
                                    int n_threads)
{
    struct ctw_engine *e;
    struct ctw_err err;
    const struct ctw_engine_options opt = {.model_dir = dir,
                                           .backend = backend,
                                           .n_threads = n_threads,
                                           .devices = &devices,
                                           .chunk_tokens = chunk_tokens,
                                           .pass_tokens = pass_tokens};
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

struct set {
    float logprob[N], ref_logprob[N], ref_top[N], kl[N_SEQS][N], kl_reverse[N], tv[N];
    int32_t greedy[N], ref_greedy[N];
    uint8_t overlap5[N];
    struct ctw_difference_result layers[N_SEQS][MOST_LAYERS];
    double matrices[N_SEQS][MOST_MATRICES];
    struct ctw_seq_divergence divergence[N_SEQS];
    struct ctw_seq seqs[N_SEQS];
};

static const int32_t tokens[N_SEQS][N_TOK] = {
    {1, 4, 2, 9, 3, 3}, {5, 5, 5, 0, 1, 2}, {7, 8, 9, 1, 0, 6}, {3, 1, 4, 1, 5, 9}};

/* Sequence i has N_TOK - i % 2 tokens and its first target at 1 + i / 2; all have layers. Columns
 * that no test reads are shared. */
static struct set *set_make(struct set *s)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SEQS; i++) {
        s->divergence[i] = (struct ctw_seq_divergence){.ref_logprob = s->ref_logprob,
                                                       .ref_greedy = s->ref_greedy,
                                                       .ref_top = s->ref_top,
                                                       .kl = s->kl[i],
                                                       .kl_reverse = s->kl_reverse,
                                                       .tv = s->tv,
                                                       .overlap5 = s->overlap5,
                                                       .layers = s->layers[i]};
        s->seqs[i] = (struct ctw_seq){.tokens = tokens[i],
                                      .n_tok = N_TOK - i % 2,
                                      .first = 1 + i / 2,
                                      .logprob = s->logprob,
                                      .greedy = s->greedy,
                                      .divergence = &s->divergence[i]};
    }
    return s;
}

static void compare(struct ctw_engine *e, struct ctw_engine *reference, struct set *s)
{
    struct ctw_err err;
    if (ctw_engine_compare(e, reference, s->seqs, N_SEQS, NULL, NULL, &err) != CTW_OK)
        fail_msg("%s", err.msg);
}

#endif
