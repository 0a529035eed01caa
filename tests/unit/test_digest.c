#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/digest.h"

static void is_xxh3_128(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *hex;
    } known[] = {
        {0, "99aa06d3014798d86001c324468d497f"}, /* the format's own example of nothing */
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        char hex[33];
        struct ctw_digest d = ctw_digest_of("", known[i].bytes);
        for (int b = 0; b < 16; b++)
            (void)snprintf(hex + 2 * b, 3, "%02x", d.bytes[b]);
        assert_string_equal(hex, known[i].hex);
    }
}

/* Short, middle and long inputs go different ways through it. */
static void every_byte_counts(void **state)
{
    (void)state;
    static unsigned char data[2000];
    for (size_t n = 1; n <= sizeof(data); n += n < 300 ? 1 : 97) {
        struct ctw_digest before = ctw_digest_of(data, n);
        for (size_t at = 0; at < n; at += n < 300 ? 1 : 13) {
            data[at] ^= 0x10;
            struct ctw_digest after = ctw_digest_of(data, n);
            data[at] ^= 0x10;
            assert_memory_not_equal(&before, &after, sizeof(before));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_xxh3_128),
        cmocka_unit_test(every_byte_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
