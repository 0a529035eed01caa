/* Private to the options: --help. */
#ifndef CTW_WORKER_OPTIONS_HELP_H
#define CTW_WORKER_OPTIONS_HELP_H

#include <stdio.h>

#include "worker/cli/options.h"

/* "CTW_MEMORY_LIMIT" for "memory-limit", cut to `cap`. */
void ctw_option_env_name(const struct ctw_option *option, char *name, size_t cap);

/* The whole text, at most 100 columns; the defaults are what the values hold now. */
void ctw_options_print_help(const struct ctw_command_line *line, FILE *to);

#endif
