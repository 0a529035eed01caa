/* The identity and the outline of checkpoints that the test writes: what they cover, and in which
 * order it may come. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "small_checkpoint.h"
#include "worker/checkpoint/container/files_stamp.h"
#include "worker/checkpoint/container/shows_writes.h"
#include "worker/checkpoint/identity.h"
#include "worker/model/model.h"

/* What the checkpoint is, as a whole read of it says, by so many threads. */
static void read_identity(struct checkpoint *c, int n_threads, char out[65])
{
    struct ctw_err err = {0};
    struct ctw_model *m = open_ok(c);
    assert_int_equal(ctw_identity_read(m->identity, m->container, n_threads, NULL, &err), CTW_OK);
    assert_int_equal(ctw_identity_verify(m->identity, m->container, n_threads, NULL, &err), CTW_OK);
    assert_int_equal(strlen(ctw_identity_text(m->identity)), 64);
    memcpy(out, ctw_identity_text(m->identity), 65);
    ctw_model_close(m);
}

static void identity_tells_checkpoints_apart(void **state)
{
    struct checkpoint *c = *state;
    char first[65], other[65], moved[65];
    read_identity(c, 1, first);
    /* By hashlib and xxhash for Python, as docs/PROTOCOL.md defines it. */
    assert_string_equal(first, "91b7853e798f4966fd87e768ad8f85b6cf7d3df9eb400e9739f9f6d29767cd6b");
    read_identity(c, 3, other);
    assert_string_equal(other, first);
    c->config = BF16_CONFIG ", \"rope_theta\": 5000";
    read_identity(c, 1, other);
    assert_string_not_equal(other, first);
    c->config = BF16_CONFIG;
    /* What the model does not read cannot change a score. It does change where the others lie. */
    add(c, LAYER "self_attn.rotary_emb.inv_freq", "F32", "4", 16, NULL);
    read_identity(c, 1, other);
    assert_string_equal(other, first);
    drop(c, LAYER "self_attn.rotary_emb.inv_freq");
    /* Neither does the order of the tensors in the file; other dtypes of equal bytes do. */
    static char ones[4096];
    memset(ones, 1, sizeof(ones));
    find(c, LAYER "mlp.up_proj.weight")->data = ones;
    read_identity(c, 1, other);
    assert_string_not_equal(other, first);
    struct tensor up = *find(c, LAYER "mlp.up_proj.weight");
    drop(c, up.name);
    add(c, up.name, up.dtype, up.shape, up.bytes, ones);
    read_identity(c, 1, moved);
    assert_string_equal(moved, other);
    find(c, up.name)->dtype = "F16";
    read_identity(c, 1, moved);
    assert_string_not_equal(moved, other);
    find(c, up.name)->dtype = up.dtype;
    find(c, up.name)->data = NULL;
    /* Every byte of every tensor. */
    for (int i = 0; i < c->n; i++) {
        static char data[4096];
        assert_true(c->tensors[i].bytes <= sizeof(data));
        c->tensors[i].data = data;
        size_t last = c->tensors[i].bytes - 1;
        for (size_t n = 0; n < last + 61; n += 61) { /* and the last one */
            size_t at = n < last ? n : last;
            data[at] = 1;
            read_identity(c, 2, other);
            data[at] = 0;
            assert_string_not_equal(other, first);
        }
        read_identity(c, 2, other);
        assert_string_equal(other, first);
        c->tensors[i].data = NULL;
    }
}

static void read_outline(struct checkpoint *c, char out[65])
{
    struct ctw_model *m = open_ok(c);
    assert_string_equal(ctw_identity_text(m->identity), "");
    assert_int_equal(strlen(ctw_identity_outline(m->identity)), 64);
    memcpy(out, ctw_identity_outline(m->identity), 65);
    ctw_model_close(m);
}

/* The outline needs no byte of a tensor, and differs only where the identity does. */
static void an_outline_is_known_at_once(void **state)
{
    struct checkpoint *c = *state;
    static char ones[4096];
    char first[65], other[65];
    read_outline(c, first);
    memset(ones, 1, sizeof(ones));
    find(c, LAYER "mlp.up_proj.weight")->data = ones;
    read_outline(c, other);
    assert_string_equal(other, first);
    add(c, LAYER "self_attn.rotary_emb.inv_freq", "F32", "4", 16, NULL); /* not read */
    read_outline(c, other);
    assert_string_equal(other, first);
    drop(c, LAYER "self_attn.rotary_emb.inv_freq");
    find(c, LAYER "mlp.up_proj.weight")->dtype = "F16";
    read_outline(c, other);
    assert_string_not_equal(other, first);
    find(c, LAYER "mlp.up_proj.weight")->dtype = "BF16";
    c->config = BF16_CONFIG ", \"rope_theta\": 5000";
    read_outline(c, other);
    assert_string_not_equal(other, first);
    c->config = BF16_CONFIG;
    read_outline(c, other);
    assert_string_equal(other, first);
}

