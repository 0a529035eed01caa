/* Human-readable sizes and times. The result is written to the caller's buffer and returned. */
#ifndef CTW_BASE_UNITS_H
#define CTW_BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes, or a share of all there are, 0..1; both 0: none was given. */
struct ctw_amount {
    uint64_t bytes;
    double share;
};

/* "812 B", "1.5 GiB" */
const char *ctw_format_bytes(char *buf, size_t cap, double bytes);
/* "12 s", "1:02:03", "2 d 3 h" */
const char *ctw_format_duration(char *buf, size_t capacity, double seconds);

#endif
