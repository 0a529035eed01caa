/*
 * The log: one line per event, on standard error, never on standard output. The level comes from
 * CTW_LOG=debug|info|warn|error (default info) or ctw_log_set_level(). Thread-safe.
 */
#ifndef CTW_BASE_LOG_H
#define CTW_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ctw_log_level { CTW_LOG_DEBUG, CTW_LOG_INFO, CTW_LOG_WARN, CTW_LOG_ERROR };

void ctw_log_set_level(enum ctw_log_level level);
/* Parses debug|info|warn|error; false for any other name. */
bool ctw_log_level_parse(const char *name, enum ctw_log_level *out) CTW_MUST_CHECK;
enum ctw_log_level ctw_log_level(void);

void ctw_log(enum ctw_log_level level, const char *fmt, ...) CTW_PRINTF(2, 3);
/* Logs each line of `text`, after `before`; there is a ';' between two lines. */
void ctw_log_lines(enum ctw_log_level level, const char *before, const char *text);

/*
 * Progress of long work. On a terminal one line is redrawn in place; otherwise a plain line is
 * written at most every 30 s. ctw_log() clears the drawn line first. An empty fmt clears it.
 */
void ctw_log_progress(const char *fmt, ...) CTW_PRINTF(1, 2);

#define ctw_debug(...) ctw_log(CTW_LOG_DEBUG, __VA_ARGS__)
#define ctw_info(...) ctw_log(CTW_LOG_INFO, __VA_ARGS__)
#define ctw_warn(...) ctw_log(CTW_LOG_WARN, __VA_ARGS__)
#define ctw_error(...) ctw_log(CTW_LOG_ERROR, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
