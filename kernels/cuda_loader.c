/* Opens libctworker_cuda.so on demand. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/contract.h"

static const char LIBRARY[] = "libctworker_cuda.so";

/* The folder of the running program; "" if it is unknown. */
static void program_folder(char *dir, size_t cap)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[n < 0 ? 0 : n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(dir, cap, "%s", slash == NULL ? "" : path);
}

/* Opens the library at the first place that has it, and sets path to that place. A library that
 * is present but does not load is an error: the next place must not hide it. */
static enum ctw_status open_library(void **lib, char *path, size_t cap, struct ctw_err *err)
{
    char dir[PATH_MAX];
    program_folder(dir, sizeof(dir));
    const char *asked = getenv("CTWORKER_CUDA_LIBRARY");
    if (asked != NULL && asked[0] == '\0')
        asked = NULL;
    /* installed: next to the program, in ../lib, or in a Python package beside the program's; in a
     * build folder: ../kernels/cuda */
    static const char *const places[] = {"", CTW_LIB_FROM_BIN, "../lib/", "../kernels/cuda/",
                                         "../../ctworker_cuda13/"};
    for (size_t i = 0; i < (asked != NULL ? 1 : CTW_COUNT(places)); i++) {
        if (asked != NULL)
            snprintf(path, cap, "%s", asked);
        else
            snprintf(path, cap, "%s/%s%s", dir, places[i], LIBRARY);
        if (asked == NULL && access(path, F_OK) != 0)
            continue;
        *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (*lib != NULL)
            return CTW_OK;
        return ctw_fail(err, CTW_EUNSUP, "no GPU: %s", dlerror());
    }
    return ctw_fail(err, CTW_EUNSUP,
                    "no GPU: this installation has no %s (install the wheel ctworker-cuda13, or "
                    "build with CUDA)",
                    LIBRARY);
}

/* *ops: the table of an open library, if the library was compiled with this program's contract. */
static enum ctw_status ask_library(void *lib, const char *path, const struct ctw_backend_ops **ops,
                                   struct ctw_err *err)
{
    ctw_cuda_contract_fn *contract;
    ctw_cuda_ops_fn *get;
    *(void **)&contract = dlsym(lib, CTW_CUDA_CONTRACT_SYMBOL);
    *(void **)&get = dlsym(lib, CTW_CUDA_OPS_SYMBOL);
    const char *found = contract == NULL || get == NULL ? NULL : contract();
    if (found == NULL || strcmp(found, CTW_CONTRACT) != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "no GPU: %s has %s%s, this program has %s: install ctworker and "
                        "ctworker-cuda13 of one version, or build both from one source tree and "
                        "install them together",
                        path, found == NULL ? "no contract" : "the contract ",
                        found == NULL ? "" : found, CTW_CONTRACT);
    *ops = get();
    return CTW_OK;
}

enum ctw_status ctw_cuda_load(const struct ctw_backend_ops **out, struct ctw_err *err)
{
    static const struct ctw_backend_ops *loaded; /* the library is opened once and never closed */
    const struct ctw_backend_ops *ops = __atomic_load_n(&loaded, __ATOMIC_ACQUIRE);
    char path[PATH_MAX + 64];
    void *lib;
    if (ops == NULL) {
        enum ctw_status st = open_library(&lib, path, sizeof(path), err);
        if (st != CTW_OK)
            return st;
        st = ask_library(lib, path, &ops, err);
        if (st != CTW_OK)
            return st;
        __atomic_store_n(&loaded, ops, __ATOMIC_RELEASE);
    }
    *out = ops;
    return CTW_OK;
}
