/*
 * `ctworker` with the fake engine: the real commands serve, score, info, health, ps, stop and
 * store, for tests of the protocol and of faults. fake_engine.h lists the environment variables of
 * the engine.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/standard_fds.h"
#include "worker/cli/commands.h"

/* Like the destructors of a GPU's libraries, which must not run while a thread uses them. */
static void tell_exit(void)
{
    fputs("fake_worker: destructors run\n", stderr);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        ctw_command_fn *run;
    } commands[] = {{"serve", ctw_cmd_serve},   {"score", ctw_cmd_score}, {"info", ctw_cmd_info},
                    {"health", ctw_cmd_health}, {"ps", ctw_cmd_ps},       {"stop", ctw_cmd_stop},
                    {"store", ctw_cmd_store}};
    if (!ctw_standard_fds_open())
        return 74;
    (void)signal(SIGPIPE, SIG_IGN);
    if (getenv("CTW_FAKE_AT_EXIT") != NULL && atexit(tell_exit) != 0)
        return 70;
    (void)signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    fputs("fake_worker: serve, score, info, health, ps, stop or store?\n", stderr);
    return 64;
}
