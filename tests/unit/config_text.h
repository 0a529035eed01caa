/* What the tests of config.json share. */
#ifndef CTW_TESTS_CONFIG_TEXT_H
#define CTW_TESTS_CONFIG_TEXT_H

#include <string.h>

#include "worker/model/families/family.h"

static inline enum ctw_status parse(struct ctw_config *c, const char *text, struct ctw_err *err)
{
    return ctw_config_parse(c, text, strlen(text), "config.json", err);
}

static inline void parse_ok(struct ctw_config *c, const char *text)
{
    struct ctw_err err = {0};
    if (parse(c, text, &err) != CTW_OK)
        fail_msg("%s: %s", text, err.msg);
}

/* The described tensor of this name; NULL: the file need not have it. */
static inline const struct ctw_want *find(const struct ctw_config *c, const char *name)
{
    for (int64_t i = 0; i < c->n_wants; i++)
        if (strcmp(c->wants[i].name, name) == 0)
            return &c->wants[i];
    return NULL;
}

#endif
