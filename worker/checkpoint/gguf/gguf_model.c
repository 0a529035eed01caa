#include "worker/checkpoint/gguf/gguf_model.h"

#include <stdio.h>
#include <string.h>

#include "worker/checkpoint/gguf/config_writer.h"
#include "worker/checkpoint/gguf/tensor_names.h"

static const struct ctw_gguf_arch *const tables[] = {
    ctw_gguf_archs_llama,     ctw_gguf_archs_qwen,   ctw_gguf_archs_gemma,
    ctw_gguf_archs_glm,       ctw_gguf_archs_window, ctw_gguf_archs_mixture,
    ctw_gguf_archs_recurrent, ctw_gguf_archs_hybrid, ctw_gguf_archs_layer_norm,
    ctw_gguf_archs_latent,    ctw_gguf_archs_fused,  ctw_gguf_archs_mamba,
    ctw_gguf_archs_heads,     ctw_gguf_archs_kda,    ctw_gguf_archs_streams,
    ctw_gguf_archs_more,
};

/* Does a layer have a tensor of this name? */
static bool has_tensor(const struct ctw_container *files, const char *name)
{
    for (int64_t i = 0; i < ctw_container_count(files); i++) {
        const char *stored = ctw_container_at(files, i)->name;
        const char *dot = strncmp(stored, "blk.", 4) == 0 ? strchr(stored + 4, '.') : NULL;
        if (dot != NULL && strcmp(dot + 1, name) == 0)
            return true;
    }
    return false;
}

static bool is_for(const struct ctw_gguf_arch *arch, const struct ctw_container *files,
                   const char *name)
{
    struct ctw_gguf_keys k = {.metadata = ctw_container_metadata(files), .arch = arch};
    return strcmp(arch->name, name) == 0 &&
           (arch->only_with == NULL || ctw_gguf_number(&k, arch->only_with, 0) > 0) &&
           (arch->only_with_tensor == NULL || has_tensor(files, arch->only_with_tensor));
}

/* All names, each once. */
static void list_names(char *list, size_t cap)
{
    const char *last = "";
    size_t at = 0;
    for (size_t t = 0; t < CTW_COUNT(tables); t++)
        for (const struct ctw_gguf_arch *a = tables[t]; a->name != NULL && at < cap; a++) {
            if (strcmp(a->name, last) != 0)
                at += (size_t)snprintf(list + at, cap - at, "%s%s", at > 0 ? ", " : "", a->name);
            last = a->name;
        }
}

static enum ctw_status find_arch(const struct ctw_gguf_arch **out,
                                 const struct ctw_container *files, const char *file,
                                 struct ctw_err *err)
{
    const struct ctw_metadata *m = ctw_container_metadata(files);
    const struct ctw_meta *name = ctw_meta_find(m, "general.architecture");
    char list[2048], text[64];
    const char *bytes;
    size_t n;
    if (name == NULL || !ctw_meta_text(name, &bytes, &n))
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: general.architecture is missing, which names the kind of model", file);
    const struct ctw_meta *type = ctw_meta_find(m, "general.type");
    if (type != NULL && strcmp(ctw_meta_describe(type, text, sizeof(text)), "model") != 0)
        return ctw_fail(err, CTW_EUNSUP, "%s: general.type is \"%s\"; only a model can be scored",
                        file, text);
    (void)ctw_meta_describe(name, text, sizeof(text));
    for (size_t t = 0; t < CTW_COUNT(tables); t++)
        for (*out = tables[t]; (*out)->name != NULL; ++*out)
            if (is_for(*out, files, text))
                return CTW_OK;
    list_names(list, sizeof(list));
    return ctw_fail(err, CTW_EUNSUP,
                    "%s: general.architecture \"%s\" is not supported; score the model that the "
                    "file was made from (safetensors) in its place; supported: %s",
                    file, text, list);
}

/*
 * The dtype to compute in: that of the matrices if they have one dtype; but bfloat16 for blocks of
 * codes. They are fp32 values that each product rounds once. bfloat16 is the dtype in which nearly
 * all originals are scored, so that differences come from the files; it cannot overflow; and CPUs
 * multiply it faster than float16. (Routers are F32 in all files.)
 */
static const char *dtype_of(const struct ctw_gguf_keys *k)
{
    int64_t n_f16 = 0, n_other = 0;
    for (int64_t i = 0; i < ctw_container_count(k->files); i++) {
        const struct ctw_tensor *t = ctw_container_at(k->files, i);
        bool f32 = t->block == NULL && t->dtype == CTW_F32;
        bool f16 = t->block == NULL && t->dtype == CTW_F16;
        n_f16 += t->n_dims >= 2 && f16;
        n_other += t->n_dims >= 2 && !f16 && !f32;
    }
    if (n_f16 + n_other == 0)
        return "float32";
    return n_other == 0 && !k->arch->wide ? "float16" : "bfloat16";
}

static void write_keys(struct ctw_gguf_keys *k)
{
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_string(&k->writer, "model_type", k->arch->model_type);
    ctw_json_write_key(&k->writer, "architectures");
    ctw_json_write_open(&k->writer, '[');
    ctw_json_write_string(&k->writer, k->arch->class_name);
    ctw_json_write_close(&k->writer, ']');
    ctw_json_write_key_string(&k->writer, "dtype", dtype_of(k));
    if (k->arch->in_text_config) {
        ctw_json_write_key(&k->writer, "text_config");
        ctw_json_write_open(&k->writer, '{');
    }
    ctw_gguf_write_sizes(k);
    if (k->arch->rope != NULL)
        k->arch->rope(k);
    else
        ctw_gguf_write_rope(k, ctw_gguf_head(k));
    if (k->arch->more != NULL)
        k->arch->more(k);
    if (k->arch->fixed != NULL)
        ctw_json_write_source(&k->writer, k->arch->fixed, strlen(k->arch->fixed));
    if (k->arch->in_text_config)
        ctw_json_write_close(&k->writer, '}');
    ctw_json_write_close(&k->writer, '}');
}

enum ctw_status ctw_gguf_describe(struct ctw_json **keys, struct ctw_container *files,
                                  const char *file, struct ctw_err *err)
{
    struct ctw_gguf_keys k = {
        .files = files, .metadata = ctw_container_metadata(files), .file = file, .err = err};
    const char *text;
    size_t bytes;
    *keys = NULL;
    k.st = find_arch(&k.arch, files, file, err);
    if (k.st == CTW_OK)
        write_keys(&k);
    if (k.st == CTW_OK)
        k.st = ctw_json_writer_text(&k.writer, &text, &bytes, err);
    if (k.st == CTW_OK)
        k.st = ctw_json_parse(keys, file, text, bytes, bytes, err);
    if (k.st == CTW_OK)
        k.st = ctw_gguf_rename(&k, files);
    ctw_json_writer_fini(&k.writer);
    if (k.st != CTW_OK) {
        ctw_json_close(*keys);
        *keys = NULL;
    }
    return k.st;
}
