#include "worker/model/families/family.h"

/* One line per family. */
#define FAMILIES(X)                                                                                \
    X(llama)                                                                                       \
    X(mistral)                                                                                     \
    X(qwen2)                                                                                       \
    X(qwen3)

#define DECLARE(name) extern const struct ctw_arch ctw_arch_##name;
FAMILIES(DECLARE)

#define ROW(name) &ctw_arch_##name,
const struct ctw_arch *const ctw_archs[] = {FAMILIES(ROW) NULL};
