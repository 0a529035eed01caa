#include "worker/service/requests/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/sha256.h"
#include "base/text.h"

enum { FILE_BYTES = 1 << 18, MAX_WORDS = 4 };

/* ---- reading ---- */

/* The whole file, NUL-terminated. `is_private`: refused if other users can read or write it. */
static enum ctw_status read_file(const char *path, bool is_private, char **out, struct ctw_err *err)
{
    struct stat st;
    char *text = NULL;
    enum ctw_status status = CTW_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang us */
    if (fd < 0 || fstat(fd, &st) != 0)
        status = ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO, "--token-file %s: %s",
                          path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = ctw_fail(err, CTW_EINVAL, "--token-file %s: expected a regular file", path);
    else if (is_private && (st.st_uid != geteuid() || (st.st_mode & 077) != 0))
        status = ctw_fail(
            err, CTW_EINVAL,
            "--token-file %s: other users can read or write it (mode %04o, owner %ld): make "
            "yourself its owner and give it mode 0600",
            path, (unsigned)(st.st_mode & 07777), (long)st.st_uid);
    else if ((text = ctw_calloc(FILE_BYTES + 1, 1)) == NULL)
        status = ctw_fail(err, CTW_ENOMEM, "--token-file: out of memory");
    ssize_t n = 0, got = status == CTW_OK ? 1 : 0;
    for (; got > 0 && n < FILE_BYTES; n += got) {
        got = read(fd, text + n, (size_t)(FILE_BYTES - n));
        if (got < 0)
            status = ctw_fail(err, CTW_EIO, "--token-file %s: %s", path, strerror(errno));
    }
    if (status == CTW_OK && (n == FILE_BYTES || strlen(text) != (size_t)n))
        status = ctw_fail(err, CTW_EINVAL, "--token-file %s: expected lines NAME ROLE TOKEN", path);
    if (fd >= 0)
        close(fd);
    if (status != CTW_OK) {
        ctw_free(text);
        text = NULL;
    }
    *out = text;
    return status;
}

/* Splits the line at `*at` into at most MAX_WORDS words and advances; returns the number of words.
 */
static int next_line(char **at, char *words[MAX_WORDS])
{
    char *line = *at, *rest = NULL;
    size_t n = strcspn(line, "\n");
    *at = line + n + (line[n] != '\0');
    line[n] = '\0';
    int n_words = 0;
    if (line[strspn(line, " \t\r")] == '#')
        return 0;
    for (char *word = strtok_r(line, " \t\r", &rest); word != NULL && n_words < MAX_WORDS;
         word = strtok_r(NULL, " \t\r", &rest))
        words[n_words++] = word;
    return n_words;
}

static bool is_token(const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    }
    return n >= CTW_TOKEN_MIN && n < CTW_TOKEN_MAX;
}

static void digest_of(const void *data, size_t bytes, unsigned char out[32])
{
    struct ctw_sha256 s;
    ctw_sha256_init(&s);
    ctw_sha256_update(&s, data, bytes);
    ctw_sha256_final(&s, out);
}

static enum ctw_status add_entry(struct ctw_auth *a, const char *where, char *const *words,
                                 int n_words, struct ctw_err *err)
{
    const char *name = n_words == 3 ? words[0] : "admin";
    const char *role = n_words == 3 ? words[1] : "admin";
    const char *token = words[n_words - 1];
    struct ctw_auth_entry *e = &a->entries[a->n];
    bool admin = strcmp(role, "admin") == 0;
    if (n_words != 3 && n_words != 1)
        return ctw_fail(err, CTW_EINVAL, "%s: expected NAME ROLE TOKEN", where);
    if (!ctw_is_name(name))
        return ctw_fail(err, CTW_EINVAL,
                        "%s: the name: expected 1 to 64 letters, digits, '.', '_' or '-'", where);
    if (!admin && strcmp(role, "score") != 0)
        return ctw_fail(err, CTW_EINVAL, "%s: the role of %s is neither score nor admin", where,
                        name);
    if (!is_token(token))
        return ctw_fail(err, CTW_EINVAL,
                        "%s: the token of %s: expected %d to %d printable characters, as `openssl "
                        "rand -hex 32` gives",
                        where, name, CTW_TOKEN_MIN, CTW_TOKEN_MAX - 1);
    if (a->n == CTW_AUTH_ENTRIES)
        return ctw_fail(err, CTW_EINVAL, "%s: more than %d tokens", where, CTW_AUTH_ENTRIES);
    snprintf(e->name, sizeof(e->name), "%s", name);
    e->admin = admin;
    digest_of(token, strlen(token), e->digest);
    for (int i = 0; i < a->n; i++) {
        if (strcmp(a->entries[i].name, name) == 0 ||
            memcmp(a->entries[i].digest, e->digest, 32) == 0)
            return ctw_fail(err, CTW_EINVAL, "%s: %s has the name or the token of an earlier line",
                            where, name);
    }
    a->n++;
    return CTW_OK;
}

