/*
 * Runs a fuzz target without libFuzzer.
 *
 *   fuzz_NAME [-runs=N] [-seconds=S] [-first=I] [-write_seeds=DIR] [FILE...]
 *
 * Runs each FILE once and adds it to the seeds. Then runs N mutated inputs (default 200000), or as
 * many as fit in S seconds (default 20). Input number I depends only on I and the seeds, so
 * -first=I -runs=1 reproduces a failure; the failing input is also written to crash-input. In every
 * eighth run an allocation fails. An input that takes longer than HANG_SECONDS is a failure.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "fuzz.h"

enum { MAX_INPUT = 1 << 16, MAX_SEEDS = 1024, MAX_WORDS = 256, HANG_SECONDS = 30 };

/* The sanitizers call this callback before they end the process. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static struct fuzz_seed seeds[MAX_SEEDS];
static size_t n_seeds, n_words;
static uint8_t *current; /* the current input, in a block of exactly its size */
static size_t current_bytes;
static long current_run = -1;

static void report(void)
{
    char text[96];
    int n = snprintf(text, sizeof(text), "failed on input %ld of %zu bytes, saved to crash-input\n",
                     current_run, current_bytes);
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, current, current_bytes) < 0 ||
        write(STDERR_FILENO, text, (size_t)n) < 0)
        return;
    (void)close(fd);
}

static void on_signal(int number)
{
    report();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 .. n-1, small numbers as likely as large numbers; n > 0. */
static size_t pick(uint64_t *state, size_t n)
{
    uint64_t r = next_random(state);
    return (size_t)((r & 1) != 0 ? (r >> 8) % n : (r >> 8) % n % 16 % n);
}

static size_t any(uint64_t *state, size_t n)
{
    return (size_t)(next_random(state) % n);
}

/* Replaces `cut` bytes at `at` with n bytes at p; no-op if the result does not fit. */
static size_t replace(uint8_t *buf, size_t bytes, size_t at, size_t cut, const void *p, size_t n)
{
    if (bytes - cut + n > MAX_INPUT)
        return bytes;
    memmove(buf + at + n, buf + at + cut, bytes - at - cut);
    memcpy(buf + at, p, n);
    return bytes - cut + n;
}

/* Replaces the decimal number at `at`, if there is one. */
static size_t change_number(uint8_t *buf, size_t bytes, size_t at, uint64_t *state)
{
    static const char *const numbers[] = {"0",
                                          "-1",
                                          "1",
                                          "4",
                                          "8",
                                          "9007199254740993",
                                          "1e999",
                                          "4294967296",
                                          "18446744073709551615",
                                          "9223372036854775807",
                                          "1099511627776",
                                          "0.5",
                                          "00",
                                          ""};
    size_t end = at;
    while (end < bytes && buf[end] >= '0' && buf[end] <= '9')
        end++;
    const char *number = numbers[any(state, CTW_COUNT(numbers))];
    return replace(buf, bytes, at, end - at, number, strlen(number));
}

static size_t mutate_once(uint8_t *buf, size_t bytes, uint64_t *state)
{
    size_t at = bytes == 0 ? 0 : any(state, bytes);
    size_t left = bytes - at, n = left == 0 ? 0 : pick(state, left) + 1;
    const struct fuzz_seed *other = &seeds[any(state, n_seeds)];
    uint8_t copy[64], byte = (uint8_t)next_random(state);
    switch (any(state, n_words > 0 ? 9 : 7)) {
    case 0:
        if (bytes > 0)
            buf[at] ^= (uint8_t)(1u << (byte & 7));
        return bytes;
    case 1:
        if (bytes > 0)
            buf[at] = (byte & 1) != 0 ? byte : (uint8_t)(buf[at] + (byte & 2) - 1);
        return bytes;
    case 2:
        return replace(buf, bytes, at, n, "", 0);
    case 3: /* repeats a piece */
        n = n < sizeof(copy) ? n : sizeof(copy);
        memcpy(copy, buf + at, n);
        return replace(buf, bytes, bytes == 0 ? 0 : any(state, bytes), 0, copy, n);
    case 4: /* continues with another seed */
        n = other->bytes == 0 ? 0 : any(state, other->bytes);
        return replace(buf, bytes, at, left, other->data + n, other->bytes - n);
    case 5:
        return replace(buf, bytes, at, 0, &byte, 1);
    case 6:
        return change_number(buf, bytes, at, state);
    default: {
        const char *word = fuzz_words[any(state, n_words)];
        return replace(buf, bytes, at, (byte & 3) == 0 ? n : 0, word, strlen(word));
    }
    }
}

static void run_input(const void *data, size_t bytes)
{
    current = malloc(bytes > 0 ? bytes : 1);
    if (current == NULL)
        abort();
    memcpy(current, data, bytes);
    current_bytes = bytes;
    (void)alarm(HANG_SECONDS);
    (void)LLVMFuzzerTestOneInput(current, bytes);
    free(current);
    current = NULL;
}

static void run_mutated(long run)
{
    static uint8_t buf[MAX_INPUT];
    uint64_t state = (uint64_t)run * 0x2545f4914f6cdd1du;
    const struct fuzz_seed *seed = &seeds[any(&state, n_seeds)];
    size_t bytes = seed->bytes;
    memcpy(buf, seed->data, bytes);
    for (size_t n = any(&state, 4) == 0 ? 1 + any(&state, 24) : 1 + any(&state, 3); n > 0; n--)
        bytes = mutate_once(buf, bytes, &state);
    current_run = run;
    if (run % 8 == 7)
        ctw_mem_fail_at((int64_t)(1 + pick(&state, 200)));
    run_input(buf, bytes);
    ctw_mem_fail_at(0);
}

static void add_seed(const char *data, size_t bytes)
{
    if (n_seeds < MAX_SEEDS && bytes <= MAX_INPUT)
        seeds[n_seeds++] = (struct fuzz_seed){data, bytes};
}

static bool read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(MAX_INPUT);
    if (f == NULL || text == NULL) {
        (void)fprintf(stderr, "%s: cannot be opened\n", path);
        return false;
    }
    add_seed(text, fread(text, 1, MAX_INPUT, f)); /* never freed */
    return fclose(f) == 0;
}