/* A block counts once; the identity is known with the last, whatever the order. */
static void identity_takes_blocks_in_any_order(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_err err = {0};
    char first[65];
    read_identity(c, 1, first);
    struct ctw_model *m = open_ok(c);
    for (int64_t i = ctw_container_count(m->container) - 1; i >= 0; i--) {
        const struct ctw_tensor *t = ctw_container_at(m->container, i);
        assert_string_equal(ctw_identity_text(m->identity), "");
        for (int twice = 0; twice < 2; twice++)
            ctw_identity_add(m->identity, ctw_identity_first_block(m->identity, t),
                             ctw_container_data(m->container, t), t->bytes);
    }
    assert_string_equal(ctw_identity_text(m->identity), first);
    atomic_bool stop = true;
    assert_int_equal(ctw_identity_verify(m->identity, m->container, 1, &stop, &err), CTW_ECANCELED);
    static char data[64];
    data[63] = 1;
    find(c, "model.norm.weight")->data = data;
    write_it(c);
    assert_int_equal(ctw_identity_verify(m->identity, m->container, 2, NULL, &err), CTW_EIO);
    assert_non_null(strstr(err.msg, "(tensor model.norm.weight has different bytes)"));
    ctw_model_close(m);
}

static void stamp_of(const struct checkpoint *c, int64_t later_s, char out[65])
{
    ctw_files_stamp(c->dir, (int64_t)time(NULL) + later_s, out);
}

/* The digest of one file's metadata, as docs/PROTOCOL.md defines it. */
static void digest_of_file(const struct checkpoint *c, const char *name, unsigned char out[32])
{
    char path[128], text[256];
    struct stat s;
    struct ctw_sha256 sha;
    path_of(c, name, path);
    assert_int_equal(stat(path, &s), 0);
    int n = snprintf(text, sizeof(text), "%s%c%llu %llu %lld %lld%09ld %lld%09ld", name, '\0',
                     (unsigned long long)s.st_dev, (unsigned long long)s.st_ino,
                     (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec,
                     (long long)s.st_ctim.tv_sec, s.st_ctim.tv_nsec);
    ctw_sha256_init(&sha);
    ctw_sha256_update(&sha, text, (size_t)n);
    ctw_sha256_final(&sha, out);
}

/* The folder is vouched for only while no write could have left its metadata as they are. */
static void a_stamp_follows_the_files(void **state)
{
    struct checkpoint *c = *state;
    char first[65], other[65], path[128], moved[128];
    unsigned char one[32], two[32];
    write_it(c);
    int folder = open(c->dir, O_RDONLY);
    bool shows_writes = ctw_file_shows_writes(folder);
    assert_int_equal(close(folder), 0);
    stamp_of(c, CTW_FILES_REST_S + 2, first);
    if (!shows_writes) {
        assert_string_equal(first, "");
        return;
    }
    digest_of_file(c, "config.json", one);
    digest_of_file(c, "model.safetensors", two);
    for (int i = 0; i < 32; i++) {
        (void)snprintf(other + 2 * (size_t)i, 3, "%02x", one[i] ^ two[i]);
    }
    assert_string_equal(first, other);
    stamp_of(c, CTW_FILES_REST_S - 2, other);
    assert_string_equal(other, "");
    path_of(c, "README.md", path); /* says nothing about the weights */
    assert_int_equal(symlink("nowhere", path), 0);
    stamp_of(c, CTW_FILES_REST_S + 2, other);
    assert_string_equal(other, first);
    assert_int_equal(unlink(path), 0);
    const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) { /* equal bytes, size and name, but another file */
        path_of(c, names[i], path);
        path_of(c, "before", moved);
        assert_int_equal(rename(path, moved), 0);
        stamp_of(c, CTW_FILES_REST_S + 2, other);
        assert_string_not_equal(other, first);
        write_it(c);
        stamp_of(c, CTW_FILES_REST_S + 2, other);
        assert_int_equal(strlen(other), 64);
        assert_string_not_equal(other, first);
        assert_int_equal(unlink(moved), 0);
    }
    ctw_files_stamp("/nowhere", 1, other);
    assert_string_equal(other, "");
    path_of(c, "elsewhere.json", path); /* in a file system that is not known to show writes */
    assert_int_equal(symlink("/proc/version", path), 0);
    stamp_of(c, CTW_FILES_REST_S + 2, other);
    assert_int_equal(unlink(path), 0);
    assert_string_equal(other, "");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(identity_tells_checkpoints_apart),
        TEST(an_outline_is_known_at_once),
        TEST(identity_takes_blocks_in_any_order),
        TEST(a_stamp_follows_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
