/* Sizes and times for people, and names that people choose. */
#ifndef CTW_BASE_TEXT_H
#define CTW_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes, or a share of all available bytes, 0..1. Both 0: not given. */
struct ctw_amount {
    uint64_t bytes;
    double share;
};

/* "812 B", "1.5 GiB"; written to buf, which is returned. */
const char *ctw_format_bytes(char *buf, size_t cap, double bytes);
/* "12 s", "1:02:03", "2 d 3 h" */
const char *ctw_format_duration(char *buf, size_t capacity, double seconds);

/* A name that is a valid file name: 1..64 letters, digits, '.', '_', '-', not starting with '.'. */
bool ctw_is_name(const char *name);

#endif
