/* Folders as a container, written by the test. */
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/container/container.h"
#include "worker/checkpoint/container/files_stamp.h"

#define INDEX "model.safetensors.index.json"

/* A fresh folder for each test, removed with what is in it. */
struct folder {
    char dir[64];
    char names[16][64];
    int n_names;
};

static int set_up(void **state)
{
    struct folder *f = calloc(1, sizeof(*f));
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/ctw-container-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    *state = f;
    return 0;
}

static const char *path_of(struct folder *f, const char *name)
{
    static char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    return path;
}

/* Remembers to remove it, and gives its path. */
static const char *new_path(struct folder *f, const char *name)
{
    (void)snprintf(f->names[f->n_names++], sizeof(f->names[0]), "%s", name);
    return path_of(f, name);
}

static int tear_down(void **state)
{
    struct folder *f = *state;
    while (f->n_names > 0)
        if (remove(path_of(f, f->names[--f->n_names])) != 0)
            return -1;
    int st = rmdir(f->dir);
    free(f);
    return st;
}

static void put(struct folder *f, const char *name, const void *text, size_t bytes)
{
    FILE *to = fopen(new_path(f, name), "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(text, 1, bytes, to), bytes);
    assert_int_equal(fclose(to), 0);
}

/* A safetensors file: the header, then data 0, 1, 2, ... */
static void put_tensors(struct folder *f, const char *name, const char *header, size_t data_bytes)
{
    unsigned char buf[4096] = {0};
    size_t n = strlen(header);
    buf[0] = (unsigned char)n;
    buf[1] = (unsigned char)(n >> 8);
    memcpy(buf + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        buf[8 + n + i] = (unsigned char)i;
    put(f, name, buf, 8 + n + data_bytes);
}

#define T(name, begin, end)                                                                        \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #begin "," #end "]}"

static const char two[] = "{" T("a", 0, 4) "," T("b", 4, 8) "}";
static const char one_c[] = "{" T("c", 0, 4) "}";

static void refused(struct folder *f, enum ctw_status want, const char *piece)
{
    struct ctw_container *c;
    struct ctw_err err = {0};
    enum ctw_status st = ctw_container_open(&c, f->dir, &err);
    assert_null(c);
    /* callers name the folder */
    if (st != want || strstr(err.msg, piece) == NULL || strstr(err.msg, f->dir) != NULL)
        fail_msg("status %d, \"%s\", expected \"%s\"", st, err.msg, piece);
}

static struct ctw_container *opened(struct folder *f)
{
    struct ctw_container *c;
    struct ctw_err err;
    if (ctw_container_open(&c, f->dir, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return c;
}

/* Of a checkpoint with more shards than a process may open files. */
static void too_many_open_files(void **state)
{
    struct folder *f = *state;
    struct rlimit before, few;
    put_tensors(f, "model.safetensors", two, 8);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    int fd = dup(2); /* the folder takes its number */
    assert_int_equal(close(fd), 0);
    few.rlim_cur = (rlim_t)fd + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    refused(f, CTW_EIO,
            "model.safetensors: cannot be opened: Too many open files (raise ulimit -n)");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void one_file(void **state)
{
    struct folder *f = *state;
    struct ctw_err err;
    put_tensors(f, "model.safetensors", two, 8);
    struct ctw_container *c = opened(f);
    assert_int_equal(ctw_container_count(c), 2);
    assert_int_equal(ctw_container_n_files(c), 1);
    assert_string_equal(ctw_container_file(c, 0), "model.safetensors");
    assert_int_equal(ctw_container_bytes(c), 8 + sizeof(two) - 1 + 8);
    const struct ctw_tensor *b = ctw_container_find(c, "b");
    assert_non_null(b);
    assert_ptr_equal(ctw_container_at(c, 1), b);
    assert_memory_equal(ctw_container_data(c, b), "\4\5\6\7", 4);
    assert_null(ctw_container_find(c, "B"));
    assert_null(ctw_container_find(c, ""));
    assert_int_equal(ctw_container_check_untouched(c, &err), CTW_OK);
    ctw_container_close(c);
    ctw_container_close(NULL);
}

static void put_index(struct folder *f, const char *map)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "{\"metadata\":{},\"weight_map\":{%s}}", map);
    put(f, INDEX, text, (size_t)n);
}

static void shards(void **state)
{
    struct folder *f = *state;
    put_index(f, "\"c\":\"x-2.safetensors\",\"b\":\"x-1.safetensors\",\"a\":\"x-1.safetensors\"");
    put_tensors(f, "x-1.safetensors", two, 8);
    put_tensors(f, "x-2.safetensors", one_c, 4);
    struct ctw_container *c = opened(f);
    assert_int_equal(ctw_container_count(c), 3);
    assert_int_equal(ctw_container_n_files(c), 2);
    const struct ctw_tensor *t = ctw_container_find(c, "c");
    assert_string_equal(ctw_container_file(c, t->file), "x-2.safetensors");
    assert_memory_equal(ctw_container_data(c, t), "\0\1\2\3", 4);
    t = ctw_container_find(c, "b");
    assert_string_equal(ctw_container_file(c, t->file), "x-1.safetensors");
    assert_memory_equal(ctw_container_data(c, t), "\4\5\6\7", 4);
    ctw_container_close(c);
}

/* Opens the folder with standard error in a file, and returns what was logged there. */
static struct ctw_container *opened_with_log(struct folder *f, char log[1024])
{
    FILE *to = tmpfile();
    int saved = dup(2);
    assert_non_null(to);
    assert_int_equal(dup2(fileno(to), 2), 2);
    struct ctw_container *c = opened(f);
    assert_int_equal(dup2(saved, 2), 2);
    assert_int_equal(close(saved), 0);
    rewind(to);
    log[fread(log, 1, 1023, to)] = '\0';
    assert_int_equal(fclose(to), 0);
    return c;
}

/* The shards' headers say where a tensor is; the log says where the index is wrong. */
static void a_stale_index_only_lists_the_shards(void **state)
{
    struct folder *f = *state;
    static const struct {
        const char *map, *log;
    } stale[] = {
        {"\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"c\":\"2.safetensors\"", INDEX
         ": tensor b should be in 2.safetensors, but is in 1.safetensors; it is read from there"},
        {"\"a\":\"2.safetensors\",\"b\":\"2.safetensors\",\"c\":\"1.safetensors\"",
         "tensor a should be in 2.safetensors, but is in 1.safetensors (and 2 more tensors);"},
        {"\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"",
         INDEX ": weight_map has no tensor b, but 1.safetensors has; it is read from there"},
        {"\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\","
         "\"d\":\"2.safetensors\",\"e\":\"1.safetensors\"",
         INDEX ": tensor d should be in 2.safetensors, but is in no shard (and 1 more tensor);"},
    };
    put_tensors(f, "1.safetensors", two, 8);
    put_tensors(f, "2.safetensors", one_c, 4);
    for (size_t i = 0; i < CTW_COUNT(stale); i++) {
        char log[1024];
        put_index(f, stale[i].map);
        struct ctw_container *c = opened_with_log(f, log);
        if (strstr(log, stale[i].log) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", log, stale[i].log);
        assert_int_equal(ctw_container_count(c), 3);
        assert_memory_equal(ctw_container_data(c, ctw_container_find(c, "b")), "\4\5\6\7", 4);
        assert_memory_equal(ctw_container_data(c, ctw_container_find(c, "c")), "\0\1\2\3", 4);
        assert_null(ctw_container_find(c, "d"));
        ctw_container_close(c);
        f->n_names--;
    }
    (void)new_path(f, INDEX);
}

/* transformers reads the last shard's: only an equal copy gives the same score. */
static void two_tensors_of_one_name_must_be_equal(void **state)
{
    struct folder *f = *state;
    char log[1024];
    static const char *const differ[] = {
        "{" T("c", 0, 4) "," T("a", 4, 8) "}",
        "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}," T("c", 4, 8) "}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]}," T("c", 4, 8) "}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}," T("c", 3, 7) "}",
    };
    put_tensors(f, "1.safetensors", two, 8);
    put_index(f, "\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"3.safetensors\"");
    put_tensors(f, "3.safetensors", "{" T("a", 0, 4) "," T("c", 4, 8) "}", 8);
    struct ctw_container *c = opened_with_log(f, log);
    if (strstr(log, "3.safetensors: tensor a is also in 1.safetensors; the copies are equal") ==
        NULL)
        fail_msg("\"%s\" does not speak of the copy", log);
    assert_int_equal(ctw_container_count(c), 3);
    assert_memory_equal(ctw_container_data(c, ctw_container_find(c, "c")), "\4\5\6\7", 4);
    ctw_container_close(c);
    for (size_t i = 0; i < CTW_COUNT(differ); i++) {
        f->n_names--;
        put_tensors(f, "3.safetensors", differ[i], i == 3 ? 7 : 8);
        refused(f, CTW_EFORMAT,
                "3.safetensors: tensor a is also in 1.safetensors, and the two differ; remove");
    }
}

static void an_index_must_list_good_shards(void **state)
{
    struct folder *f = *state;
    put_tensors(f, "1.safetensors", two, 8);
    put_index(f, "\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"3.safetensors\"");
    refused(f, CTW_ENOTFOUND, "3.safetensors: shard 2 of 2 is missing (" INDEX " names it)");
    put(f, "3.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{", 9);
    refused(f, CTW_EFORMAT, "3.safetensors: not a safetensors file");
    f->n_names -= 2;
    put_index(f, "\"a\":\"../1.safetensors\"");
    refused(f, CTW_EFORMAT, "expected the plain name of a .safetensors file in this folder");
    f->n_names--;
    put(f, INDEX, "{", 1);
    refused(f, CTW_EFORMAT, INDEX ": not valid JSON");
    (void)new_path(f, "3.safetensors");
}

static void links_as_in_the_hub_cache(void **state)
{
    struct folder *f = *state;
    put_tensors(f, "blob", two, 8);
    assert_int_equal(symlink("blob", new_path(f, "model.safetensors")), 0);
    ctw_container_close(opened(f));
    assert_int_equal(unlink(path_of(f, "model.safetensors")), 0);
    assert_int_equal(symlink("gone", path_of(f, "model.safetensors")), 0);
    refused(f, CTW_EIO, "model.safetensors: a symbolic link to a file that does not exist");
}

static void only_regular_files(void **state)
{
    struct folder *f = *state;
    assert_int_equal(mkfifo(new_path(f, "model.safetensors"), 0600), 0);
    refused(f, CTW_EIO, "model.safetensors: not a regular file");
    assert_int_equal(unlink(path_of(f, "model.safetensors")), 0);
    assert_int_equal(mkdir(path_of(f, "model.safetensors"), 0700), 0);
    refused(f, CTW_EIO, "model.safetensors: not a regular file");
}

static void broken_downloads(void **state)
{
    struct folder *f = *state;
    put(f, "model.safetensors", "", 0);
    refused(f, CTW_EFORMAT, "model.safetensors: the file is empty");
    f->n_names--;
    put(f, "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid\nsize 12\n", 55);
    refused(f, CTW_EFORMAT, "a Git LFS pointer of 55 bytes, not the file itself, which has 12");
    f->n_names--;
    put_tensors(f, "model.safetensors", two, 7);
    refused(f, CTW_EFORMAT, "a download was interrupted; fetch it again");
    f->n_names--;
    put(f, "model.safetensors", "\x99\0\0\0\0\0\0\0{}", 10);
    refused(f, CTW_EFORMAT,
            "has 10 bytes, but its header alone needs 153: a download was interrupted");
}

static void folders_without_safetensors(void **state)
{
    struct folder *f = *state;
    static const struct {
        const char *name, *piece;
    } found[] = {
        /* the message names each of these, although those before it exist as well */
        {"weights.pt", "weights.pt is a pickle, which can run code"},
        {"consolidated.00.pth", "consolidated.00.pth is a pickle"},
        {"pytorch_model-00002-of-00002.bin", "pytorch_model-00002-of-00002.bin is a pickle"},
        {"pytorch_model-00001-of-00002.bin", "pytorch_model-00001-of-00002.bin is a pickle"},
        {"consolidated.safetensors", "consolidated.safetensors is not named model.safetensors"},
        {"model-00001-of-00002.safetensors",
         "model-00001-of-00002.safetensors is one shard, but " INDEX " is missing"},
        {"adapter_model.safetensors", "adapter_model.safetensors is an adapter (LoRA)"},
    };
    refused(f, CTW_ENOTFOUND, "neither model.safetensors nor " INDEX " is in this folder");
    for (size_t i = 0; i < CTW_COUNT(found); i++) {
        put(f, found[i].name, "x", 1);
        refused(f, CTW_ENOTFOUND, found[i].piece);
    }
    struct ctw_container *c;
    struct ctw_err err;
    assert_int_equal(ctw_container_open(&c, "/tmp/ctw-no-such-folder", &err), CTW_ENOTFOUND);
    assert_string_equal(err.msg, "/tmp/ctw-no-such-folder: cannot be opened: no such folder");
    assert_int_equal(ctw_container_open(&c, path_of(f, "weights.pt"), &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "not a folder; give the folder"));
}

static void single_file_comes_before_the_index(void **state)
{
    struct folder *f = *state;
    put_tensors(f, "model.safetensors", two, 8);
    put(f, INDEX, "nonsense", 8);
    ctw_log_set_level(CTW_LOG_ERROR);
    struct ctw_container *c = opened(f);
    ctw_log_set_level(CTW_LOG_INFO);
    assert_int_equal(ctw_container_count(c), 2);
    ctw_container_close(c);
}

static void changed_files_are_noticed(void **state)
{
    struct folder *f = *state;
    struct ctw_err err;
    bool touched;
    put_tensors(f, "model.safetensors", two, 8);
    struct ctw_container *c = opened(f);
    assert_int_equal(truncate(path_of(f, "model.safetensors"), 20), 0);
    assert_int_equal(ctw_container_check(c, &touched, &err), CTW_EIO);
    assert_non_null(
        strstr(err.msg, "model.safetensors: the file became shorter while it was in use"));
    char byte;
    const struct ctw_tensor *t = ctw_container_at(c, 1);
    assert_int_equal(ctw_container_read(c, t->file, t->offset, &byte, 1, &err), CTW_EIO);
    assert_non_null(strstr(err.msg, ", now 20); load the model again once it is complete"));
    assert_int_equal(truncate(path_of(f, "model.safetensors"), 1000), 0);
    assert_int_equal(ctw_container_check(c, &touched, &err), CTW_EIO);
    assert_non_null(strstr(err.msg, "model.safetensors: the file changed while it was in use"));
    ctw_container_close(c);
    f->n_names--;
    put_tensors(f, "model.safetensors", two, 8);
    c = opened(f);
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, path_of(f, "model.safetensors"), times, 0), 0);
    assert_int_equal(ctw_container_check_untouched(c, &err), CTW_EIO);
    assert_int_equal(ctw_container_check(c, &touched, &err), CTW_OK);
    assert_true(touched);
    ctw_container_accept(c, false);
    assert_int_equal(ctw_container_check(c, &touched, &err), CTW_OK);
    assert_false(touched);
    ctw_container_close(c);
}

/* A write through a mapping to a page that is dirty already leaves no time; to settled files it
 * does. */
static void settled_files_show_every_write(void **state)
{
    struct folder *f = *state;
    struct ctw_err err;
    bool touched;
    put_tensors(f, "model.safetensors", two, 8);
    int fd = open(path_of(f, "model.safetensors"), O_RDWR);
    struct stat info;
    assert_true(fd >= 0);
    assert_true(fstat(fd, &info) == 0);
    size_t bytes = (size_t)info.st_size;
    unsigned char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    map[bytes - 1] = 1;
    struct ctw_container *c = opened(f);
    int64_t now_s = (int64_t)time(NULL), later_s = now_s + CTW_FILES_REST_S + 2;
    assert_false(ctw_container_settle(c, now_s)); /* just written */
    if (ctw_container_hides_writes(c) != NULL) {  /* the test's folder is in memory */
        assert_false(ctw_container_settle(c, later_s));
        goto done;
    }
    assert_true(ctw_container_settle(c, later_s));
    ctw_container_accept(c, true);
    assert_true(ctw_container_is_settled(c));
    assert_int_equal(usleep(50000), 0); /* to the next time of the file system's clock */
    map[bytes - 1] = 2;
    assert_int_equal(ctw_container_check(c, &touched, &err), CTW_OK);
    assert_true(touched);
    assert_false(ctw_container_settle(c, later_s)); /* its bytes are not known yet */
    ctw_container_accept(c, false);
    assert_false(ctw_container_is_settled(c));
    assert_true(ctw_container_settle(c, later_s));
done:
    ctw_container_close(c);
    (void)munmap(map, bytes);
    (void)close(fd);
}

static void many_tensors(void **state)
{
    struct folder *f = *state;
    enum { N = 30000 };
    char *text = calloc(N, 100), name[32];
    size_t at = 8;
    for (int i = 0; i < N; i++)
        at += (size_t)sprintf(text + at,
                              "%c\"layers.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],"
                              "\"data_offsets\":[%d,%d]}",
                              i == 0 ? '{' : ',', i, i, i + 1);
    text[at++] = '}';
    for (int i = 0; i < 8; i++)
        text[i] = (char)((at - 8) >> (8 * i));
    for (int i = 0; i < N; i++)
        text[at++] = (char)(i % 251);
    put(f, "model.safetensors", text, at);
    free(text);
    struct ctw_container *c = opened(f);
    assert_int_equal(ctw_container_count(c), N);
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof(name), "layers.%d.w", i);
        const struct ctw_tensor *t = ctw_container_find(c, name);
        assert_non_null(t);
        assert_int_equal(*(const unsigned char *)ctw_container_data(c, t), i % 251);
    }
    ctw_container_close(c);
}

