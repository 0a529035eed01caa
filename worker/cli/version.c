#include "worker/cli/version.h"

/* worker/CMakeLists.txt defines the CTW_BUILD_ macros for this file only. */

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *ctw_version(void)
{
    return CTW_BUILD_VERSION;
}

const char *ctw_version_commit(void)
{
    return CTW_BUILD_COMMIT;
}

const char *ctw_version_compiler(void)
{
#if defined(__clang__)
    return "Clang " TEXT(__clang_major__) "." TEXT(__clang_minor__) "." TEXT(__clang_patchlevel__);
#elif defined(__GNUC__)
    return "GCC " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__) "." TEXT(__GNUC_PATCHLEVEL__);
#else
    return "an unknown compiler";
#endif
}

const char *ctw_version_build(void)
{
    return CTW_BUILD_KIND;
}
