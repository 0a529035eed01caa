/*
 * Status codes and the one error object.
 *
 * A function that can fail returns `enum ctw_status` and takes `struct ctw_err *err` as its last
 * argument. The code that detects the failure fills *err once with ctw_fail(), which returns the
 * status: `return ctw_fail(err, CTW_EFORMAT, "...")`. Callers pass status and error up unchanged
 * (`if (st != CTW_OK) goto fail;`). A message names the object and the remedy.
 */
#ifndef CTW_BASE_STATUS_H
#define CTW_BASE_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ctw_status {
    CTW_OK = 0,
    CTW_EINVAL,    /* a caller or client passed something out of range; nothing was done */
    CTW_EFORMAT,   /* a file or message is malformed */
    CTW_EUNSUP,    /* well formed, but not supported; the message names what is supported */
    CTW_ENOMEM,    /* host or device memory is exhausted, or a limit would be exceeded */
    CTW_EIO,       /* file or socket error */
    CTW_ENOTFOUND, /* no such file, job or model */
    CTW_EBUSY,     /* a bounded queue is full, or an address is in use; may be retried */
    CTW_ECANCELED, /* cancelled by the client or by shutdown */
    CTW_ENUMERIC,  /* NaN or infinity where a finite number is required */
    CTW_EDEVICE,   /* the accelerator failed; the backend must be closed */
    CTW_EINTERNAL, /* a bug in ctworker, detected */
    CTW_EREFUSED,  /* the client is not authorised: a missing or wrong token */
    CTW_N_STATUS
};

#define CTW_ERR_MSG_MAX 4096

struct ctw_err {
    enum ctw_status status;
    char msg[CTW_ERR_MSG_MAX];
};

#define CTW_MUST_CHECK __attribute__((warn_unused_result))
#define CTW_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))
#define CTW_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Fills *err (which may be NULL) and returns `status`. A message that is too long
 * is truncated and ends in "...". */
enum ctw_status ctw_fail(struct ctw_err *err, enum ctw_status status, const char *fmt, ...)
    CTW_PRINTF(3, 4);

/* Puts "prefix: " before the message in *err and returns its status. */
enum ctw_status ctw_fail_prefix(struct ctw_err *err, const char *fmt, ...) CTW_PRINTF(2, 3);

/* "ok", "invalid", "format", ...: the code's name on the wire and in logs; never NULL. */
const char *ctw_status_name(enum ctw_status status);

/* The exit code of a command that ends with this status (sysexits: 64 usage, 65 bad data, ...). */
int ctw_status_exit_code(enum ctw_status status);

#ifdef __cplusplus
}
#endif

#endif
