/* The instruction sets that may be used: the processor supports them and the operating system
 * saves their registers (XCR0, Intel SDM vol. 1, 13.3 and 14.3). */
#include <string.h>

#include "kernels/cpu/cpu.h"

bool ctw_cpu_has_c(void)
{
    return true;
}

#if defined(__x86_64__)

#include <cpuid.h>

enum {
    XCR0_SSE_AVX = 0x06,       /* xmm, ymm */
    XCR0_SSE_AVX_AVX512 = 0xe6 /* and mask registers, zmm0-15 upper halves, zmm16-31 */
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

bool ctw_cpu_has_avx2(void)
{
    const unsigned need = bit_AVX | bit_FMA | bit_F16C;
    return system_saves(XCR0_SSE_AVX) && (cpuid(1, 0).ecx & need) == need &&
           (cpuid(7, 0).ebx & bit_AVX2) != 0;
}

bool ctw_cpu_has_avx512(void)
{
    const unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return ctw_cpu_has_avx2() && system_saves(XCR0_SSE_AVX_AVX512) &&
           (cpuid(7, 0).ebx & need) == need;
}

bool ctw_cpu_has_avx512bf16(void)
{
    return ctw_cpu_has_avx512() && (cpuid(7, 1).eax & (1u << 5)) != 0;
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

bool ctw_cpu_has_avx2(void)
{
    return false;
}

bool ctw_cpu_has_avx512(void)
{
    return false;
}

bool ctw_cpu_has_avx512bf16(void)
{
    return false;
}

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
