/* Walks the nodes of a document. */
#include "base/json_tree.h"

#include <string.h>

#include "base/hash.h"

uint32_t ctw_json_slot(const struct ctw_json *doc, uint32_t parent, const char *key)
{
    uint32_t slot = (uint32_t)ctw_hash(parent, key, strlen(key)) & doc->slot_mask;
    for (; doc->slots[slot] != 0; slot = (slot + 1) & doc->slot_mask) {
        const struct ctw_json_node *node = &doc->nodes.at[doc->slots[slot]];
        if (node->parent == parent && strcmp(node->key, key) == 0)
            break;
    }
    return slot;
}

enum ctw_json_type ctw_json_type(const struct ctw_json_node *node)
{
    return (enum ctw_json_type)node->type;
}

int64_t ctw_json_count(const struct ctw_json_node *node)
{
    return node->count;
}

const struct ctw_json_node *ctw_json_first(const struct ctw_json_node *parent)
{
    return parent->count == 0 ? NULL : parent + 1;
}

const struct ctw_json_node *ctw_json_next(const struct ctw_json_node *node)
{
    return node->next == 0 ? NULL : &node->doc->nodes.at[node->next];
}

const char *ctw_json_key(const struct ctw_json_node *member)
{
    return member->key;
}

const struct ctw_json_node *ctw_json_get(const struct ctw_json_node *object, const char *key)
{
    const struct ctw_json *doc = object->doc;
    if (object->type != CTW_JSON_OBJECT || object->count == 0)
        return NULL;
    uint32_t i = doc->slots[ctw_json_slot(doc, (uint32_t)(object - doc->nodes.at), key)];
    return i == 0 ? NULL : &doc->nodes.at[i];
}

bool ctw_json_has(const struct ctw_json_node *object, const char *key)
{
    const struct ctw_json_node *node = ctw_json_get(object, key);
    return node != NULL && node->type != CTW_JSON_NULL;
}

bool ctw_json_is_null(const struct ctw_json_node *node)
{
    return node->type == CTW_JSON_NULL;
}

const char *ctw_json_string(const struct ctw_json_node *node)
{
    return node->type == CTW_JSON_STRING ? node->string : NULL;
}

const char *ctw_json_source(const struct ctw_json_node *node, size_t *bytes)
{
    *bytes = node->source_bytes;
    return node->doc->text + node->source;
}
