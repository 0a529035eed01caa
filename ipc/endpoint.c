#include "ipc/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const size_t path_max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

/* ---- parsing ---- */

static enum ctw_status parse_ipc(struct ctw_endpoint *e, const char *path, struct ctw_err *err)
{
    char cwd[PATH_MAX] = "", absolute[PATH_MAX];
    if (path[0] == '\0')
        return ctw_fail(err, CTW_EINVAL, "ipc:// needs a path: ipc:///run/user/1000/worker.sock");
    if (path[0] != '/' && getcwd(cwd, sizeof(cwd)) == NULL)
        return ctw_fail(err, CTW_EIO, "the working directory is gone (%s): give an absolute path",
                        strerror(errno));
    const char *slash = path[0] == '/' ? "" : "/";
    int n = snprintf(absolute, sizeof(absolute), "%s%s%s", cwd, slash, path);
    if (n < 0 || (size_t)n > path_max)
        return ctw_fail(err, CTW_EINVAL,
                        "the socket path %s%s%s has %d bytes, but the system allows %zu: use a "
                        "shorter path, for example under /tmp",
                        cwd, slash, path, n, path_max);
    snprintf(e->url, sizeof(e->url), "ipc://%.*s", (int)path_max, absolute);
    e->path = e->url + strlen("ipc://");
    return CTW_OK;
}

static enum ctw_status parse_tcp(struct ctw_endpoint *e, const char *url, struct ctw_err *err)
{
    const char *host = url + strlen("tcp://");
    const char *colon = strrchr(host, ':');
    const char *bracket = strrchr(host, ']');
    char *end = NULL;
    long port = -1;
    if (colon != NULL && (bracket == NULL || colon > bracket) && colon[1] >= '0' && colon[1] <= '9')
        port = strtol(colon + 1, &end, 10);
    if (end == NULL || *end != '\0' || port < 0 || port > 65535 || strlen(url) >= sizeof(e->url))
        return ctw_fail(err, CTW_EINVAL,
                        "\"%s\": expected tcp://HOST:PORT, for example tcp://127.0.0.1:5555", url);
    size_t n = (size_t)(colon - host);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    }
    e->port = (int)port;
    /* nng can listen on these wildcards but not dial them, as the self-probe and clients must. */
    if (n == 0 || (n == 1 && host[0] == '*')) {
        snprintf(e->host, sizeof(e->host), "0.0.0.0");
        snprintf(e->url, sizeof(e->url), "tcp://0.0.0.0:%d", e->port);
        return CTW_OK;
    }
    memcpy(e->host, host, n);
    e->host[n] = '\0';
    snprintf(e->url, sizeof(e->url), "%s", url);
    return CTW_OK;
}

enum ctw_status ctw_endpoint_parse(struct ctw_endpoint *out, const char *url, struct ctw_err *err)
{
    memset(out, 0, sizeof(*out));
    out->lock_fd = -1;
    if (strncmp(url, "ipc://", 6) == 0)
        return parse_ipc(out, url + 6, err);
    if (strncmp(url, "tcp://", 6) == 0)
        return parse_tcp(out, url, err);
    return ctw_fail(err, CTW_EINVAL,
                    "\"%s\" is not an address: expected ipc:///PATH or tcp://HOST:PORT", url);
}

/* ---- tcp ---- */

static bool is_wildcard(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (a->sa_family != AF_INET6)
        return false;
    return IN6_IS_ADDR_UNSPECIFIED(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr32[3] == 0);
}

static enum ctw_status check_host(const struct ctw_endpoint *e, struct ctw_err *err)
{
    bool any = false;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    /* Asks the resolver, because it also treats "0" and "0x0" as the wildcard. */
    int rc = getaddrinfo(e->host, NULL, &hints, &list);
    if (rc != 0)
        return ctw_fail(err, CTW_EINVAL, "\"%s\": %s: give an address of this machine", e->url,
                        gai_strerror(rc));
    for (struct addrinfo *a = list; a != NULL; a = a->ai_next)
        any = any || is_wildcard(a->ai_addr);
    freeaddrinfo(list);
    if (any)
        return ctw_fail(err, CTW_EINVAL,
                        "\"%s\" would listen on every network of this machine, without encryption: "
                        "give one address, for example tcp://127.0.0.1:%d, or pass "
                        "--insecure-bind-any",
                        e->url, e->port);
    return CTW_OK;
}

/* ---- ipc ---- */

static void lock_path(const char *path, char out[CTW_URL_MAX])
{
    snprintf(out, CTW_URL_MAX, "%s.lock", path);
}

/* Opens and locks PATH.lock. -1 with errno EWOULDBLOCK: another process holds the lock. */
static int take_lock(const char *path)
{
    char name[CTW_URL_MAX];
    lock_path(path, name);
    for (;;) {
        int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return -1;
        struct stat of_fd, of_name;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &of_fd) != 0) {
            int saved = errno;
            close(fd);
            errno = saved;
            return -1;
        }
        /* The previous holder may have removed the file between open() and flock(). */
        if (stat(name, &of_name) == 0 && of_name.st_ino == of_fd.st_ino &&
            of_name.st_dev == of_fd.st_dev)
            return fd;
        close(fd);
    }
}

