#include "worker/model/names/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"
#include "worker/model/names/stored.h"

enum { MAX_NAME = 1024, MAX_NAMES = 24 };

/* transformers 5's first. */
const struct ctw_spelling ctw_wrapped_spellings[] = {
    {"model.language_model.", "lm_head"},
    {"language_model.model.", "language_model.lm_head"},
    {"model.", "lm_head"},
    {NULL, NULL},
};

const struct ctw_spelling ctw_transformer_spellings[] = {
    {"transformer.", "lm_head"},
    {"", "lm_head"},
    {NULL, NULL},
};

/* ---- spellings ---- */

/* What follows `prefix` in the name; NULL: the name does not begin with it. */
static const char *after(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

/* Writes a described name in the family's n-th spelling, if it has any. */
static void spell(const struct ctw_config *c, const char *described, int n, char buf[MAX_NAME])
{
    const struct ctw_spelling *s = c->family->spellings != NULL ? &c->family->spellings[n] : NULL;
    const char *prefix = c->family->prefix;
    const char *in_model = after(described, prefix != NULL ? prefix : "model.");
    const char *in_head = after(described, "lm_head");
    if (s != NULL && in_model != NULL)
        (void)snprintf(buf, MAX_NAME, "%s%s", s->model, in_model);
    else if (s != NULL && in_head != NULL)
        (void)snprintf(buf, MAX_NAME, "%s%s", s->head, in_head);
    else
        (void)snprintf(buf, MAX_NAME, "%s", described);
}

/*
 * Writes the in-memory name of a decoder layer's module or tensor, by the next matching entry of
 * family->in_memory from *at on. Returns false if no entry matches.
 */
static bool name_in_memory(const struct ctw_config *c, const struct ctw_want *want,
                           const char *described, int *at, char buf[MAX_NAME])
{
    const struct ctw_renamed *renamed = c->family->in_memory;
    char layer[MAX_NAME];
    (void)snprintf(layer, sizeof(layer), "%s.%d.", c->layers, want->layer - 1);
    const char *in_layer = after(described, layer);
    if (renamed == NULL || in_layer == NULL)
        return false;
    for (; renamed[*at].described != NULL; ++*at) {
        const char *rest = after(in_layer, renamed[*at].described);
        if (rest == NULL || (*rest != '\0' && *rest != '.'))
            continue;
        (void)snprintf(buf, MAX_NAME, "%s%s%s", layer, renamed[(*at)++].in_memory, rest);
        return true;
    }
    return false;
}

/* Does the container have the values of a matrix of this name? */
static bool has_matrix(const struct ctw_config *c, const struct ctw_container *container,
                       const char *module)
{
    char full[MAX_NAME + 32];
    for (const struct ctw_part_names *names = c->quant.names; names != NULL;
         names = ctw_stored_next(&c->quant, names == c->quant.names ? NULL : names)) {
        const char *const parts[] = {names->values, names->codes[CTW_PART_VALUES],
                                     names->stacks[CTW_PART_VALUES]};
        for (size_t i = 0; i < CTW_COUNT(parts); i++) {
            if (parts[i] == NULL)
                continue;
            (void)snprintf(full, sizeof(full), "%s%s%s", module,
                           parts[i][0] == '_' || parts[i][0] == '.' ? "" : ".", parts[i]);
            if (ctw_container_find(container, full) != NULL)
                return true;
        }
    }
    return false;
}

/* Does the container have the head, or the embedding, in the n-th spelling? (A tied head is not
 * wanted.) */
static bool has_end(const struct ctw_config *c, const struct ctw_container *container, bool head,
                    int n)
{
    char name[MAX_NAME];
    for (int64_t i = 0; i < c->n_wants; i++)
        if (ctw_want_is_end(&c->wants[i], head, head ? CTW_M_HEAD : CTW_M_EMBED)) {
            spell(c, c->wants[i].name, n, name);
            return has_matrix(c, container, name);
        }
    return true;
}

/* The first spelling in which the container has the embedding and the head, or at least the
 * embedding; 0: there is none. */
static int find_spelling(const struct ctw_config *c, const struct ctw_container *container)
{
    int found = -1;
    for (int n = 0; c->family->spellings[n].model != NULL; n++) {
        if (!has_end(c, container, false, n))
            continue;
        if (has_end(c, container, true, n))
            return n;
        if (found < 0)
            found = n;
    }
    return found < 0 ? 0 : found;
}

static bool has_name(const struct ctw_config *c, const struct ctw_container *container,
                     const char *name)
{
    return has_matrix(c, container, name) || ctw_container_find(container, name) != NULL;
}

/* The name of a tensor or matrix in the container: as described, otherwise as in memory. If the
 * container has neither, returns the name for the message: the in-memory name if other tensors were
 * found by such names (*in_memory). */
static void find_name(const struct ctw_config *c, const struct ctw_container *container,
                      const struct ctw_want *want, bool *in_memory, char buf[MAX_NAME])
{
    char renamed[MAX_NAME], name[MAX_NAME];
    bool found = false;
    spell(c, want->name, c->spelling, buf);
    if (has_name(c, container, buf))
        return;
    for (int at = 0, n = 0; !found && name_in_memory(c, want, want->name, &at, renamed); n++) {
        spell(c, renamed, c->spelling, name);
        found = has_name(c, container, name);
        if (found || (n == 0 && *in_memory))
            memcpy(buf, name, sizeof(name));
    }
    *in_memory |= found;
}

/* Does the checkpoint store a head of its own, although the configuration ties it? */
static bool has_own_head(const struct ctw_config *c, const struct ctw_container *container,
                         const struct ctw_want *want)
{
    char codes[MAX_NAME + 32];
    const struct ctw_part_names *names = c->quant.names;
    if (c->family->spellings != NULL && c->tied_by_default && has_matrix(c, container, want->name))
        return true;
    if (!names->unfused)
        return false;
    (void)snprintf(codes, sizeof(codes), "%s.%s", want->name, names->codes[CTW_PART_VALUES]);
    return ctw_container_find(container, codes) != NULL;
}

enum ctw_status ctw_names_choose(struct ctw_config *c, struct ctw_model *m, struct ctw_err *err)
{
    char name[MAX_NAME];
    bool spelled = c->family->spellings != NULL, in_memory = false;
    const bool renamed = spelled || c->family->in_memory != NULL;
    c->spelling = spelled ? find_spelling(c, m->container) : 0;
    for (int64_t i = 0; i < c->n_wants && renamed; i++) {
        struct ctw_want *w = &c->wants[i];
        find_name(c, m->container, w, &in_memory, name);
        w->described = w->name;
        w->name = ctw_strdup(name);
        if (w->name == NULL)
            return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of tensors");
    }
    for (int64_t i = 0; i < c->n_wants; i++)
        if (c->wants[i].kind == CTW_WANT_TIED && has_own_head(c, m->container, &c->wants[i])) {
            c->wants[i].kind = CTW_WANT_MATRIX;
            m->tied = false;
        }
    return CTW_OK;
}

/* The module's names in all spellings, in the makers' files and in memory; the file's first. */
struct names {
    char text[MAX_NAMES][MAX_NAME];
    const char *name[MAX_NAMES];
    int n;
};

static void add_spelled(const struct ctw_config *c, const char *described, int spelling,
                        struct names *out)
{
    if (out->n == MAX_NAMES)
        return;
    spell(c, described, spelling, out->text[out->n]);
    if (strcmp(out->text[out->n], out->text[0]) != 0)
        out->n++;
}

static void list_names(const struct ctw_config *c, const struct ctw_want *want, struct names *out)
{
    const struct ctw_spelling *spellings = want->described != NULL ? c->family->spellings : NULL;
    const char *described = want->described != NULL ? want->described : want->name;
    char in_memory[MAX_NAME];
    (void)snprintf(out->text[0], MAX_NAME, "%s", want->name);
    out->n = 1;
    for (int i = 0; i == 0 || (spellings != NULL && spellings[i].model != NULL); i++) {
        int at = 0;
        add_spelled(c, described, i, out);
        while (name_in_memory(c, want, described, &at, in_memory))
            add_spelled(c, in_memory, i, out);
    }
    for (int i = 0; i < out->n; i++)
        out->name[i] = out->text[i];
}

/* Adds the modules "..experts" whose parameters the names are. */
static void add_owners(struct names *names)
{
    static const char owner[] = ".experts";
    for (int i = 0, n = names->n; i < n && names->n < MAX_NAMES; i++) {
        char *text = names->text[names->n];
        memcpy(text, names->text[i], MAX_NAME);
        ctw_name_parent(text);
        size_t bytes = strlen(text);
        if (bytes >= sizeof(owner) && strcmp(text + bytes + 1 - sizeof(owner), owner) == 0)
            names->name[names->n++] = text;
    }
}

enum ctw_status ctw_name_find_group(const struct ctw_config *c, const struct ctw_want *want,
                                    const char *other_class, const struct ctw_quant_group **out,
                                    struct ctw_err *err)
{
    struct names names;
    list_names(c, want, &names);
    if (want->n_stacked > 0)
        add_owners(&names);
    const struct ctw_module module = {.names = names.name,
                                      .n_names = names.n,
                                      .class_name = want->class_name,
                                      .other_class = other_class};
    return ctw_quant_config_find(&c->quant, &module, out, err);
}

void ctw_name_parent(char *name)
{
    char *end = strrchr(name, '.');
    if (end != NULL)
        *end = '\0';
}

enum ctw_status ctw_name_is_target(const struct ctw_config *c, const struct ctw_want *want, int up,
                                   const char *class_name, const struct ctw_patterns *targets,
                                   const struct ctw_patterns *ignore, bool *out,
                                   struct ctw_err *err)
{
    struct names names;
    bool target = false, ignored = false;
    enum ctw_status st = CTW_OK;
    list_names(c, want, &names);
    for (int i = 0; i < names.n && st == CTW_OK; i++) {
        bool yes = false, no = false;
        for (int j = 0; j < up; j++)
            ctw_name_parent(names.text[i]);
        st = ctw_patterns_match(targets, names.name[i], class_name, &yes, err);
        if (st == CTW_OK)
            st = ctw_patterns_match(ignore, names.name[i], class_name, &no, err);
        target |= yes;
        ignored |= no;
    }
    *out = target && !ignored;
    return st;
}

const char *ctw_name_attention_class(const struct ctw_patterns *targets)
{
    static const char ending[] = "Attention";
    for (int64_t i = 0; i < targets->n; i++) {
        const char *text = targets->items[i].text;
        size_t n = strlen(text), m = sizeof(ending) - 1;
        if (targets->items[i].regex == NULL && n >= m && strcmp(text + n - m, ending) == 0)
            return text;
    }
    return ending;
}

/* ---- experts ---- */

const struct ctw_tensor *ctw_files_find(const struct ctw_config *c, const char *part)
{
    for (int64_t i = 0; c->files != NULL && i < ctw_container_count(c->files); i++)
        if (strstr(ctw_container_at(c->files, i)->name, part) != NULL)
            return ctw_container_at(c->files, i);
    return NULL;
}

bool ctw_files_by_mlx(const struct ctw_config *c)
{
    const struct ctw_tensor *conv = ctw_files_find(c, ".conv1d.weight");
    return conv != NULL && conv->n_dims == 3 && conv->shape[1] > 1 && conv->shape[2] == 1;
}

/* ---- other models in the checkpoint ---- */

/* Is this a tensor of a layer for drafts, behind the decoders? */
static bool is_draft(const struct ctw_config *c, const char *name)
{
    char described[MAX_NAME], layer[MAX_NAME];
    for (int64_t i = c->first_draft; i < c->first_draft + c->n_drafts; i++) {
        (void)snprintf(described, sizeof(described), "%s.%" PRId64 ".", c->layers, i);
        spell(c, described, c->spelling, layer);
        if (after(name, layer) != NULL)
            return true;
    }
    return false;
}

bool ctw_name_is_apart(const struct ctw_config *c, const char *name)
{
    /* Each may also follow "model.". */
    static const char *const towers[] = {
        "vision_tower.",
        "vision_model.",
        "visual.",
        "vision_encoder.",
        "multi_modal_projector.",
        "mm_projector.",
        "patch_merge_mlp.",
        "audio_tower.",
        "audio.",
        "audio_encoder.",
        "speech_embeddings.",
        "audio_projector.",
        "embed_vision.",
        "embed_audio.",
        "image_newline",
        "vit_large_projector.",
        "vision_backbone.",
        "connector.",
        "mlp1.",
        "vpm.",
        "resampler.",
        "vision_embedder.",
        "vision_adapter.",
        "vision_projection.",
        "embed_tokens_extend.",
        "merger.",
        "image_tower.",
        "video_tower.",
        "projector.",
        "aligner.",
        "high_res_vision_",
        "visual_embeddings_table.",
        "vision_embed_tokens.",
        "vqmodel.",
        "generation_",
    };
    const char *rest = after(name, "model.");
    rest = rest != NULL ? rest : name;
    if (after(rest, "mtp.") != NULL || after(rest, "mtp_layers.") != NULL || is_draft(c, name))
        return true;
    const struct ctw_wrapper *wrapper = c->family->wrapper;
    if (wrapper != NULL && wrapper->adapters && strstr(rest, ".lora_") != NULL)
        return true;
    for (size_t i = 0; wrapper != NULL && i < CTW_COUNT(towers); i++)
        if (after(rest, towers[i]) != NULL)
            return true;
    return false;
}
