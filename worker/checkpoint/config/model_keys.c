#include "worker/checkpoint/config/model_keys.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "worker/checkpoint/config/adapter.h"
#include "worker/checkpoint/config/agreement.h"
#include "worker/checkpoint/gguf/gguf_model.h"

/* Is the text "ORG/NAME": two words of letters, digits, '.', '_' and '-', which begin with a letter
 * or a digit? */
static bool is_hub_name(const char *dir)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_-.";
    enum { N_MARKS = 3 };
    size_t alnum = sizeof(letters) - 1 - N_MARKS, organisation = strspn(dir, letters);
    if (organisation == 0 || dir[organisation] != '/')
        return false;
    const char *name = dir + organisation + 1;
    size_t n = strspn(name, letters);
    return n > 0 && name[n] == '\0' && memchr(letters, dir[0], alnum) != NULL &&
           memchr(letters, name[0], alnum) != NULL;
}

/* Says what dir is, and what to give: "cannot be opened" does not help a user who gave the wrong
 * folder. */
static enum ctw_status explain_missing(const char *dir, const char *file, struct ctw_err *err)
{
    struct stat st;
    bool there = stat(dir, &st) == 0;
    if (!there && is_hub_name(dir))
        return ctw_fail(err, CTW_ENOTFOUND,
                        "no such folder; if the name is one on the Hugging Face hub, fetch the "
                        "checkpoint (hf download %s --local-dir DIR) and give DIR",
                        dir);
    if (!there || !S_ISDIR(st.st_mode))
        return ctw_fail(err, CTW_ENOTFOUND,
                        "%s; expected a checkpoint folder with %s and model.safetensors (or its "
                        "shards and index)",
                        there ? "a file, not a folder" : "no such folder", file);
    enum ctw_status is_adapter = ctw_adapter_refuse(dir, err);
    if (is_adapter != CTW_OK)
        return is_adapter;
    return ctw_fail(err, CTW_ENOTFOUND,
                    "the folder has no %s; expected a Hugging Face checkpoint folder with %s and "
                    "model.safetensors (or its shards and index)",
                    file, file);
}

/* Reads the configuration that a user gives for a container with metadata: a folder with
 * config.json, a file, or the name of a file beside the container. */
static enum ctw_status read_given(struct ctw_json **out, const char *path, const char *given,
                                  const char **title, struct ctw_err *err)
{
    struct ctw_checkpoint_path place;
    struct stat info;
    const char *slash = strrchr(given, '/');
    enum ctw_status st = ctw_checkpoint_path(&place, path, err);
    *title = given;
    if (st != CTW_OK)
        return st;
    if (stat(given, &info) == 0 && S_ISDIR(info.st_mode)) {
        (void)snprintf(place.dir, sizeof(place.dir), "%s", given);
        *title = "config.json";
    } else if (slash != NULL) {
        (void)snprintf(place.dir, sizeof(place.dir), "%.*s", (int)(slash - given + 1), given);
        *title = slash + 1;
    }
    return ctw_json_parse_file(out, place.dir, *title, CTW_MODEL_KEYS_MAX_BYTES, err);
}

/* The keys of the container's metadata and the name of their file. If the user gives a configuration,
 * its keys are used instead, and must agree with the metadata. */
static enum ctw_status read_metadata(struct ctw_json **out, const char *path, const char *given,
                                     struct ctw_container *files, const char **title,
                                     struct ctw_err *err)
{
    struct ctw_json *config = NULL;
    *title = ctw_container_file(files, 0);
    enum ctw_status st = ctw_gguf_describe(out, files, *title, err);
    if (st != CTW_OK || given == NULL)
        return st;
    st = read_given(&config, path, given, title, err);
    if (st == CTW_OK)
        st = ctw_keys_agree(*out, config, err);
    ctw_json_close(*out);
    *out = st == CTW_OK ? config : NULL;
    if (st != CTW_OK)
        ctw_json_close(config);
    return st;
}

enum ctw_status ctw_model_keys_read(struct ctw_json **out, const char *path, const char *file,
                                    struct ctw_container *files, const char **title,
                                    struct ctw_err *err)
{
    struct ctw_checkpoint_path place;
    if (files != NULL && ctw_container_metadata(files) != NULL)
        return read_metadata(out, path, file, files, title, err);
    file = file != NULL ? file : "config.json";
    *title = file;
    enum ctw_status st = ctw_checkpoint_path(&place, path, err);
    if (st != CTW_OK)
        return st;
    st = ctw_json_parse_file(out, place.dir, file, CTW_MODEL_KEYS_MAX_BYTES, err);
    return st == CTW_ENOTFOUND ? explain_missing(place.dir, file, err) : st;
}
