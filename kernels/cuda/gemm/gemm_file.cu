/*
 * The file of choices: $XDG_CACHE_HOME (or ~/.cache)
 * /ctworker/gemm-GPU-VARIANT-cublasltN-driverN.txt. A text file with one line per kind of product.
 * It saves the time of choosing, never changes a result (gemm.h), and may be deleted at any time.
 * Each line ends with its own checksum.
 */
#include "kernels/cuda/gemm/gemm.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum { MAX_LINE = 2048, MAX_CLASSES = 1024, ALGO_BYTES = sizeof(cublasLtMatmulAlgo_t) };

static const char COMMENT[] =
    "# ctworker: algorithms for matrix products, the fastest among those with equal results.\n"
    "# n k dtype y_dtype add bias reference (algorithm microseconds rows){3} checksum\n";

struct ctw_gemm_class *ctw_gemm_add(struct ctw_cuda_gemms *gemms)
{
    if (gemms->n == gemms->cap) {
        size_t cap = gemms->cap == 0 ? 16 : 2 * gemms->cap;
        void *p = ctw_realloc(gemms->classes, cap, sizeof(*gemms->classes));
        if (p == NULL)
            return NULL;
        gemms->classes = (struct ctw_gemm_class *)p;
        gemms->cap = cap;
    }
    struct ctw_gemm_class *c = &gemms->classes[gemms->n++];
    memset(c, 0, sizeof(*c));
    return c;
}

static uint64_t checksum(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    return h;
}

