/*
 * Who may ask what over tcp: the tokens of a file, each with a name and a role. Over ipc the system
 * sees to it: only processes of this user get in, and they may do everything.
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
    bool admin;               /* else it may score, and sees its own jobs only */
    unsigned char digest[32]; /* sha256 of the token, which is not kept */
};

struct ctw_auth {
    struct ctw_auth_entry *entries;
    int n; /* 0: no tokens are asked for */
};

/*
 * Reads lines `NAME ROLE TOKEN`, ROLE being score or admin, or one bare token, which is named admin
 * and may do everything. Empty lines and lines that begin with # are passed over. Others than this
 * user must not be able to read the file. No message holds a token.
 */
enum ctw_status ctw_auth_read(struct ctw_auth *out, const char *path,
                              struct ctw_err *err) CTW_MUST_CHECK;
void ctw_auth_fini(struct ctw_auth *a);

/* Whose token it is; NULL: nobody's. Takes as long for each token of one length. */
const struct ctw_auth_entry *ctw_auth_find(const struct ctw_auth *a, struct ctw_slice token);

/*
 * A client's token: the last word of the file's first line, so that a file of either form will do;
 * without a file, that of the environment variable CTW_TOKEN. "" when there is none.
 */
enum ctw_status ctw_auth_client_token(const char *path, char out[CTW_TOKEN_MAX],
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
