/* The program's version and build, fixed at build time. */
#ifndef CTW_WORKER_VERSION_H
#define CTW_WORKER_VERSION_H

const char *ctw_version(void);          /* "0.1.0" */
const char *ctw_version_commit(void);   /* "08af9c5c1a2b"; "unknown" outside a git checkout */
const char *ctw_version_compiler(void); /* "GCC 12.2.0" */
const char *ctw_version_build(void);    /* "Release", with sanitizers if any */

#endif
