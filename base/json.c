#include "base/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "base/lfs.h"
#include "base/mem.h"

static pthread_once_t hooks_once = PTHREAD_ONCE_INIT;

static void *allocate(size_t bytes)
{
    return ctw_calloc(bytes, 1);
}

static void set_hooks(void)
{
    cJSON_Hooks hooks = {.malloc_fn = allocate, .free_fn = ctw_free};
    cJSON_InitHooks(&hooks);
}

/* cJSON does not know Infinity and NaN: replaces them with zeros, padded to the same length. */
static void hide_nonfinite(struct ctw_json *doc)
{
    for (uint32_t i = 0; i < doc->nodes.count; i++) {
        const struct ctw_json_node *node = &doc->nodes.at[i];
        if (node->type != CTW_JSON_NONFINITE)
            continue;
        memset(doc->text + node->source, ' ', node->source_bytes);
        doc->text[node->source] = '0';
    }
}

static double nonfinite_value(const char *source)
{
    return source[0] == 'N' ? NAN : source[0] == '-' ? -INFINITY : INFINITY;
}

static bool same_type(const struct ctw_json_node *node, const cJSON *item)
{
    switch ((enum ctw_json_type)node->type) {
    case CTW_JSON_NULL:
        return cJSON_IsNull(item);
    case CTW_JSON_BOOL:
        return cJSON_IsBool(item) && cJSON_IsTrue(item) == node->truth;
    case CTW_JSON_NUMBER:
    case CTW_JSON_NONFINITE:
        return cJSON_IsNumber(item);
    case CTW_JSON_STRING:
        return cJSON_IsString(item);
    case CTW_JSON_ARRAY:
        return cJSON_IsArray(item);
    case CTW_JSON_OBJECT:
        return cJSON_IsObject(item);
    }
    return false;
}

/* Sets the values of node i and of all nodes below it from cJSON's tree. False: the tree has
 * another shape. Recursion is at most CTW_JSON_MAX_DEPTH deep. */
static bool attach(struct ctw_json *doc, uint32_t i, const cJSON *item)
{
    struct ctw_json_node *node = &doc->nodes.at[i];
    if (!same_type(node, item))
        return false;
    node->doc = doc;
    node->key = i == 0 ? NULL : item->string;
    node->string = item->valuestring;
    node->number = item->valuedouble;
    if (node->type == CTW_JSON_NONFINITE)
        node->number = nonfinite_value(doc->text + node->source);
    else if (node->type == CTW_JSON_NUMBER && !isfinite(node->number))
        node->type = CTW_JSON_NONFINITE;
    uint32_t child = i + 1;
    const cJSON *c = item->child;
    for (uint32_t n = 0; n < node->count; n++, c = c->next) {
        if (c == NULL || !attach(doc, child, c))
            return false;
        child = doc->nodes.at[child].next;
    }
    return c == NULL;
}

static enum ctw_status build_tree(struct ctw_json *doc, const char *original, struct ctw_err *err)
{
    (void)pthread_once(&hooks_once, set_hooks);
    hide_nonfinite(doc);
    doc->tree = cJSON_ParseWithLengthOpts(doc->text, doc->bytes, NULL, 0);
    memcpy(doc->text, original, doc->bytes);
    /* The scan has accepted the text, so memory is the only possible cause. */
    if (doc->tree == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for %u JSON values", doc->what,
                        doc->nodes.count);
    if (!attach(doc, 0, doc->tree))
        return ctw_fail(err, CTW_EINTERNAL, "%s: cJSON parses this text differently from the scan",
                        doc->what);
    return CTW_OK;
}

static enum ctw_status index_members(struct ctw_json *doc, struct ctw_err *err)
{
    size_t n_members = 0, capacity = 4;
    for (uint32_t i = 1; i < doc->nodes.count; i++)
        n_members += doc->nodes.at[i].key != NULL;
    while (capacity < 2 * n_members)
        capacity *= 2;
    doc->slots = ctw_calloc(capacity, sizeof(*doc->slots));
    if (doc->slots == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for an index of %zu keys", doc->what,
                        n_members);
    doc->slot_mask = (uint32_t)(capacity - 1);
    for (uint32_t i = 1; i < doc->nodes.count; i++) {
        const struct ctw_json_node *node = &doc->nodes.at[i];
        if (node->key == NULL)
            continue;
        uint32_t slot = ctw_json_slot(doc, node->parent, node->key);
        if (doc->slots[slot] != 0)
            return ctw_json_fail(node, err, CTW_EFORMAT, "the key occurs twice");
        doc->slots[slot] = i;
    }
    return CTW_OK;
}

