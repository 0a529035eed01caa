#include "worker/checkpoint/config/adapter.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

enum { MAX_BYTES = 1 << 20, MAX_SHOWN = 200 };

static const char file_name[] = "adapter_config.json";

/* Has the folder an adapter_config.json? base: " of NAME", or "" if the file does not say. */
static bool find_adapter(const char *dir, char base[MAX_SHOWN])
{
    struct ctw_json *doc = NULL;
    struct ctw_err err = {0};
    enum ctw_status st = ctw_json_parse_file(&doc, dir, file_name, MAX_BYTES, &err);
    base[0] = '\0';
    if (st == CTW_OK) {
        const struct ctw_json_node *name =
            ctw_json_get(ctw_json_root(doc), "base_model_name_or_path");
        const char *text = name != NULL ? ctw_json_string(name) : NULL;
        if (text != NULL && text[0] != '\0')
            (void)snprintf(base, MAX_SHOWN, " of %s", text);
    }
    ctw_json_close(doc);
    return st != CTW_ENOTFOUND && st != CTW_ENOMEM;
}

enum ctw_status ctw_adapter_refuse(const char *dir, struct ctw_err *err)
{
    char base[MAX_SHOWN];
    if (!find_adapter(dir, base))
        return CTW_OK;
    return ctw_fail(err, CTW_EUNSUP,
                    "%s: the folder holds an adapter (LoRA)%s, not a model; merge it into its base "
                    "model (peft: merge_and_unload), and give the merged folder",
                    file_name, base);
}

void ctw_adapter_warn(const char *dir)
{
    char base[MAX_SHOWN];
    if (find_adapter(dir, base))
        ctw_warn("%s: an adapter (LoRA)%s lies beside the weights, which are scored without it; "
                 "transformers with peft applies it: merge it (peft: merge_and_unload), or remove "
                 "this file",
                 file_name, base);
}
