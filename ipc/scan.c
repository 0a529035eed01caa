/* Checks the bounds of a message on its bytes, before any allocation. */
#include <inttypes.h>

#include "ipc/codec.h"
#include "ipc/limits.h"

struct header {
    size_t bytes;     /* length of the header itself */
    uint64_t payload; /* bytes that follow the header */
    uint64_t elements;
    bool container;
};

static uint64_t big_endian(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* The form of types 0xc0 .. 0xdf. False: the protocol does not use the type. */
static bool long_header(uint8_t type, uint8_t *len_bytes, uint8_t *payload, int *factor)
{
    static const struct {
        uint8_t len, payload, factor;
        bool ok;
    } table[32] = {
        [0x00] = {.ok = true},           /* nil */
        [0x02] = {.ok = true},           /* false */
        [0x03] = {.ok = true},           /* true */
        [0x04] = {.len = 1, .ok = true}, /* bin 8, 16, 32 */
        [0x05] = {.len = 2, .ok = true},
        [0x06] = {.len = 4, .ok = true},
        [0x0a] = {.payload = 4, .ok = true}, /* float 32, 64 */
        [0x0b] = {.payload = 8, .ok = true},
        [0x0c] = {.payload = 1, .ok = true}, /* uint */
        [0x0d] = {.payload = 2, .ok = true},
        [0x0e] = {.payload = 4, .ok = true},
        [0x0f] = {.payload = 8, .ok = true},
        [0x10] = {.payload = 1, .ok = true}, /* int */
        [0x11] = {.payload = 2, .ok = true},
        [0x12] = {.payload = 4, .ok = true},
        [0x13] = {.payload = 8, .ok = true},
        [0x19] = {.len = 1, .ok = true}, /* str */
        [0x1a] = {.len = 2, .ok = true},
        [0x1b] = {.len = 4, .ok = true},
        [0x1c] = {.len = 2, .factor = 1, .ok = true}, /* array */
        [0x1d] = {.len = 4, .factor = 1, .ok = true},
        [0x1e] = {.len = 2, .factor = 2, .ok = true}, /* map */
        [0x1f] = {.len = 4, .factor = 2, .ok = true},
    };
    if (!table[type - 0xc0].ok)
        return false;
    *len_bytes = table[type - 0xc0].len;
    *payload = table[type - 0xc0].payload;
    *factor = table[type - 0xc0].factor;
    return true;
}

static enum ctw_status read_header(const uint8_t *p, size_t left, size_t at, struct header *h,
                                   struct ctw_err *err)
{
    uint8_t type = p[0];
    *h = (struct header){.bytes = 1};
    if (type < 0x80 || type >= 0xe0)
        return CTW_OK;
    if (type < 0xa0) {
        h->container = true;
        h->elements = (uint64_t)(type & 0x0f) * (type < 0x90 ? 2 : 1);
        return CTW_OK;
    }
    if (type < 0xc0) {
        h->payload = type & 0x1f;
        return CTW_OK;
    }
    uint8_t len_bytes, payload;
    int factor;
    if (!long_header(type, &len_bytes, &payload, &factor))
        return ctw_fail(err, CTW_EFORMAT,
                        "byte %zu: this protocol does not use the msgpack type 0x%02x (nor any "
                        "extension type)",
                        at, type);
    if (left < 1 + (size_t)len_bytes)
        return ctw_fail(err, CTW_EFORMAT, "the message ends inside the header at byte %zu", at);
    uint64_t length = big_endian(p + 1, len_bytes);
    h->bytes = 1 + (size_t)len_bytes;
    h->container = factor != 0;
    h->elements = length * (uint64_t)factor;
    h->payload = factor != 0 ? 0 : payload + length;
    return CTW_OK;
}

static enum ctw_status check(const struct header *h, size_t at, size_t left, uint64_t n_elements,
                             int depth, struct ctw_err *err)
{
    if (h->payload > left)
        return ctw_fail(err, CTW_EFORMAT,
                        "byte %zu claims %" PRIu64
                        " bytes, but %zu are left: the message is truncated",
                        at, h->payload, left);
    if (h->elements > left) /* every element takes at least one byte */
        return ctw_fail(err, CTW_EFORMAT,
                        "byte %zu claims %" PRIu64 " elements, but %zu bytes are left", at,
                        h->elements, left);
    if (n_elements > CTW_IPC_ELEMENTS)
        return ctw_fail(err, CTW_EFORMAT,
                        "the message holds more than %d elements: send bulk data as bin",
                        CTW_IPC_ELEMENTS);
    if (h->container && depth >= CTW_IPC_DEPTH)
        return ctw_fail(err, CTW_EFORMAT, "the message is nested more than %d deep", CTW_IPC_DEPTH);
    return CTW_OK;
}

enum ctw_status ctw_wire_scan(const void *data, size_t bytes, struct ctw_err *err)
{
    const uint8_t *p = data;
    uint64_t open[CTW_IPC_DEPTH + 1] = {1}; /* elements still expected, by depth */
    uint64_t n_elements = 1;
    int depth = 0;
    size_t at = 0;
    while (depth >= 0) {
        if (open[depth] == 0) {
            depth--;
            continue;
        }
        open[depth]--;
        if (at >= bytes)
            return ctw_fail(err, CTW_EFORMAT, "the message is truncated: it ends at byte %zu", at);
        struct header h;
        enum ctw_status st = read_header(p + at, bytes - at, at, &h, err);
        if (st != CTW_OK)
            return st;
        n_elements += h.elements;
        st = check(&h, at, bytes - at - h.bytes, n_elements, depth, err);
        if (st != CTW_OK)
            return st;
        at += h.bytes + (size_t)h.payload;
        if (h.container)
            open[++depth] = h.elements;
    }
    if (at != bytes)
        return ctw_fail(err, CTW_EFORMAT, "%zu bytes follow the message's end at byte %zu",
                        bytes - at, at);
    return CTW_OK;
}
