/* Several lines of text in one string, with a ';' between two lines, because text on the wire has
 * no newlines. */
#ifndef CTW_BASE_LINES_H
#define CTW_BASE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct ctw_lines {
    const char *line; /* the current line, of n bytes: "%.*s" */
    int n;
    const char *rest, *end;
};

/* Starts before the first line; ctw_lines_next() moves to the next line, if there is one. */
static inline struct ctw_lines ctw_lines_of(const char *text, size_t bytes)
{
    struct ctw_lines l = {0};
    l.rest = text;
    l.end = text + bytes;
    return l;
}

static inline bool ctw_lines_next(struct ctw_lines *l)
{
    if (l->rest >= l->end)
        return false;
    const char *stop = (const char *)memchr(l->rest, ';', (size_t)(l->end - l->rest));
    stop = stop == NULL ? l->end : stop;
    l->line = l->rest;
    l->n = (int)(stop - l->rest);
    l->rest = stop + (stop < l->end);
    return true;
}

#endif
