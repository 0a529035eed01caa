/* The text of --help; private to worker/cli/options.c. */
#ifndef CTW_WORKER_OPTIONS_HELP_H
#define CTW_WORKER_OPTIONS_HELP_H

#include <stdio.h>

#include "worker/cli/options.h"

/* "CTW_MEMORY_LIMIT" for "memory-limit", truncated to `cap` bytes. */
void ctw_option_env_name(const struct ctw_option *option, char *name, size_t cap);

/* Prints the whole text, at most 100 columns wide; defaults are the options' current values. */
void ctw_options_print_help(const struct ctw_command_line *line, FILE *to);

#endif