static int n_open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void every_allocation_can_fail(void **state)
{
    struct folder *f = *state;
    put_tensors(f, "1.safetensors", two, 8);
    put_tensors(f, "2.safetensors", one_c, 4);
    put_index(f, "\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\"");
    int n_files = n_open_files();
    for (int n = 1;; n++) {
        struct ctw_container *c;
        struct ctw_err err;
        ctw_mem_fail_at(n);
        enum ctw_status st = ctw_container_open(&c, f->dir, &err);
        ctw_mem_fail_at(0);
        if (st == CTW_OK) {
            assert_true(n > 30);
            assert_int_equal(n_open_files(), n_files + 2);
            ctw_container_close(c);
            assert_int_equal(n_open_files(), n_files);
            return;
        }
        assert_int_equal(st, CTW_ENOMEM);
        assert_non_null(strstr(err.msg, "out of memory"));
        assert_null(c);
        assert_int_equal(n_open_files(), n_files);
    }
}

/* Copies of headers have no contents: nothing may be concluded from them, nor may they be scored.
 */
static void headers_alone(void **state)
{
    struct folder *f = *state;
    struct ctw_err err;
    static const char index[] =
        "{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"3.safetensors\"}}";
    static const char other_a[] = "{" T("c", 0, 4) "," T("a", 4, 8) "}"; /* not as in the first */
    put(f, INDEX, index, sizeof(index) - 1);
    put_tensors(f, "1.safetensors", two, 8);
    put_tensors(f, "3.safetensors", one_c, 4);
    struct ctw_container *c = opened(f);
    assert_false(ctw_container_is_headers_alone(c));
    assert_int_equal(ctw_container_check_weights(c, &err), CTW_OK);
    ctw_container_close(c);
    put_tensors(f, "3.safetensors", other_a, 8);
    f->n_names--;
    refused(f, CTW_EFORMAT, "the two differ");
    FILE *file = fopen(path_of(f, "3.safetensors"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 7, SEEK_SET), 0);
    assert_int_equal(fputc(0x80, file), 0x80);
    assert_int_equal(fclose(file), 0);
    c = opened(f);
    assert_true(ctw_container_is_headers_alone(c));
    assert_int_equal(ctw_container_check_weights(c, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "3.safetensors: a copy of the file's header"));
    ctw_container_close(c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_file),
        TEST(too_many_open_files),
        TEST(shards),
        TEST(a_stale_index_only_lists_the_shards),
        TEST(two_tensors_of_one_name_must_be_equal),
        TEST(an_index_must_list_good_shards),
        TEST(links_as_in_the_hub_cache),
        TEST(only_regular_files),
        TEST(broken_downloads),
        TEST(folders_without_safetensors),
        TEST(single_file_comes_before_the_index),
        TEST(changed_files_are_noticed),
        TEST(settled_files_show_every_write),
        TEST(many_tensors),
        TEST(headers_alone),
        TEST(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
