/* Hooks of passes that cancel late, count what is done and touch a file. Include this file after
 * cmocka.h. */
#ifndef CTW_TESTS_PASS_WATCH_H
#define CTW_TESTS_PASS_WATCH_H

#include <fcntl.h>
#include <sys/stat.h>

#include "tiny_model.h"
#include "worker/engine/engine.h"

struct watch {
    int64_t calls, cancel_at, n_done;
    int64_t touch_at; /* the call of progress that touches dir's file; then the pass is repeated */
    const char *dir;
    struct ctw_progress last;
};

static bool cancel_late(void *arg)
{
    struct watch *w = arg;
    return ++w->calls == w->cancel_at;
}

static void count_done(void *arg, int64_t first, int64_t n)
{
    struct watch *w = arg;
    assert_int_equal(first, w->n_done);
    w->n_done += n;
}

static void grows(void *arg, const struct ctw_progress *p)
{
    static const struct timespec other_times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct watch *w = arg;
    char path[256];
    assert_true(w->touch_at != 0 || p->tok_done >= w->last.tok_done);
    assert_in_range(p->tok_done, 0, p->tok_total);
    assert_true(p->pass < p->n_passes);
    assert_true(p->layer < p->n_layers);
    w->last = *p;
    if (w->touch_at == 0 || w->calls++ != w->touch_at)
        return;
    tiny_path(path, sizeof(path), w->dir, "model.safetensors");
    assert_int_equal(utimensat(AT_FDCWD, path, other_times, 0), 0);
}

#endif
