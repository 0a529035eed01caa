/* The instruction sets that may be used: the processor supports them and the operating system
 * saves their registers (XCR0, Intel SDM vol. 1, 13.3 and 14.3). */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

const char *ctw_cpu_lacks_none(void)
{
    return NULL;
}

#if defined(__x86_64__)

#include <cpuid.h>

enum {
    XCR0_SSE_AVX = 0x06,        /* xmm, ymm */
    XCR0_SSE_AVX_AVX512 = 0xe6, /* and mask registers, zmm0-15 upper halves, zmm16-31 */
    XCR0_TILES = 0x60000        /* tile configuration and data */
};

struct leaf {
    unsigned eax, ebx, ecx, edx;
};

static struct leaf cpuid(unsigned leaf, unsigned sub)
{
    struct leaf r = {0, 0, 0, 0};
    if (!__get_cpuid_count(leaf, sub, &r.eax, &r.ebx, &r.ecx, &r.edx))
        return (struct leaf){0, 0, 0, 0};
    return r;
}

static bool system_saves(unsigned mask)
{
    if ((cpuid(1, 0).ecx & bit_OSXSAVE) == 0)
        return false;
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (lo & mask) == mask;
}

const char *ctw_cpu_lacks_avx2(void)
{
    const unsigned need = bit_AVX | bit_FMA | bit_F16C;
    const bool has = system_saves(XCR0_SSE_AVX) && (cpuid(1, 0).ecx & need) == need &&
                     (cpuid(7, 0).ebx & bit_AVX2) != 0;
    return has ? NULL : "the processor has no AVX2, FMA and F16C";
}

const char *ctw_cpu_lacks_avx512(void)
{
    const unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const bool has = ctw_cpu_lacks_avx2() == NULL && system_saves(XCR0_SSE_AVX_AVX512) &&
                     (cpuid(7, 0).ebx & need) == need;
    return has ? NULL : "the processor has no AVX-512 with F, BW, DQ and VL";
}

const char *ctw_cpu_lacks_avx512bf16(void)
{
    const bool has = ctw_cpu_lacks_avx512() == NULL && (cpuid(7, 1).eax & (1u << 5)) != 0;
    return has ? NULL : "the processor has no AVX512_BF16";
}

/*
 * Linux gives a process tiles only if it asks, because they make its signal frames larger. Threads
 * inherit the permission; asking again does nothing. A sandbox that does not know the request, or
 * forbids it, refuses it here and not by a fatal signal at the first tile.
 */
static const char *no_permission_for_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_.. */
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0)
        return NULL;
    if (errno == ENOSPC)
        return "the kernel refuses AMX, as the alternate signal stack of a thread is too small";
    return errno == EPERM || errno == ENOSYS
               ? "this container's rules forbid the request for AMX (arch_prctl)"
               : "the kernel refuses AMX (arch_prctl): it is older than Linux 5.16, or a sandbox";
}

const char *ctw_cpu_lacks_amx(void)
{
    const unsigned need = 1u << 22 | 1u << 24; /* AMX_BF16, AMX_TILE */
    const bool is_virtual = (cpuid(1, 0).ecx & 1u << 31) != 0;
    if (ctw_cpu_lacks_avx512() != NULL)
        return ctw_cpu_lacks_avx512();
    if ((cpuid(7, 0).edx & need) != need)
        return is_virtual ? "the processor has no AMX_BF16, or the hypervisor hides it"
                          : "the processor has no AMX_BF16";
    if (!system_saves(XCR0_TILES))
        return "the operating system, or the hypervisor, does not save AMX's tiles";
    return no_permission_for_tiles();
}

bool ctw_cpu_is_intel(void)
{
    struct leaf vendor = cpuid(0, 0);
    return vendor.ebx == signature_INTEL_ebx && vendor.ecx == signature_INTEL_ecx &&
           vendor.edx == signature_INTEL_edx;
}

void ctw_cpu_name(char *out, size_t n)
{
    char name[49] = "";
    for (unsigned i = 0; i < 3; i++) {
        struct leaf part = cpuid(0x80000002u + i, 0);
        memcpy(name + 16 * i, &part, 16);
    }
    name[48] = '\0';
    size_t used = 0;
    for (const char *p = name; *p != '\0' && used + 1 < n; p++) {
        bool blank = *p == ' ';
        if (!blank || (used > 0 && out[used - 1] != ' '))
            out[used++] = *p;
    }
    while (used > 0 && out[used - 1] == ' ')
        used--;
    out[used] = '\0';
    if (used == 0 && n > 7)
        memcpy(out, "unknown", 8);
}

#else

bool ctw_cpu_is_intel(void)
{
    return false;
}

void ctw_cpu_name(char *out, size_t n)
{
    if (n > 7)
        memcpy(out, "unknown", 8);
}

#endif
