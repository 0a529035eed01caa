/* What the log says while a test looks: standard error goes to a file. */
#ifndef CTW_TESTS_CAPTURE_H
#define CTW_TESTS_CAPTURE_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

struct capture {
    enum ctw_log_level level;
    int was;
    FILE *file;
    char text[4096];
};

static inline void capture_start(struct capture *c, enum ctw_log_level level)
{
    c->level = ctw_log_level();
    ctw_log_set_level(level);
    (void)fflush(stderr);
    c->was = dup(STDERR_FILENO);
    c->file = tmpfile();
    assert_true(c->was >= 0);
    assert_true(c->file != NULL);
    assert_true(dup2(fileno(c->file), STDERR_FILENO) >= 0);
}

/* The text is in c->text afterwards. */
static inline void capture_stop(struct capture *c)
{
    (void)fflush(stderr);
    assert_true(dup2(c->was, STDERR_FILENO) >= 0);
    (void)close(c->was);
    ctw_log_set_level(c->level);
    rewind(c->file);
    c->text[fread(c->text, 1, sizeof(c->text) - 1, c->file)] = '\0';
    (void)fclose(c->file);
}

/* Fails the test unless the text has these words ("" : unless it is empty). */
static inline void capture_expect(const struct capture *c, const char *words)
{
    if (words[0] == '\0' ? c->text[0] != '\0' : strstr(c->text, words) == NULL)
        fail_msg("the log says \"%s\", expected \"%s\"", c->text, words);
}

#endif
