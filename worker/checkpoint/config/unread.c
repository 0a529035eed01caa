#include "worker/checkpoint/config/unread.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_LISTED = 256 };

enum ctw_status ctw_unread_add(struct ctw_unread *u, const struct ctw_json_node *member,
                               struct ctw_err *err)
{
    char path[128] = "...";
    if (u->n > MAX_LISTED)
        return CTW_OK;
    if (u->n++ < MAX_LISTED)
        ctw_json_path(member, path, sizeof(path));
    size_t n = strlen(path) + 2; /* ", " */
    char *text = ctw_realloc(u->text, u->bytes + n + 1, 1);
    if (text == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the keys that are not read");
    u->text = text;
    (void)snprintf(text + u->bytes, n + 1, "%s%s", u->bytes > 0 ? ", " : "", path);
    u->bytes += strlen(text + u->bytes);
    return CTW_OK;
}

void ctw_unread_close(struct ctw_unread *u)
{
    ctw_free(u->text);
    *u = (struct ctw_unread){0};
}
