#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static void digest_is(const void *data, size_t bytes, const char *want)
{
    struct ctw_sha256 s;
    char hex[65];
    ctw_sha256_init(&s);
    ctw_sha256_update(&s, data, bytes);
    ctw_sha256_final_hex(&s, hex);
    assert_string_equal(hex, want);
}

/* NIST's example vectors for FIPS 180-4 (SHA256.pdf, and SHA256ShortMsg/LongMsg lengths). */
static void fips_vectors(void **state)
{
    (void)state;
    digest_is("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_is("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    digest_is("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
              "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
              112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    digest_is("\xbd", 1, "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
    digest_is("\xc9\x8c\x8e\x55", 4,
              "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504");
    static const unsigned char zeros[1000];
    digest_is(zeros, 55, "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
    digest_is(zeros, 56, "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
    digest_is(zeros, 57, "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785");
    digest_is(zeros, 64, "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
    digest_is(zeros, 1000, "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53");
}

static void a_million_letters_in_odd_pieces(void **state)
{
    (void)state;
    struct ctw_sha256 s;
    char hex[65], piece[211];
    memset(piece, 'a', sizeof(piece));
    ctw_sha256_init(&s);
    size_t left = 1000000;
    for (size_t n = 0; left > 0; n = (n + 17) % sizeof(piece)) {
        size_t take = n < left ? n : left;
        ctw_sha256_update(&s, piece, take);
        left -= take;
    }
    ctw_sha256_final_hex(&s, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void pieces_do_not_matter(void **state)
{
    (void)state;
    unsigned char data[300];
    char whole[65], parts[65];
    struct ctw_sha256 s;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * 7);
    for (size_t n = 0; n <= sizeof(data); n++) {
        ctw_sha256_init(&s);
        ctw_sha256_update(&s, data, n);
        ctw_sha256_final_hex(&s, whole);
        ctw_sha256_init(&s);
        ctw_sha256_update(&s, data, n / 3);
        ctw_sha256_update(&s, NULL, 0);
        ctw_sha256_update(&s, data + n / 3, n - n / 3);
        ctw_sha256_final_hex(&s, parts);
        assert_string_equal(whole, parts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fips_vectors),
        cmocka_unit_test(a_million_letters_in_odd_pieces),
        cmocka_unit_test(pieces_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