static void drop_lock(const char *path, int fd)
{
    char name[CTW_URL_MAX];
    lock_path(path, name);
    unlink(name);
    close(fd);
}

static void read_pid(const char *path, char out[32])
{
    char name[CTW_URL_MAX];
    lock_path(path, name);
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = fd < 0 ? 0 : read(fd, out, 31);
    out[n < 0 ? 0 : n] = '\0';
    out[strspn(out, "0123456789")] = '\0';
    if (fd >= 0)
        close(fd);
}

static enum ctw_status check_place(const char *path, struct ctw_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? CTW_OK : ctw_fail(err, CTW_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return ctw_fail(err, CTW_EINVAL, "%s exists and is not a socket: give another path", path);
    if (st.st_uid != geteuid())
        return ctw_fail(err, CTW_EINVAL, "%s is a socket of another user: give another path", path);
    return CTW_OK;
}

static enum ctw_status check_folder(const char *path, struct ctw_err *err)
{
    char dir[CTW_URL_MAX];
    snprintf(dir, sizeof(dir), "%s", path);
    *strrchr(dir, '/') = '\0';
    struct stat st;
    if (stat(dir[0] == '\0' ? "/" : dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return ctw_fail(err, CTW_EINVAL, "%s: the folder %s does not exist: create it first", path,
                        dir);
    return CTW_OK;
}

enum ctw_status ctw_endpoint_claim(struct ctw_endpoint *e, bool allow_any, struct ctw_err *err)
{
    if (e->path == NULL)
        return allow_any ? CTW_OK : check_host(e, err);
    enum ctw_status st = check_folder(e->path, err);
    if (st == CTW_OK)
        st = check_place(e->path, err);
    if (st != CTW_OK)
        return st;
    e->lock_fd = take_lock(e->path);
    if (e->lock_fd < 0 && errno == EWOULDBLOCK) {
        char pid[32];
        read_pid(e->path, pid);
        return ctw_fail(err, CTW_EBUSY,
                        "another worker (process %s) listens on %s: use it, stop it, or give "
                        "another --listen or --name",
                        pid[0] == '\0' ? "unknown" : pid, e->url);
    }
    if (e->lock_fd < 0)
        return ctw_fail(err, CTW_EIO, "%s.lock: %s", e->path, strerror(errno));
    char text[32];
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(e->lock_fd, 0) != 0 || write(e->lock_fd, text, (size_t)n) != n) {
        st = ctw_fail(err, CTW_EIO, "%s.lock: %s", e->path, strerror(errno));
        ctw_endpoint_release(e);
    }
    return st;
}

void ctw_endpoint_release(struct ctw_endpoint *e)
{
    if (e->lock_fd < 0)
        return;
    drop_lock(e->path, e->lock_fd);
    e->lock_fd = -1;
}

bool ctw_endpoint_held(const char *path, int64_t *pid)
{
    char name[CTW_URL_MAX], text[32];
    *pid = 0;
    lock_path(path, name);
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    if (held) {
        read_pid(path, text);
        *pid = strtoll(text, NULL, 10);
    }
    return held;
}

bool ctw_endpoint_clean(const char *path)
{
    if (strlen(path) > path_max || check_place(path, NULL) != CTW_OK)
        return false;
    int fd = take_lock(path);
    if (fd < 0)
        return false;
    unlink(path);
    drop_lock(path, fd);
    return true;
}

/* ---- the private folder ---- */

static bool is_private_dir(const char *dir)
{
    struct stat st;
    return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & 077) == 0;
}

static const char *xdg_dir(void)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    return xdg != NULL && xdg[0] == '/' && is_private_dir(xdg) ? xdg : NULL;
}

const char *ctw_runtime_dir_passed_over(char *buf, size_t capacity)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (xdg == NULL || xdg[0] == '\0' || xdg_dir() != NULL)
        return NULL;
    const char *why = "is not an absolute path";
    if (xdg[0] == '/' && lstat(xdg, &st) != 0)
        why = strerror(errno);
    else if (xdg[0] == '/')
        why = "is not a folder that only this user can enter (mode 0700)";
    snprintf(buf, capacity, "XDG_RUNTIME_DIR=%s is ignored (%s): using /tmp/ctworker-%ld", xdg, why,
             (long)geteuid());
    return buf;
}

enum ctw_status ctw_runtime_dir(char *out, size_t capacity, struct ctw_err *err)
{
    const char *xdg = xdg_dir();
    int n;
    if (xdg != NULL)
        n = snprintf(out, capacity, "%s/ctworker", xdg);
    else
        n = snprintf(out, capacity, "/tmp/ctworker-%ld", (long)geteuid());
    if (n < 0 || (size_t)n >= capacity)
        return ctw_fail(err, CTW_EINVAL, "XDG_RUNTIME_DIR is too long: %s", xdg);
    if (mkdir(out, 0700) != 0 && errno != EEXIST)
        return ctw_fail(err, CTW_EIO, "%s: cannot create the folder: %s", out, strerror(errno));
    if (!is_private_dir(out))
        return ctw_fail(err, CTW_EIO,
                        "%s is not a folder that only this user can enter (mode 0700): remove it, "
                        "or set XDG_RUNTIME_DIR to a private folder; serve does not need one with "
                        "--listen ipc:///PATH",
                        out);
    return CTW_OK;
}
