/* A config.json that is read, or refused. */
#ifndef CTW_TESTS_CONFIG_PARSE_H
#define CTW_TESTS_CONFIG_PARSE_H

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

/* A config.json that is refused, and what the message says: more than a key's name, which every other
 * complaint about the key has, too. */
struct refusal {
    const char *text, *words;
};

static inline void expect_refusals(const struct refusal *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct ctw_config c;
        struct ctw_err err = {0};
        if (parse(&c, rows[i].text, &err) == CTW_OK)
            fail_msg("%s: accepted", rows[i].text);
        if (strchr(rows[i].words, ' ') == NULL)
            fail_msg("%s: \"%s\" could be any message (\"%s\")", rows[i].text, rows[i].words,
                     err.msg);
        if (strstr(err.msg, rows[i].words) == NULL || strncmp(err.msg, "config.json: ", 13) != 0)
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].text, err.msg, rows[i].words);
        ctw_config_close(&c);
    }
}

#endif
