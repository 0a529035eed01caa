#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int exit_code;
} table[CTW_N_STATUS] = {
    [CTW_OK] = {"ok", 0},
    [CTW_EINVAL] = {"invalid", 64},
    [CTW_EFORMAT] = {"format", 65},
    [CTW_EUNSUP] = {"unsupported", 65},
    [CTW_ENOMEM] = {"memory", 71},
    [CTW_EIO] = {"io", 74},
    [CTW_ENOTFOUND] = {"not_found", 66},
    [CTW_EBUSY] = {"busy", 75},
    [CTW_ECANCELED] = {"canceled", 1},
    [CTW_ENUMERIC] = {"numeric", 65},
    [CTW_EDEVICE] = {"device", 69},
    [CTW_EINTERNAL] = {"internal", 70},
    [CTW_EREFUSED] = {"refused", 77},
};

static void mark_cut(char *msg, size_t cap)
{
    memcpy(msg + cap - 4, "...", 4);
}

enum ctw_status ctw_fail(struct ctw_err *err, enum ctw_status status, const char *fmt, ...)
{
    if (err == NULL)
        return status;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof(err->msg))
        mark_cut(err->msg, sizeof(err->msg));
    err->status = status;
    return status;
}

enum ctw_status ctw_fail_prefix(struct ctw_err *err, const char *fmt, ...)
{
    if (err == NULL)
        return CTW_EINTERNAL;
    char old[CTW_ERR_MSG_MAX];
    memcpy(old, err->msg, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n < 0 || n >= (int)sizeof(err->msg) - 3) {
        mark_cut(err->msg, sizeof(err->msg));
        return err->status;
    }
    size_t at = (size_t)n;
    if ((size_t)snprintf(err->msg + at, sizeof(err->msg) - at, ": %s", old) >=
        sizeof(err->msg) - at)
        mark_cut(err->msg, sizeof(err->msg));
    return err->status;
}

const char *ctw_status_name(enum ctw_status status)
{
    return (unsigned)status < CTW_N_STATUS ? table[status].name : "unknown";
}

int ctw_status_exit_code(enum ctw_status status)
{
    return (unsigned)status < CTW_N_STATUS ? table[status].exit_code : 70;
}
