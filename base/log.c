#include "base/log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/lines.h"
#include "base/status.h"

/* A line holds a whole error with the command's words before it. */
enum { LINE_MAX_BYTES = CTW_ERR_MSG_MAX + 512, QUIET_SECONDS = 30, FULL_MS = 1000 };

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int current_level = -1; /* -1: the environment has not been read yet */
static bool progress_drawn;
static bool cut; /* the last line has no end: standard error became full before it */
static time_t progress_last;
static long n_lost; /* lines lost since standard error became full */

bool ctw_log_level_parse(const char *name, enum ctw_log_level *out)
{
    for (size_t i = 0; i < CTW_COUNT(level_names); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum ctw_log_level)i;
            return true;
        }
    }
    return false;
}

static enum ctw_log_level level_locked(void)
{
    if (current_level < 0) {
        enum ctw_log_level level = CTW_LOG_INFO;
        const char *env = getenv("CTW_LOG");
        if (env != NULL && !ctw_log_level_parse(env, &level))
            fprintf(stderr, "ctworker: CTW_LOG=%s is not debug, info, warn or error; using info\n",
                    env);
        current_level = (int)level;
    }
    return (enum ctw_log_level)current_level;
}

void ctw_log_set_level(enum ctw_log_level level)
{
    pthread_mutex_lock(&lock);
    current_level = (int)level;
    pthread_mutex_unlock(&lock);
}

enum ctw_log_level ctw_log_level(void)
{
    pthread_mutex_lock(&lock);
    enum ctw_log_level level = level_locked();
    pthread_mutex_unlock(&lock);
    return level;
}

static void clear_progress_locked(void)
{
    if (progress_drawn)
        fputs("\r\033[K", stderr);
    progress_drawn = false;
}

/*
 * Writes text if standard error takes it within wait_ms. A pipe that can be written to takes at
 * least PIPE_BUF bytes at once, so a longer text goes in pieces of that size. Sets `cut` if only a
 * part of the pieces was taken.
 */
static bool write_locked(const char *text, int wait_ms)
{
    size_t n = strlen(text);
    for (size_t at = 0; at < n; at += PIPE_BUF) {
        struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
        if (poll(&p, 1, wait_ms) == 0) {
            cut = cut || at > 0;
            return false;
        }
        fwrite(text + at, 1, n - at < PIPE_BUF ? n - at : PIPE_BUF, stderr);
        fflush(stderr);
    }
    cut = false;
    return true;
}

/*
 * Standard error may be a pipe that nobody reads. If the pipe has been full for FULL_MS, lines are
 * lost until somebody reads it again. Returns whether the line, which ends in '\n', was written.
 */
static bool write_line_locked(const char *line)
{
    if (n_lost > 0) {
        char missing[128];
        snprintf(missing, sizeof(missing),
                 "%sctworker: warn: %ld lines are missing here: nobody read them\n",
                 cut ? "\n" : "", n_lost);
        if (!write_locked(missing, 0)) {
            n_lost++;
            return false;
        }
        n_lost = 0;
    }
    if (!write_locked(line, FULL_MS))
        n_lost++;
    return n_lost == 0;
}

void ctw_log(enum ctw_log_level level, const char *fmt, ...)
{
    char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES + 32];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (level >= level_locked()) {
        clear_progress_locked();
        snprintf(line, sizeof(line), "ctworker: %s%s%s\n",
                 level == CTW_LOG_INFO ? "" : level_names[level], level == CTW_LOG_INFO ? "" : ": ",
                 text);
        write_line_locked(line);
    }
    pthread_mutex_unlock(&lock);
}

void ctw_log_lines(enum ctw_log_level level, const char *before, const char *text)
{
    struct ctw_lines lines = ctw_lines_of(text, strlen(text));
    while (ctw_lines_next(&lines))
        ctw_log(level, "%s%.*s", before, lines.n, lines.line);
}

void ctw_log_progress(const char *fmt, ...)
{
    char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES + 32];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    time_t now = time(NULL);
    if (level_locked() > CTW_LOG_INFO) {
        /* quiet */
    } else if (isatty(STDERR_FILENO)) {
        clear_progress_locked();
        if (text[0] != '\0') {
            fprintf(stderr, "\r%s", text);
            progress_drawn = true;
        }
        fflush(stderr);
    } else if (text[0] != '\0' && now - progress_last >= QUIET_SECONDS) {
        snprintf(line, sizeof(line), "ctworker: %s\n", text);
        if (write_line_locked(line))
            progress_last = now;
    }
    pthread_mutex_unlock(&lock);
}