/* The file's first line: everything its choices depend on. */
static void key_line(const struct ctw_cuda *cu, char *out, size_t cap)
{
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    snprintf(out, cap, "ctworker-gemm rule%d %s %s cuda%d cublaslt%zu driver%d sms%d\n", CTW_GEMM_RULE,
             cu->name, cu->hopper ? "hopper" : "general", CUDART_VERSION, cublasLtGetVersion(), driver,
             cu->n_sm);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* A line that grows; the buffer is large enough for every line. */
struct line {
    char text[MAX_LINE];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void put(struct line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(l->text + l->n, sizeof(l->text) - l->n, fmt, args);
    va_end(args);
    l->n += n > 0 ? (size_t)n : 0;
}

static void put_algo(struct line *l, const struct ctw_gemm_algo *algo)
{
    if (algo->own) {
        put(l, "own");
        return;
    }
    uint8_t bytes[ALGO_BYTES];
    memcpy(bytes, &algo->lt, ALGO_BYTES);
    for (int i = 0; i < ALGO_BYTES; i++)
        put(l, "%02x", bytes[i]);
}

static void put_class(FILE *f, const struct ctw_gemm_class *c)
{
    struct line l = {};
    const struct ctw_gemm_kind *k = &c->kind;
    put(&l, "%lld %lld %s %s %d %d ", (long long)k->n, (long long)k->k, ctw_dtype_name(k->dtype),
        ctw_dtype_name(k->y_dtype), k->add, k->bias);
    put_algo(&l, &c->reference);
    for (int i = 0; i < CTW_GEMM_SIZES; i++) {
        put(&l, " ");
        put_algo(&l, &c->choice[i].algo);
        put(&l, " %.1f %lld", c->choice[i].us, (long long)c->choice[i].m);
    }
    fprintf(f, "%s %016llx\n", l.text, (unsigned long long)checksum(l.text, l.n));
}

void ctw_gemm_file_save(struct ctw_cuda *cu)
{
    struct ctw_cuda_gemms *gemms = cu->gemms;
    char temp[4200], key[256];
    if (gemms->path == NULL)
        return;
    snprintf(temp, sizeof(temp), "%s.%ld", gemms->path, (long)getpid());
    FILE *f = fopen(temp, "w");
    bool ok = f != NULL;
    if (ok) {
        key_line(cu, key, sizeof(key));
        fprintf(f, "%s%s", key, COMMENT);
        for (size_t i = 0; i < gemms->n; i++)
            if (gemms->classes[i].library)
                put_class(f, &gemms->classes[i]);
        ok = ferror(f) == 0;
        ok = fclose(f) == 0 && ok;
        ok = ok && rename(temp, gemms->path) == 0;
    }
    if (ok)
        return;
    ctw_warn("cuda: %s cannot be written (%s); choosing algorithms takes a second at each start",
             gemms->path, strerror(errno));
    (void)unlink(temp);
    ctw_free(gemms->path);
    gemms->path = NULL;
}

/* ---- reading ------------------------------------------------------------------------------ */

static bool get_dtype(const char *s, enum ctw_dtype *out)
{
    for (int i = 0; i < CTW_N_DTYPES; i++) {
        if (s != NULL && strcmp(s, ctw_dtype_name((enum ctw_dtype)i)) == 0) {
            *out = (enum ctw_dtype)i;
            return true;
        }
    }
    return false;
}

static bool get_int(const char *s, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    if (s == NULL || !isdigit((unsigned char)*s))
        return false;
    long long v = strtoll(s, &end, 10);
    *out = v;
    return *end == '\0' && v >= least && v <= most;
}

static bool get_algo(const char *s, struct ctw_gemm_algo *out)
{
    uint8_t bytes[ALGO_BYTES];
    if (s == NULL)
        return false;
    out->own = strcmp(s, "own") == 0;
    if (out->own)
        return true;
    if (strlen(s) != 2 * ALGO_BYTES || strspn(s, "0123456789abcdef") != 2 * ALGO_BYTES)
        return false;
    for (int i = 0; i < ALGO_BYTES; i++) {
        char two[3] = {s[2 * i], s[2 * i + 1], '\0'};
        bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    memcpy(&out->lt, bytes, ALGO_BYTES);
    return true;
}

/* A line without its newline; parsing modifies it. */
static bool get_class(char *line, struct ctw_gemm_class *c)
{
    char *last = strrchr(line, ' '), *save, *end;
    if (last == NULL || strtoull(last + 1, &end, 16) != checksum(line, (size_t)(last - line)) ||
        *end != '\0')
        return false;
    *last = '\0';
    int64_t add = 0, bias = 0;
    memset(c, 0, sizeof(*c));
    bool ok = get_int(strtok_r(line, " ", &save), 1, CTW_MAX_DIM, &c->kind.n) &&
              get_int(strtok_r(NULL, " ", &save), 1, CTW_MAX_DIM, &c->kind.k) &&
              get_dtype(strtok_r(NULL, " ", &save), &c->kind.dtype) &&
              get_dtype(strtok_r(NULL, " ", &save), &c->kind.y_dtype) &&
              get_int(strtok_r(NULL, " ", &save), 0, 1, &add) &&
              get_int(strtok_r(NULL, " ", &save), 0, 1, &bias) &&
              get_algo(strtok_r(NULL, " ", &save), &c->reference) && !c->reference.own;
    for (int i = 0; ok && i < CTW_GEMM_SIZES; i++) {
        struct ctw_gemm_choice *ch = &c->choice[i];
        ok = get_algo(strtok_r(NULL, " ", &save), &ch->algo);
        char *us = ok ? strtok_r(NULL, " ", &save) : NULL;
        ok = us != NULL && get_int(strtok_r(NULL, " ", &save), 1, CTW_MAX_DIM, &ch->m);
        if (ok)
            ch->us = strtof(us, NULL);
    }
    c->kind.add = add != 0;
    c->kind.bias = bias != 0;
    c->library = true;
    c->from_file = true;
    return ok && strtok_r(NULL, " ", &save) == NULL;
}

/* Returns what is wrong with the file, or NULL. */
static const char *read_classes(struct ctw_cuda *cu, FILE *f)
{
    char line[MAX_LINE], key[256];
    struct ctw_gemm_class c;
    key_line(cu, key, sizeof(key));
    if (fgets(line, sizeof(line), f) == NULL || strcmp(line, key) != 0)
        return "it is for another rule, GPU, library or driver; algorithms are chosen again";
    while (cu->gemms->n < MAX_CLASSES && fgets(line, sizeof(line), f) != NULL) {
        size_t n = strlen(line);
        if (line[0] == '#')
            continue;
        if (n == 0 || line[n - 1] != '\n')
            return "it has a line without a newline";
        line[n - 1] = '\0';
        if (!get_class(line, &c))
            return "it has an invalid line";
        struct ctw_gemm_class *to = ctw_gemm_add(cu->gemms);
        if (to == NULL)
            return "out of memory";
        *to = c;
    }
    return ferror(f) != 0 ? strerror(errno) : NULL;
}

/* Creates missing folders; without a home directory there is no file. */
static bool file_path(const struct ctw_cuda *cu, char *out, size_t cap)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[96];
    int driver = 0, n;
    if (cache != NULL && cache[0] == '/')
        n = snprintf(out, cap, "%s", cache);
    else if (home != NULL && home[0] == '/')
        n = snprintf(out, cap, "%s/.cache", home);
    else
        return false;
    if (n < 0 || (size_t)n + 256 > cap)
        return false;
    (void)mkdir(out, 0700);
    n += snprintf(out + n, cap - (size_t)n, "/ctworker");
    (void)mkdir(out, 0700);
    snprintf(name, sizeof(name), "%s", cu->name);
    for (char *p = name; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p))
            *p = '-';
    (void)cudaDriverGetVersion(&driver);
    snprintf(out + n, cap - (size_t)n, "/gemm-%s-%s-cublaslt%zu-driver%d.txt", name,
             cu->hopper ? "hopper" : "general", cublasLtGetVersion(), driver);
    return true;
}

enum ctw_status ctw_gemm_file_open(struct ctw_cuda *cu, struct ctw_err *err)
{
    char path[4096];
    if (!file_path(cu, path, sizeof(path)))
        return CTW_OK;
    cu->gemms->path = ctw_strdup(path);
    if (cu->gemms->path == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        if (errno != ENOENT)
            ctw_warn("cuda: %s cannot be read: %s", path, strerror(errno));
        return CTW_OK;
    }
    const char *wrong = read_classes(cu, f);
    (void)fclose(f);
    if (wrong != NULL) {
        ctw_warn("cuda: %s is ignored: %s", path, wrong);
        cu->gemms->n = 0;
    }
    return CTW_OK;
}
