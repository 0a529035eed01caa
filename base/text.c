#include "base/text.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

const char *ctw_format_bytes(char *buf, size_t cap, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (bytes >= 1024 && u + 1 < CTW_COUNT(units)) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, cap, u == 0 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
    return buf;
}

const char *ctw_format_duration(char *buf, size_t capacity, double seconds)
{
    long s = (long)seconds;
    if (s < 60)
        snprintf(buf, capacity, "%ld s", s);
    else if (s < 86400)
        snprintf(buf, capacity, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, capacity, "%ld d %ld h", s / 86400, s / 3600 % 24);
    return buf;
}

bool ctw_is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    size_t n = strlen(name);
    return n >= 1 && n <= 64 && name[0] != '.' && strspn(name, allowed) == n;
}
