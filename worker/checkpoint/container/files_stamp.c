#include "worker/checkpoint/container/files_stamp.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "worker/checkpoint/container/container.h"
#include "worker/checkpoint/container/shows_writes.h"

static bool is_json(const char *name)
{
    size_t n = strlen(name);
    return n >= 5 && strcmp(name + n - 5, ".json") == 0;
}

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

static void digest_file(const char *name, const struct stat *info, unsigned char digest[32])
{
    char text[160];
    struct ctw_sha256 sha;
    int n = snprintf(text, sizeof(text), "%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " %" PRId64,
                     (uint64_t)info->st_dev, (uint64_t)info->st_ino, (int64_t)info->st_size,
                     nanoseconds(&info->st_mtim), nanoseconds(&info->st_ctim));
    ctw_sha256_init(&sha);
    ctw_sha256_update(&sha, name, strlen(name) + 1);
    ctw_sha256_update(&sha, text, (size_t)n);
    ctw_sha256_final(&sha, digest);
}

/* Adds a file to the stamp. False: its metadata cannot vouch for its bytes. */
static bool add_file(int folder, const char *name, int64_t now_s, unsigned char stamp[32])
{
    struct stat info;
    unsigned char digest[32];
    int fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool ok = fd >= 0 && fstat(fd, &info) == 0, shows_writes = ok && ctw_file_shows_writes(fd);
    if (fd >= 0)
        (void)close(fd);
    if (!ok || !S_ISREG(info.st_mode))
        return ok;
    if (!shows_writes || info.st_ctim.tv_sec > now_s - CTW_FILES_REST_S)
        return false; /* not st_mtim, which programs set as they like */
    digest_file(name, &info, digest);
    for (int i = 0; i < 32; i++) /* in any order of the files */
        stamp[i] ^= digest[i];
    return true;
}

void ctw_files_stamp(const char *path, int64_t now_s, char out[65])
{
    unsigned char stamp[32] = {0};
    struct ctw_checkpoint_path place;
    bool ok = ctw_checkpoint_path(&place, path, NULL) == CTW_OK;
    DIR *listing = ok ? opendir(place.dir) : NULL;
    ok = listing != NULL;
    out[0] = '\0';
    for (const struct dirent *e; ok && (e = readdir(listing)) != NULL;)
        if (is_json(e->d_name) || ctw_checkpoint_has_file(&place, e->d_name))
            ok = add_file(dirfd(listing), e->d_name, now_s, stamp);
    if (listing != NULL)
        (void)closedir(listing);
    for (int i = 0; ok && i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", stamp[i]);
}
