/* The server's look at itself: see ipc/server.h. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "ipc/client.h"
#include "ipc/server_internal.h"

enum { ANSWER_MS = 1500, OLD_NNG_MS = 1000, NEW_NNG_MS = 30000 };

static int interval_ms(const struct ctw_server *s)
{
    int major = 0, minor = 0;
    if (s->options.probe_ms != 0)
        return s->options.probe_ms;
    if (sscanf(nng_version(), "%d.%d", &major, &minor) == 2 && major == 1 && minor < 6)
        return OLD_NNG_MS;
    return NEW_NNG_MS;
}

/* False: the server is closing. */
static bool wait_ms(struct ctw_server *s, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&s->lock);
    while (!s->stop && pthread_cond_timedwait(&s->wake, &s->lock, &until) != ETIMEDOUT) {
    }
    bool go_on = !s->stop;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

/* Is a new connection accepted? An answer may come late, where all threads are busy. */
static bool accepts(struct ctw_server *s)
{
    int answer_ms = s->options.answer_ms != 0 ? s->options.answer_ms : ANSWER_MS;
    unsigned before = atomic_load(&s->n_accepted);
    struct ctw_client *client = NULL;
    struct ctw_request request = {.op = CTW_OP_HEALTH};
    struct ctw_reply reply = {0};
    enum ctw_status st = ctw_client_open(&client, s->url, NULL);
    if (st == CTW_OK) {
        ctw_client_set_next_id(client, s->probe_id);
        st = ctw_client_call(client, &request, answer_ms, &reply, NULL);
    }
    ctw_reply_close(&reply);
    ctw_client_close(client);
    return st == CTW_OK || atomic_load(&s->n_accepted) != before;
}

/* Existing connections end with their listener: their clients dial again. */
static void heal(struct ctw_server *s)
{
    struct ctw_err err;
    nng_listener_close(s->listener);
    /* Closing finishes on another thread; until then the address may be taken. */
    for (int i = 0; i < 50; i++) {
        enum ctw_status st = ctw_server_listen(s, &err);
        if (st == CTW_OK) {
            ctw_warn("%s accepted no new connections; listening anew", s->url);
            return;
        }
        if (!wait_ms(s, 100))
            return;
    }
    ctw_error("cannot listen anew: %s", err.msg);
}

void *ctw_server_probe_main(void *server)
{
    struct ctw_server *s = server;
    int ms = interval_ms(s);
    while (wait_ms(s, ms)) {
        /* twice: the first time the machine may have been paused */
        if (!accepts(s) && wait_ms(s, 0) && !accepts(s) && wait_ms(s, 0))
            heal(s);
    }
    return NULL;
}
