/*
 * A fake engine for tests of the code above engines. Each log-probability is a hash of the
 * preceding tokens and the target, so that it depends on nothing else and any mix-up shows. Linked
 * in place of worker/engine/engine.c.
 */
#ifndef CTW_TESTS_FAKE_ENGINE_H
#define CTW_TESTS_FAKE_ENGINE_H

#include "worker/engine/engine.h"

enum { FAKE_VOCAB = 1000, FAKE_MAX_LENGTH = 64, FAKE_DECODERS = 4, FAKE_MATRICES = 3 };

/* Set before opening engines. Environment variables CTW_FAKE_NAME have the same meaning. */
struct fake_engine_options {
    int us_per_token;  /* time per token */
    int open_ms;       /* how long opening takes */
    int nan_token;     /* a sequence with this token gets bad_layer 2; -1: none */
    int inf_token;     /* this token as a target gets -inf and no bad_layer; -1: none */
    int device_token;  /* a sequence with this token makes score() fail: CTW_EDEVICE; -1: none */
    int memory_token;  /* a sequence with this token makes score() fail: CTW_ENOMEM */
    int io_token;      /* a sequence with this token: CTW_EIO, as after a changed checkpoint file */
    int late_identity; /* 1: the identity is known only after the first pass */
    int pass_tokens;   /* 0: 256; --pass-tokens overrides */
    int fit_length;    /* longest input that fits the memory; 0: any */
};

extern struct fake_engine_options fake_engine;

/* The engine's log-probability for target tokens[at]. */
float fake_logprob(const int32_t *tokens, int64_t at);
int32_t fake_greedy(const int32_t *tokens, int64_t at);

/* Calls of score() since the last reset: number of calls and of sequences. */
void fake_engine_counts(int64_t *n_calls, int64_t *n_seqs, int64_t *most_tokens);
void fake_engine_reset_counts(void);
/* The next call of score() with more than n sequences reports the first n, then fails: CTW_ENOMEM.
 */
void fake_engine_fail_after(int64_t n);
int fake_engine_n_open(void);
int fake_engine_n_waits(void); /* calls of ctw_engine_wait_identity() since the last call */

#endif
