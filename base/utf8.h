/* UTF-8 (RFC 3629: shortest form, no surrogates), for text in files, messages and names. */
#ifndef CTW_BASE_UTF8_H
#define CTW_BASE_UTF8_H

#include <stddef.h>

/* Length in bytes of the well-formed UTF-8 sequence at p[0 .. n-1] (n > 0); 0: not well-formed. */
size_t ctw_utf8_step(const unsigned char *p, size_t n);

#endif
