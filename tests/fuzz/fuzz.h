/*
 * A fuzz target is one file fuzz_NAME.c in this folder with LLVMFuzzerTestOneInput() and optionally
 * seeds and words (below); CMake finds the file. A target is built
 *   - with standalone.c, by any compiler: a ctest (label fuzz) that runs the seeds and a fixed
 *     number of mutations of the seeds, the same mutations every time;
 *   - with -DCTW_FUZZ=ON and clang, also as fuzz_NAME_libfuzzer, for long runs:
 *       fuzz_NAME -write_seeds=DIR && fuzz_NAME_libfuzzer DIR
 * A target must not leak and must not depend on earlier inputs. It checks results with
 * fuzz_check().
 */
#ifndef CTW_TESTS_FUZZ_H
#define CTW_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct fuzz_seed {
    const char *data;
    size_t bytes;
};

/* Optional. Initial inputs, terminated by {NULL, 0}. FUZZ_SEED takes a string literal. */
extern const struct fuzz_seed fuzz_seeds[] __attribute__((weak));
#define FUZZ_SEED(literal)                                                                         \
    {                                                                                              \
        literal, sizeof(literal) - 1                                                               \
    }

/* Optional. Tokens of the format ("\"dtype\":") to insert into inputs; terminated by NULL. */
extern const char *const fuzz_words[] __attribute__((weak));

#define fuzz_check(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
