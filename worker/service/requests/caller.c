/* A caller's name for the log, and texts without paths for tcp clients, which must not see them. */
#include <stdio.h>
#include <string.h>

#include "worker/service/requests/handlers.h"

const char *ctw_caller_name(const struct ctw_handler_call *c, char buf[CTW_CALLER_MAX])
{
    const char *owner = c->contact.owner;
    snprintf(buf, CTW_CALLER_MAX, "%s%s%s%s", c->peer->address, owner != NULL ? " (token " : "",
             owner != NULL ? owner : "", owner != NULL ? ")" : "");
    return buf;
}

/* Replaces `path` by `name`, in a text of at most cap - 1 bytes. */
static void replace(char *text, size_t cap, const char *path, const char *name)
{
    size_t n_path = strlen(path), n_name = strlen(name);
    for (char *at = strstr(text, path); n_path > 1 && at != NULL; at = strstr(at + n_name, path)) {
        size_t rest = strlen(at + n_path) + 1;
        size_t room = cap - (size_t)(at - text);
        if (n_name + rest > room)
            return;
        memmove(at + n_name, at + n_path, rest);
        memcpy(at, name, n_name);
    }
}

void ctw_hide_paths(const struct ctw_service *service, char *text, size_t cap)
{
    const struct ctw_queue *q = service->queue;
    for (int i = 0; i < q->models.n; i++)
        replace(text, cap, q->models.slots[i]->path, q->models.slots[i]->name);
    if (service->allow_load != NULL)
        replace(text, cap, service->allow_load, "--allow-load");
}

bool ctw_copy_message(const struct ctw_handler_call *c, const char *text, struct ctw_span *out)
{
    char hidden[CTW_ERR_MSG_MAX * 2];
    if (c->peer->local)
        return ctw_reply_copy(c->reply, text, out);
    snprintf(hidden, sizeof(hidden), "%s", text);
    ctw_hide_paths(c->service, hidden, sizeof(hidden));
    return ctw_reply_copy(c->reply, hidden, out);
}
