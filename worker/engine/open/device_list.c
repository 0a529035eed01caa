#include "worker/engine/open/device_list.h"

#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"

enum { MAX_NUMBER = 255 };

/* Reads a number; NULL: there is none, or it is too large. */
static const char *read_number(const char *p, int *out)
{
    *out = 0;
    if (*p < '0' || *p > '9')
        return NULL;
    for (; *p >= '0' && *p <= '9'; p++) {
        *out = *out * 10 + (*p - '0');
        if (*out > MAX_NUMBER)
            return NULL;
    }
    return p;
}

/* Finds the GPU whose UUID begins with the word at *p, which ends at a comma. */
static enum ctw_status find(const char **p, const char *backend, int *number, struct ctw_err *err)
{
    char uuid[48];
    size_t n = strcspn(*p, ",");
    snprintf(uuid, sizeof(uuid), "%.*s", (int)n, *p);
    *p += n;
    return ctw_backend_find(backend, uuid, number, err);
}

static enum ctw_status add(struct ctw_device_list *list, int number, const char *text,
                           struct ctw_err *err)
{
    for (int i = 0; i < list->n; i++)
        if (list->number[i] == number)
            return ctw_fail(err, CTW_EINVAL, "--devices %s: device %d is named twice", text,
                            number);
    if (list->n == CTW_MAX_DEVICES)
        return ctw_fail(err, CTW_EINVAL, "--devices %s: at most %d devices are supported", text,
                        CTW_MAX_DEVICES);
    list->number[list->n++] = number;
    return CTW_OK;
}

enum ctw_status ctw_device_list_parse(struct ctw_device_list *out, const char *text,
                                      const char *backend, struct ctw_err *err)
{
    const char *p = text;
    enum ctw_status st = CTW_OK;
    *out = (struct ctw_device_list){.all = strcmp(text, "all") == 0};
    while (!out->all) {
        int from, to;
        if (strncmp(p, "GPU-", 4) == 0 || strncmp(p, "MIG-", 4) == 0) {
            st = find(&p, backend, &from, err);
            if (st == CTW_OK)
                st = add(out, from, text, err);
            if (st != CTW_OK || *p++ == '\0')
                return st;
            continue;
        }
        p = read_number(p, &from);
        to = from;
        if (p != NULL && *p == '-')
            p = read_number(p + 1, &to);
        if (p == NULL || to < from || (*p != ',' && *p != '\0'))
            return ctw_fail(
                err, CTW_EINVAL,
                "--devices %s: expected all, numbers such as 0,1 or 0-3, or UUIDs of GPUs "
                "such as GPU-6b0c",
                text);
        for (int i = from; i <= to; i++) {
            st = add(out, i, text, err);
            if (st != CTW_OK)
                return st;
        }
        if (*p++ == '\0')
            break;
    }
    return CTW_OK;
}
