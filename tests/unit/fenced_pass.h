/* Passes over the layers of a provider that reuses bytes behind fences, and a process that ends
 * because bytes were reused too early. Include this file after cmocka.h. */
#ifndef CTW_TESTS_FENCED_PASS_H
#define CTW_TESTS_FENCED_PASS_H

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "tiny_model.h"
#include "worker/engine/pass/pass.h"
#include "worker/weights/provider.h"

enum { N_TOK = 6 };

static const int32_t tokens[N_TOK] = {1, 4, 2, 9, 3, 3};

static bool after_three_polls(void *n_polls)
{
    return ++*(int *)n_polls > 3;
}

/* A pass that is cancelled, if cancel_first, and two that are not, in chunks; the
 * log-probabilities of the last. */
static void score_by(struct ctw_model *m, struct ctw_backend *be, struct ctw_provider *provider,
                     bool cancel_first, float logprob[N_TOK - 1])
{
    struct ctw_err err;
    struct ctw_plan plan;
    struct ctw_forward *f;
    int32_t greedy[N_TOK - 1];
    int polls = 0;
    const struct ctw_plan_request request = {.model = m,
                                             .backend = be,
                                             .dtype = CTW_F32,
                                             .memory_limit = 1 << 26,
                                             .longest = N_TOK,
                                             .total = N_TOK,
                                             .chunk_tokens = 2,
                                             .pass_tokens = N_TOK};
    assert_int_equal(ctw_plan_make(&plan, &request, &err), CTW_OK);
    assert_int_equal(ctw_forward_open(&f, m, be, CTW_F32, &plan, 1, &err), CTW_OK);
    for (int pass = cancel_first ? 0 : 1; pass < 3; pass++) {
        const struct ctw_hooks hooks = {.arg = &polls, .cancelled = after_three_polls};
        struct ctw_seq seq = {
            .tokens = tokens, .n_tok = N_TOK, .first = 1, .logprob = logprob, .greedy = greedy};
        const struct ctw_sharing sharing = {.shares = true};
        struct ctw_progress progress = {0};
        struct ctw_pass *p;
        bool done = false;
        enum ctw_status st = CTW_OK;
        assert_int_equal(ctw_pass_begin(&p, f, provider, &seq, 1, &sharing,
                                        pass == 0 ? &hooks : NULL, &progress, &err),
                         CTW_OK);
        while (st == CTW_OK && !done)
            st = ctw_pass_step(p, &done, &err);
        assert_int_equal(st, pass == 0 ? CTW_ECANCELED : CTW_OK);
        ctw_pass_close(p);
        assert_true(pass == 0 || seq.bad_layer == -1);
    }
    ctw_forward_close(f);
}

/* run(arg) in a process of its own, which is to end with that line; NULL: not at all. */
static void expect_death(void (*run)(void *), void *arg, const char *line)
{
    char said[512] = "";
    int pipe_of[2], status;
    assert_int_equal(pipe(pipe_of), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_of[1], STDERR_FILENO);
        run(arg);
        _exit(0);
    }
    close(pipe_of[1]);
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n < sizeof(said) - 1; n += (size_t)(got > 0 ? got : 0))
        got = read(pipe_of[0], said + n, sizeof(said) - 1 - n);
    close(pipe_of[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    if (died != (line != NULL) || (died && strstr(said, line) == NULL))
        fail_msg("status %x, said \"%s\", expected \"%s\"", (unsigned)status, said,
                 line == NULL ? "" : line);
}

#endif
