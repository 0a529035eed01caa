/*
 * The file of choices (kernels/cuda/gemm/gemm_file.cu): saved choices are read back; a file that
 * was edited or written by another machine or rule is ignored with one log line. Needs no GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/cuda/gemm/gemm.h"

static int n_checks, n_failed;
static char folder[] = "/tmp/ctw-gemm-file-XXXXXX";

static void check(bool ok, const char *what)
{
    printf("%s %s\n", ok ? "ok    " : "FAILED", what);
    n_checks++;
    n_failed += !ok;
}

struct machine {
    struct ctw_cuda cu;
    struct ctw_cuda_gemms gemms;
};

static void machine_open(struct machine *m)
{
    memset(m, 0, sizeof(*m));
    snprintf(m->cu.name, sizeof(m->cu.name), "Some GPU (80 GB)");
    m->cu.hopper = true;
    m->cu.n_sm = 132;
    m->cu.gemms = &m->gemms;
}

static void machine_close(struct machine *m)
{
    ctw_free(m->gemms.classes);
    ctw_free(m->gemms.path);
}

static void add(struct machine *m, int64_t n, bool own)
{
    struct ctw_gemm_class *c = ctw_gemm_add(&m->gemms);
    c->kind = {n, 4096, CTW_BF16, CTW_F32, true, false};
    c->library = true;
    for (size_t i = 0; i < sizeof(c->reference.lt); i++)
        ((uint8_t *)&c->reference.lt)[i] = (uint8_t)(n + 7 * (int64_t)i);
    for (int i = 0; i < CTW_GEMM_SIZES; i++) {
        c->choice[i].algo = c->reference;
        if (own && i == 1) {
            memset(&c->choice[i].algo, 0, sizeof(c->choice[i].algo));
            c->choice[i].algo.own = true;
        }
        c->choice[i].us = 12.5f + (float)i;
        c->choice[i].m = 256 << i;
    }
}

static bool same(const struct ctw_gemm_class *a, const struct ctw_gemm_class *b)
{
    bool ok = a->kind.n == b->kind.n && a->kind.k == b->kind.k && a->kind.dtype == b->kind.dtype &&
              a->kind.y_dtype == b->kind.y_dtype && a->kind.add == b->kind.add &&
              a->kind.bias == b->kind.bias && a->library == b->library &&
              memcmp(&a->reference, &b->reference, sizeof(a->reference)) == 0;
    for (int i = 0; i < CTW_GEMM_SIZES; i++)
        ok =
            ok && a->choice[i].algo.own == b->choice[i].algo.own &&
            a->choice[i].us == b->choice[i].us && a->choice[i].m == b->choice[i].m &&
            memcmp(&a->choice[i].algo.lt, &b->choice[i].algo.lt, sizeof(a->choice[i].algo.lt)) == 0;
    return ok;
}

/* Reads the file again; *said: the log text. Returns the number of classes. */
static size_t read_again(struct machine *m, char *said, size_t cap)
{
    struct ctw_err err;
    machine_open(m);
    fflush(stderr);
    int was = dup(STDERR_FILENO);
    FILE *log = tmpfile();
    dup2(fileno(log), STDERR_FILENO);
    if (ctw_gemm_file_open(&m->cu, &err) != CTW_OK)
        printf("FAILED %s\n", err.msg);
    fflush(stderr);
    dup2(was, STDERR_FILENO);
    close(was);
    rewind(log);
    size_t n = fread(said, 1, cap - 1, log);
    said[n] = '\0';
    fclose(log);
    return m->gemms.n;
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

static char *file_text(const char *path)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "r");
    size_t n = f == NULL ? 0 : fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    if (f != NULL)
        fclose(f);
    return text;
}

static void put_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

/* The text with its first `old` replaced, from malloc(). */
static char *replaced(const char *text, const char *old, const char *by)
{
    const char *at = strstr(text, old);
    size_t bytes = strlen(text) + strlen(by) + 1;
    char *out = (char *)malloc(bytes);
    if (at == NULL) {
        printf("FAILED \"%s\" is not in the file\n", old);
        n_failed++;
        at = text;
        old = by = "";
    }
    snprintf(out, bytes, "%.*s%s%s", (int)(at - text), text, by, at + strlen(old));
    return out;
}

static void check_ignored(const char *path, const char *good, const char *old, const char *by,
                          const char *why)
{
    char said[8192], what[160];
    struct machine m;
    char *text = replaced(good, old, by);
    put_text(path, text);
    size_t n = read_again(&m, said, sizeof(said));
    snprintf(what, sizeof(what), "ignored: %s", why);
    check(n == 0 && lines(said) == 1 && strstr(said, " is ignored: ") != NULL &&
              strstr(said, why) != NULL,
          what);
    if (n != 0 || lines(said) != 1)
        printf("       %zu classes; said: %s\n", n, said);
    machine_close(&m);
    free(text);
}

int main(void)
{
    char said[8192], path[4096];
    struct machine m, again;
    if (mkdtemp(folder) == NULL || setenv("XDG_CACHE_HOME", folder, 1) != 0)
        return 1;
    check(read_again(&m, said, sizeof(said)) == 0 && said[0] == '\0', "no file: nothing is said");
    add(&m, 6144, false);
    add(&m, 28672, true);
    ctw_gemm_file_save(&m.cu);
    snprintf(path, sizeof(path), "%s", m.gemms.path);
    size_t n = read_again(&again, said, sizeof(said));
    check(n == 2 && said[0] == '\0' && same(&m.gemms.classes[0], &again.gemms.classes[0]) &&
              same(&m.gemms.classes[1], &again.gemms.classes[1]),
          "what was saved is read again");
    machine_close(&again);
    char *good = strdup(file_text(path));
    char rule[32], toolkit[32];
    snprintf(rule, sizeof(rule), " rule%d ", CTW_GEMM_RULE);
    snprintf(toolkit, sizeof(toolkit), " cuda%d ", CUDART_VERSION);
    static const char other[] = "it is for another rule, GPU, library or driver";
    check_ignored(path, good, rule, " rule0 ", other);
    check_ignored(path, good, rule, " ", other); /* as files were before they named the rule */
    check_ignored(path, good, toolkit, " cuda11080 ", other);
    check_ignored(path, good, " sms132", " sms114", other);
    check_ignored(path, good, "Some GPU", "Another GPU", other);
    check_ignored(path, good, " hopper ", " general ", other);
    check_ignored(path, good, "ctworker-gemm", "", other);
    check_ignored(path, good, "6144 4096", "6144 4097",
                  "it has an invalid line"); /* checksum */
    check_ignored(path, good, "6144", "614x", "it has an invalid line");
    good[strlen(good) - 1] = '\0';
    check_ignored(path, good, "28672", "28672", "it has a line without a newline");
    check_ignored(path, "", "", "", other);
    ctw_gemm_file_save(&m.cu);
    check(read_again(&again, said, sizeof(said)) == 2 && said[0] == '\0', "and written over");
    machine_close(&again);
    machine_close(&m);
    free(good);
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(folder);
    printf("%d passed, %d failed\n", n_checks - n_failed, n_failed);
    return n_failed != 0;
}
