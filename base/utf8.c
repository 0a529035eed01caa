#include "base/utf8.h"

size_t ctw_utf8_step(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    /* Length, and the range of the second byte, by the first (Unicode, table 3-7). */
    size_t want = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    unsigned char low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n < want || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < want; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return want;
}
