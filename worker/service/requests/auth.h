/*
 * Access over tcp: the tokens of a file, each with a name and a role. Over ipc the system controls
 * access: only processes of this user can connect, and they may do everything.
 */
#ifndef CTW_WORKER_AUTH_H
#define CTW_WORKER_AUTH_H

#include <stdbool.h>

#include "ipc/codec.h"

enum {
    CTW_AUTH_NAME_MAX = 65, /* with the NUL */
    CTW_TOKEN_MIN = 16,
    CTW_TOKEN_MAX = 512,
    CTW_AUTH_ENTRIES = 256
};

struct ctw_auth_entry {
    char name[CTW_AUTH_NAME_MAX];
    bool admin;               /* false: may score, and sees only its own jobs */
    unsigned char digest[32]; /* sha256 of the token; the token is not kept */
};

struct ctw_auth {
    struct ctw_auth_entry *entries;
    int n; /* 0: no tokens are needed */
};

/*
 * Reads lines `NAME ROLE TOKEN`, ROLE being score or admin, or one bare token, which gets the name
 * and the role admin. Empty lines and lines that begin with # are ignored. Only this user may be
 * able to read the file. No message contains a token.
 */
enum ctw_status ctw_auth_read(struct ctw_auth *out, const char *path,
                              struct ctw_err *err) CTW_MUST_CHECK;
void ctw_auth_fini(struct ctw_auth *a);

/* The entry of this token; NULL: none. The time taken depends only on the token's length. */
const struct ctw_auth_entry *ctw_auth_find(const struct ctw_auth *a, struct ctw_span token);

/*
 * A client's token: the last word of the file's first line, so that a file of either form works;
 * without a file, the environment variable CTW_TOKEN. "" if there is no token.
 */
enum ctw_status ctw_auth_client_token(const char *path, char out[CTW_TOKEN_MAX],
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