enum ctw_status ctw_json_parse(struct ctw_json **out, const char *what, const char *text,
                               size_t bytes, size_t max_bytes, struct ctw_err *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* U+FEFF, which editors of Windows put first */
    enum ctw_status st;
    *out = NULL;
    if (bytes >= sizeof(mark) - 1 && memcmp(text, mark, sizeof(mark) - 1) == 0) {
        text += sizeof(mark) - 1;
        bytes -= sizeof(mark) - 1;
    }
    if (max_bytes > UINT32_MAX - 1)
        max_bytes = UINT32_MAX - 1;
    if (bytes > max_bytes)
        return ctw_fail(err, CTW_EFORMAT, "%s: %zu bytes of JSON; at most %zu are accepted", what,
                        bytes, max_bytes);
    st = ctw_lfs_refuse(what, text, bytes, bytes, err);
    if (st != CTW_OK)
        return st;
    struct ctw_json *doc = ctw_calloc(1, sizeof(*doc));
    if (doc == NULL || (doc->what = ctw_strdup(what)) == NULL ||
        (doc->text = ctw_calloc(bytes + 1, 1)) == NULL) {
        st = ctw_fail(err, CTW_ENOMEM, "%s: out of memory for %zu bytes of JSON", what, bytes);
        goto fail;
    }
    doc->bytes = bytes;
    if (bytes > 0)
        memcpy(doc->text, text, bytes);
    st = ctw_json_scan(&doc->nodes, doc->text, bytes, what, err);
    if (st != CTW_OK)
        goto fail;
    st = build_tree(doc, text, err);
    if (st != CTW_OK)
        goto fail;
    st = index_members(doc, err);
    if (st != CTW_OK)
        goto fail;
    *out = doc;
    return CTW_OK;
fail:
    ctw_json_close(doc);
    return st;
}

/* Opens dir/file; dir NULL: file. CTW_ENOTFOUND, CTW_EIO, CTW_ENOMEM. */
static enum ctw_status open_in(int *fd, const char *dir, const char *file, struct ctw_err *err)
{
    size_t bytes = (dir != NULL ? strlen(dir) : 0) + strlen(file) + 2;
    char *path = ctw_calloc(bytes, 1);
    if (path == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", file);
    (void)snprintf(path, bytes, "%s%s%s", dir != NULL ? dir : "", dir != NULL ? "/" : "", file);
    /* O_NONBLOCK: open() must not block on a FIFO. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int why = errno;
    ctw_free(path);
    if (*fd >= 0)
        return CTW_OK;
    return ctw_fail(err, why == ENOENT || why == ENOTDIR ? CTW_ENOTFOUND : CTW_EIO,
                    "%s: cannot be opened: %s", file, strerror(why));
}

enum ctw_status ctw_json_parse_file(struct ctw_json **out, const char *dir, const char *file,
                                    size_t max_bytes, struct ctw_err *err)
{
    char *text = NULL;
    struct stat info;
    int fd = -1;
    *out = NULL;
    enum ctw_status st = open_in(&fd, dir, file, err);
    if (st != CTW_OK)
        return st;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        st = ctw_fail(err, CTW_EIO, "%s: not a regular file", file);
        goto done;
    }
    if ((uint64_t)info.st_size > max_bytes) {
        st = ctw_fail(err, CTW_EFORMAT, "%s: %lld bytes of JSON; at most %zu are accepted", file,
                      (long long)info.st_size, max_bytes);
        goto done;
    }
    text = ctw_calloc((size_t)info.st_size, 1);
    if (text == NULL) {
        st = ctw_fail(err, CTW_ENOMEM, "%s: out of memory for %lld bytes", file,
                      (long long)info.st_size);
        goto done;
    }
    st = ctw_read_exactly(fd, text, (size_t)info.st_size, 0, file, err);
    if (st == CTW_OK)
        st = ctw_json_parse(out, file, text, (size_t)info.st_size, max_bytes, err);
done:
    ctw_free(text);
    (void)close(fd);
    return st;
}

void ctw_json_close(struct ctw_json *doc)
{
    if (doc == NULL)
        return;
    cJSON_Delete(doc->tree);
    ctw_free(doc->slots);
    ctw_free(doc->nodes.at);
    ctw_free(doc->text);
    ctw_free(doc->what);
    ctw_free(doc);
}

const struct ctw_json_node *ctw_json_root(const struct ctw_json *doc)
{
    return &doc->nodes.at[0];
}
