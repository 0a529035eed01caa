#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/digest.h"

/* Digests by xxhash for Python, of each of XXH3's ways for short, middle and long inputs. */
static void is_xxh3_128(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *hex;
    } known[] = {
        {0, "99aa06d3014798d86001c324468d497f"},   {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
        {5, "f72d100531dfb71357c3cf21d8799995"},   {9, "82ddc95bc76007671c69c3f04aaed08c"},
        {17, "263f67af63088041735fe434ded90c3c"},  {129, "4e05eed4427255d51f8b5092c9ba3be8"},
        {241, "29bc1e9cffb6d79bc614c8c3575348c1"}, {5000, "5ecbf80121973a82ce29a19460ee1bfc"},
    };
    static unsigned char data[5000];
    for (int i = 0; i < 5000; i++)
        data[i] = (unsigned char)(i * 7 % 251);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        char hex[33];
        struct ctw_digest d = ctw_digest_of(data, known[i].bytes);
        for (int b = 0; b < 16; b++)
            (void)snprintf(hex + 2 * b, 3, "%02x", d.bytes[b]);
        assert_string_equal(hex, known[i].hex);
    }
}

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

/* Stored records were written with the digest of key and value in one block. */
static void a_pair_is_as_one_block(void **state)
{
    (void)state;
    static unsigned char data[900];
    for (int i = 0; i < 900; i++)
        data[i] = (unsigned char)(i * 7 % 251);
    for (size_t n = 0; n <= sizeof(data); n += n < 300 ? 7 : 50) {
        struct ctw_digest whole = ctw_digest_of(data, n);
        for (size_t first = 0; first <= n; first += 32) {
            struct ctw_digest pair = ctw_digest_of_pair(data, first, data + first, n - first);
            assert_memory_equal(&pair, &whole, sizeof(pair));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_xxh3_128),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(a_pair_is_as_one_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