enum ctw_status ctw_auth_read(struct ctw_auth *out, const char *path, struct ctw_err *err)
{
    char *text, *words[MAX_WORDS], where[512];
    int n_bare = 0;
    *out = (struct ctw_auth){0};
    enum ctw_status st = read_file(path, true, &text, err);
    if (st != CTW_OK)
        return st;
    out->entries = ctw_calloc(CTW_AUTH_ENTRIES + 1, sizeof(*out->entries));
    if (out->entries == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "--token-file: out of memory");
    char *at = text;
    for (int line = 1; st == CTW_OK && *at != '\0'; line++) {
        int n = next_line(&at, words);
        snprintf(where, sizeof(where), "--token-file %.400s: line %d", path, line);
        n_bare += n == 1;
        if (n_bare > 0 && out->n > 0 && n > 0)
            st = ctw_fail(err, CTW_EINVAL, "%s: a token without a name must be the only line",
                          where);
        else if (n > 0)
            st = add_entry(out, where, words, n, err);
    }
    if (st == CTW_OK && out->n == 0)
        st = ctw_fail(err, CTW_EINVAL, "--token-file %s: no token: expected lines NAME ROLE TOKEN",
                      path);
    explicit_bzero(text, FILE_BYTES);
    ctw_free(text);
    if (st != CTW_OK)
        ctw_auth_fini(out);
    return st;
}

void ctw_auth_fini(struct ctw_auth *a)
{
    ctw_free(a->entries);
    *a = (struct ctw_auth){0};
}

/* ---- asking ---- */

const struct ctw_auth_entry *ctw_auth_find(const struct ctw_auth *a, struct ctw_span token)
{
    const struct ctw_auth_entry *found = NULL;
    unsigned char digest[32];
    digest_of(token.n == 0 ? "" : token.data, token.n, digest);
    for (int i = 0; i < a->n; i++) { /* every entry and every byte: constant time */
        volatile unsigned char differ = 0;
        for (size_t k = 0; k < sizeof(digest); k++)
            differ |= (unsigned char)(digest[k] ^ a->entries[i].digest[k]);
        found = differ == 0 ? &a->entries[i] : found;
    }
    return token.n == 0 ? NULL : found;
}

enum ctw_status ctw_auth_client_token(const char *path, char out[CTW_TOKEN_MAX],
                                      struct ctw_err *err)
{
    char *text = NULL, *words[MAX_WORDS];
    const char *token = getenv("CTW_TOKEN");
    int n = 0;
    out[0] = '\0';
    if (path != NULL) {
        enum ctw_status st = read_file(path, false, &text, err);
        if (st != CTW_OK)
            return st;
        for (char *at = text; n == 0 && *at != '\0';)
            n = next_line(&at, words);
        token = n > 0 ? words[n - 1] : "";
    }
    enum ctw_status st = CTW_OK;
    if (token != NULL && strlen(token) < CTW_TOKEN_MAX && (path == NULL || token[0] != '\0'))
        snprintf(out, CTW_TOKEN_MAX, "%s", token);
    else if (token != NULL)
        st = ctw_fail(err, CTW_EINVAL, "%s%s: expected a token of at most %d characters",
                      path != NULL ? "--token-file " : "CTW_TOKEN", path != NULL ? path : "",
                      CTW_TOKEN_MAX - 1);
    ctw_free(text);
    return st;
}
