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

/* A tensor that a config.json describes. k 0: a vector; n 0: no tensor has this name. */
struct tensor_row {
    const char *text, *name;
    int64_t n, k;
};

/* Rows with the same text that follow one another are read once: a model of hundreds of experts
 * has a hundred thousand tensors. */
static inline void expect_tensors(const struct tensor_row *rows, size_t n)
{
    struct ctw_config c;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(rows[i].text, rows[i - 1].text) != 0)
            parse_ok(&c, rows[i].text);
        const struct ctw_want *w = find(&c, rows[i].name);
        if ((w != NULL) != (rows[i].n != 0) ||
            (w != NULL && (w->n != rows[i].n || w->k != rows[i].k)))
            fail_msg("%s: %s is not as expected", rows[i].text, rows[i].name);
        if (i + 1 == n || strcmp(rows[i].text, rows[i + 1].text) != 0)
            ctw_config_close(&c);
    }
}

#endif
