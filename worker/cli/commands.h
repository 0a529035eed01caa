/*
 * The commands of the `ctworker` program. Each command is a file worker/cli/cmd_NAME.c, a function
 * below and a row in main.c's table.
 */
#ifndef CTW_WORKER_COMMANDS_H
#define CTW_WORKER_COMMANDS_H

/* argv[0] is the command's name. Returns the exit code (base/status.h). */
typedef int ctw_command_fn(int argc, char **argv);

ctw_command_fn ctw_cmd_serve, ctw_cmd_score, ctw_cmd_inspect, ctw_cmd_info, ctw_cmd_health,
    ctw_cmd_ps, ctw_cmd_stop, ctw_cmd_store;

#endif
