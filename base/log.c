#include "base/log.h"

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
 * Standard error may be a pipe that nobody reads. If the pipe has been full for FULL_MS, lines are
 * lost until somebody reads it again. A pipe that can be written to takes PIPE_BUF bytes, more than
 * one line.
 */
static bool may_write_locked(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&p, 1, n_lost > 0 ? 0 : FULL_MS) == 0) {
        n_lost++;
        return false;
    }
    if (n_lost > 0)
        fprintf(stderr, "ctworker: warn: %ld lines are missing here: nobody read them\n", n_lost);
    n_lost = 0;
    return true;
}

void ctw_log(enum ctw_log_level level, const char *fmt, ...)
{
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (level >= level_locked() && may_write_locked()) {
        clear_progress_locked();
        fprintf(stderr, "ctworker: %s%s%s\n", level == CTW_LOG_INFO ? "" : level_names[level],
                level == CTW_LOG_INFO ? "" : ": ", line);
        fflush(stderr);
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
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    time_t now = time(NULL);
    if (level_locked() > CTW_LOG_INFO) {
        /* quiet */
    } else if (isatty(STDERR_FILENO)) {
        clear_progress_locked();
        if (line[0] != '\0') {
            fprintf(stderr, "\r%s", line);
            progress_drawn = true;
        }
        fflush(stderr);
    } else if (line[0] != '\0' && now - progress_last >= QUIET_SECONDS && may_write_locked()) {
        fprintf(stderr, "ctworker: %s\n", line);
        fflush(stderr);
        progress_last = now;
    }
    pthread_mutex_unlock(&lock);
}
