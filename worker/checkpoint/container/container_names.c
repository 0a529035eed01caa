/* The tensors of all of a container's files, by name. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/container/container_internal.h"

static uint32_t find_slot(const struct ctw_container *c, const char *name)
{
    uint32_t slot = (uint32_t)ctw_hash(0, name, strlen(name)) & c->slot_mask;
    while (c->slots[slot] != 0 && strcmp(c->tensors[c->slots[slot] - 1].name, name) != 0)
        slot = (slot + 1) & c->slot_mask;
    return slot;
}

const struct ctw_tensor *ctw_container_find(const struct ctw_container *c, const char *name)
{
    uint32_t slot = find_slot(c, name);
    return c->slots[slot] == 0 ? NULL : &c->tensors[c->slots[slot] - 1];
}

void ctw_odd_count(struct ctw_odd *odd, const char *tensor, const char *other, const char *shard)
{
    if (odd->n++ == 0)
        *odd = (struct ctw_odd){.n = 1, .tensor = tensor, .other = other, .shard = shard};
}

const char *ctw_odd_more(const struct ctw_odd *odd, char buf[48])
{
    buf[0] = '\0';
    if (odd->n > 1)
        (void)snprintf(buf, 48, " (and %" PRId64 " more tensor%s)", odd->n - 1,
                       odd->n > 2 ? "s" : "");
    return buf;
}

/*
 * Accepts a second tensor of one name only if both are equal: transformers reads the last shard's,
 * so the names of the shards would choose between two that differ.
 */
static enum ctw_status check_copy(const struct ctw_container *c, const struct ctw_tensor *kept,
                                  const struct ctw_tensor *copy, struct ctw_err *err)
{
    bool equal =
        kept->dtype == copy->dtype && kept->n_dims == copy->n_dims &&
        memcmp(kept->shape, copy->shape, sizeof(kept->shape)) == 0 && kept->bytes == copy->bytes &&
        (c->headers_alone ||
         memcmp(ctw_container_data(c, kept), ctw_container_data(c, copy), kept->bytes) == 0);
    if (equal)
        return CTW_OK;
    return ctw_fail(err, CTW_EFORMAT,
                    "%s: tensor %s is also in %s, and the two differ; remove the shard that does "
                    "not belong to the model from the folder%s%s",
                    c->files[copy->file].name, kept->name, c->files[kept->file].name,
                    c->list_name != NULL ? " and from " : "",
                    c->list_name != NULL ? c->list_name : "");
}

/* An empty table with room for this many names. */
static enum ctw_status open_slots(struct ctw_container *c, size_t total, struct ctw_err *err)
{
    size_t n_slots = 4;
    while (n_slots < 2 * total && n_slots < (size_t)1 << 31)
        n_slots *= 2;
    if (total >= n_slots)
        return ctw_fail(err, CTW_EUNSUP, "found %zu tensors, more than are supported", total);
    ctw_free(c->slots);
    c->slots = ctw_calloc(n_slots, sizeof(*c->slots));
    c->slot_mask = (uint32_t)(n_slots - 1);
    return c->slots != NULL
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "out of memory for the names of %zu tensors", total);
}

/* Joins the files' tensors into one array and one table of names. */
enum ctw_status ctw_container_collect(struct ctw_container *c, struct ctw_err *err)
{
    size_t total = 0;
    struct ctw_odd copies = {0};
    char more[48];
    for (int f = 0; f < c->n_files; f++)
        total += (size_t)c->files[f].records.n_tensors;
    enum ctw_status st = open_slots(c, total, err);
    if (st != CTW_OK)
        return st;
    c->tensors = ctw_calloc(total, sizeof(*c->tensors));
    if (c->tensors == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the names of %zu tensors", total);
    for (int f = 0; f < c->n_files; f++)
        for (int64_t i = 0; i < c->files[f].records.n_tensors && st == CTW_OK; i++) {
            struct ctw_tensor *t = &c->tensors[c->n_tensors];
            *t = c->files[f].records.tensors[i];
            t->file = f;
            uint32_t slot = find_slot(c, t->name);
            if (c->slots[slot] == 0) {
                c->slots[slot] = (uint32_t)++c->n_tensors;
                continue;
            }
            const struct ctw_tensor *kept = &c->tensors[c->slots[slot] - 1];
            ctw_odd_count(&copies, t->name, c->files[f].name, c->files[kept->file].name);
            st = check_copy(c, kept, t, err);
        }
    if (st == CTW_OK && copies.n > 0)
        ctw_warn("%s: tensor %s is also in %s%s; the copies are equal", copies.other, copies.tensor,
                 copies.shard, ctw_odd_more(&copies, more));
    return st;
}

static int by_place(const void *left, const void *right)
{
    const struct ctw_tensor *a = left, *b = right;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

enum ctw_status ctw_container_rename(struct ctw_container *c, struct ctw_tensor *tensors, int64_t n,
                                     char *names, struct ctw_err *err)
{
    ctw_free(c->tensors);
    ctw_free(c->names);
    c->tensors = tensors;
    c->names = names;
    c->n_tensors = n;
    enum ctw_status st = open_slots(c, (size_t)n, err);
    qsort(tensors, (size_t)n, sizeof(*tensors), by_place);
    for (int64_t i = 0; i < n && st == CTW_OK; i++) {
        uint32_t slot = find_slot(c, tensors[i].name);
        if (c->slots[slot] != 0)
            st = ctw_fail(err, CTW_EFORMAT, "%s: two tensors are the model's %s",
                          c->files[tensors[i].file].name, tensors[i].name);
        c->slots[slot] = (uint32_t)i + 1;
    }
    return st;
}