static int write_seeds(const char *dir)
{
    for (size_t i = 0; i < n_seeds; i++) {
        char path[4096];
        (void)snprintf(path, sizeof(path), "%s/seed-%03zu", dir, i);
        FILE *f = fopen(path, "wb");
        if (f == NULL || fwrite(seeds[i].data, 1, seeds[i].bytes, f) != seeds[i].bytes ||
            fclose(f) != 0) {
            (void)fprintf(stderr, "%s: cannot be written\n", path);
            return 1;
        }
    }
    return 0;
}

static void run_all(long first, long n_runs, long seconds)
{
    time_t end = time(NULL) + seconds;
    long run = first;
    for (size_t i = 0; i < n_seeds; i++)
        run_input(seeds[i].data, seeds[i].bytes);
    for (; run < first + n_runs && (run % 64 != 0 || time(NULL) < end); run++)
        run_mutated(run);
    (void)printf("%zu seeds and %ld mutated inputs ran\n", n_seeds, run - first);
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
    long n_runs = 200000, seconds = 20, first = 0;
    const char *seed_dir = NULL;
    for (size_t i = 0; fuzz_seeds != NULL && fuzz_seeds[i].data != NULL; i++)
        add_seed(fuzz_seeds[i].data, fuzz_seeds[i].bytes);
    while (fuzz_words != NULL && n_words < MAX_WORDS && fuzz_words[n_words] != NULL)
        n_words++;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "-runs=", 6) == 0)
            n_runs = strtol(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "-seconds=", 9) == 0)
            seconds = strtol(argv[i] + 9, NULL, 10);
        else if (strncmp(argv[i], "-first=", 7) == 0)
            first = strtol(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "-write_seeds=", 13) == 0)
            seed_dir = argv[i] + 13;
        else if (!read_file(argv[i]))
            return 1;
    }
    if (n_seeds == 0)
        add_seed("", 0);
    if (seed_dir != NULL)
        return write_seeds(seed_dir);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(report);
    for (size_t i = 0; i < CTW_COUNT(signals); i++)
        (void)signal(signals[i], on_signal);
    ctw_log_set_level(CTW_LOG_ERROR);
    run_all(first, n_runs, seconds);
    return 0;
}
