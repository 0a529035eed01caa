/*
 * Private to base/json*.c: the nodes of a document, in the order of the text (the first child comes
 * right after its parent), and the scan that creates them.
 */
#ifndef CTW_BASE_JSON_TREE_H
#define CTW_BASE_JSON_TREE_H

#include "base/json.h"

struct ctw_json_node {
    const struct ctw_json *doc;
    const char *key;    /* of a member; owned by cJSON's tree */
    const char *string; /* CTW_JSON_STRING; owned by cJSON's tree */
    double number;      /* CTW_JSON_NUMBER, CTW_JSON_NONFINITE */
    uint32_t parent;    /* indices into nodes[]; the root is its own parent */
    uint32_t next;      /* next sibling; 0: none */
    uint32_t count;     /* number of children */
    uint32_t source;    /* first byte in the text */
    uint32_t source_bytes;
    uint8_t type; /* enum ctw_json_type */
    bool truth;   /* CTW_JSON_BOOL */
};

struct ctw_json_nodes {
    struct ctw_json_node *at;
    uint32_t count, capacity;
};

struct ctw_json {
    char *what;
    char *text; /* a copy of the input, NUL-terminated */
    size_t bytes;
    struct ctw_json_nodes nodes;
    struct cJSON *tree; /* owns the strings */
    uint32_t *slots;    /* open addressing over all members, by (parent, key); 0: empty */
    uint32_t slot_mask;
};

/* The slot of (parent, key), or the empty slot in which to insert it. */
uint32_t ctw_json_slot(const struct ctw_json *doc, uint32_t parent, const char *key);

/*
 * Checks text[0 .. bytes-1] against the rules in json.h and appends a node for every value. Sets
 * type, parent, next, count, source, truth. bytes <= UINT32_MAX - 1.
 */
enum ctw_status ctw_json_scan(struct ctw_json_nodes *nodes, const char *text, size_t bytes,
                              const char *what, struct ctw_err *err);

#endif
