/* Work that the timer does later, because no code may block with the lock held: lines for the log,
 * and events that are due. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ipc/server_internal.h"

void ctw_server_note(struct ctw_server *s, const char *fmt, ...)
{
    va_list args;
    if (s->n_notes == CTW_NOTES)
        return;
    va_start(args, fmt);
    vsnprintf(s->notes[s->n_notes++], CTW_NOTE_BYTES, fmt, args);
    va_end(args);
    ctw_server_look_at(s, 0);
}

void ctw_server_write_notes(struct ctw_server *s)
{
    char notes[CTW_NOTES][CTW_NOTE_BYTES];
    int n = s->n_notes;
    if (n == 0)
        return;
    memcpy(notes, s->notes, sizeof(notes));
    s->n_notes = 0;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n; i++)
        ctw_warn("%s", notes[i]);
    pthread_mutex_lock(&s->lock);
}

void ctw_server_look_at(struct ctw_server *s, int64_t ms)
{
    if (ms >= s->timer_ms)
        return;
    s->timer_ms = ms;
    pthread_cond_signal(&s->timed);
}
