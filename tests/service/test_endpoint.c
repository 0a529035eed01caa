#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/endpoint.h"

static void wildcards_become_addresses(void **state)
{
    (void)state;
    struct ctw_endpoint e;
    struct ctw_err err;
    assert_int_equal(ctw_endpoint_parse(&e, "tcp://*:5555", &err), CTW_OK);
    assert_string_equal(e.url, "tcp://0.0.0.0:5555");
    assert_int_equal(ctw_endpoint_claim(&e, false, &err), CTW_EINVAL);
    assert_int_equal(ctw_endpoint_parse(&e, "tcp://:5555", &err), CTW_OK);
    assert_string_equal(e.url, "tcp://0.0.0.0:5555");
    assert_int_equal(ctw_endpoint_parse(&e, "tcp://[::1]:7", &err), CTW_OK);
    assert_string_equal(e.url, "tcp://[::1]:7");
    assert_string_equal(e.host, "::1");
}

static void a_held_lock_is_seen(void **state)
{
    (void)state;
    struct ctw_endpoint e;
    struct ctw_err err;
    char dir[] = "/tmp/ctw-endpoint-XXXXXX", url[64];
    int64_t pid;
    assert_non_null(mkdtemp(dir));
    snprintf(url, sizeof(url), "ipc://%s/s", dir);
    assert_int_equal(ctw_endpoint_parse(&e, url, &err), CTW_OK);
    assert_int_equal(ctw_endpoint_claim(&e, false, &err), CTW_OK);
    assert_true(ctw_endpoint_held(e.path, &pid));
    assert_int_equal(pid, getpid());
    ctw_endpoint_release(&e);
    assert_false(ctw_endpoint_held(e.path, &pid));
    assert_int_equal(pid, 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wildcards_become_addresses),
        cmocka_unit_test(a_held_lock_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
