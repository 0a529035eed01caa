/*
 * An engine for tests of what lies above engines: log-probabilities are a hash of the tokens before
 * and of the target, so that they depend on nothing else and any mix-up shows. Linked instead of
 * worker/engine/engine.c.
 */
#ifndef CTW_TESTS_FAKE_ENGINE_H
#define CTW_TESTS_FAKE_ENGINE_H

#include "worker/engine/engine.h"

enum { FAKE_VOCAB = 1000, FAKE_MAX_LENGTH = 64, FAKE_DECODERS = 4 };

/* Set before engines are opened. Environment variables of the same meaning: CTW_FAKE_NAME. */
struct fake_engine_options {
    int us_per_token; /* how slow it is */
    int open_ms;      /* how long opening takes */
    int nan_token;    /* a sequence with it gets bad_layer 2; -1: none */
    int inf_token;    /* a target of this gets -inf and no bad_layer; -1: none */
    int device_token; /* a sequence with it makes score() fail with CTW_EDEVICE; -1: none */
    int memory_token; /* likewise, CTW_ENOMEM */
    int io_token;     /* likewise, CTW_EIO, as when a checkpoint's file was changed */
    int late_identity; /* 1: it is known only when the first pass is done */
    int pass_tokens;  /* 0: 256; --pass-tokens goes first */
    int fit_length;   /* the longest input that it says it has memory for; 0: any */
};

extern struct fake_engine_options fake_engine;

/* What the engine gives for target tokens[at]. */
float fake_logprob(const int32_t *tokens, int64_t at);
int32_t fake_greedy(const int32_t *tokens, int64_t at);

/* What score() was called with since the last reset: number of calls and of sequences. */
void fake_engine_counts(int64_t *n_calls, int64_t *n_seqs, int64_t *most_tokens);
void fake_engine_reset_counts(void);
int fake_engine_n_open(void);

#endif
