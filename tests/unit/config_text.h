/* What the tests of config.json share. */
#ifndef CTW_TESTS_CONFIG_TEXT_H
#define CTW_TESTS_CONFIG_TEXT_H

#include "config_parse.h"

/* The described tensor of this name; NULL: the file need not have it. */
static inline const struct ctw_want *find(const struct ctw_config *c, const char *name)
{
    for (int64_t i = 0; i < c->n_wants; i++)
        if (strcmp(c->wants[i].name, name) == 0)
            return &c->wants[i];
    return NULL;
}

#endif
