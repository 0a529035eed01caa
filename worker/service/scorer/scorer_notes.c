/* Lines for the log that wait until the lock is not held: see worker/service/scorer/scorer.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/service/scorer/scorer.h"

void ctw_scorer_note(struct ctw_scorer *s, enum ctw_log_level level, const char *fmt, ...)
{
    if (s->n_notes == CTW_SCORER_NOTES)
        return;
    va_list ap;
    va_start(ap, fmt);
    s->notes[s->n_notes].level = level;
    vsnprintf(s->notes[s->n_notes].text, CTW_SCORER_NOTE_MAX, fmt, ap);
    va_end(ap);
    s->n_notes++;
}

void ctw_scorer_write_notes(struct ctw_scorer *s)
{
    struct ctw_scorer_note notes[CTW_SCORER_NOTES];
    pthread_mutex_lock(&s->queue->lock);
    int n = s->n_notes;
    memcpy(notes, s->notes, sizeof(notes));
    s->n_notes = 0;
    pthread_mutex_unlock(&s->queue->lock);
    for (int i = 0; i < n; i++)
        ctw_log(notes[i].level, "%s", notes[i].text);
}
