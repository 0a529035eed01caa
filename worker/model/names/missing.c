#include "worker/model/names/missing.h"

#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "worker/checkpoint/adapter.h"
#include "worker/checkpoint/foreign.h"

/* Components that wrappers put into the names of a model's tensors. */
static const struct {
    const char *component, *remedy;
} wrappers[] = {
    {"_orig_mod.", "; the names in the file contain \"_orig_mod.\", which torch.compile adds: save "
                   "the model without it (model._orig_mod.save_pretrained)"},
    {"lora_A.", "; the file holds a model with an adapter (LoRA) that is not merged: save the "
                "merged model (peft: model.merge_and_unload().save_pretrained)"},
    {"base_layer.", "; the names in the file contain \"base_layer.\", which peft adds: save the "
                    "merged model (peft: model.merge_and_unload().save_pretrained)"},
    {"base_model.model.", "; the names in the file begin with \"base_model.model.\", which peft "
                          "adds: save the merged model (peft: "
                          "model.merge_and_unload().save_pretrained)"},
    {"_fsdp_wrapped_module.", "; the names in the file contain \"_fsdp_wrapped_module.\", which "
                              "FSDP adds: save the unwrapped model (accelerate: unwrap_model)"},
    {"_checkpoint_wrapped_module.",
     "; the names in the file contain \"_checkpoint_wrapped_module.\", which checkpointing of "
     "activations adds: save the unwrapped model"},
    {"_forward_module.", "; the names in the file begin with \"_forward_module.\", which a trainer "
                         "adds: save the model that it wraps (save_pretrained)"},
    {"module.", "; the names in the file begin with \"module.\", which DataParallel and DDP add: "
                "save the wrapped model (model.module.save_pretrained)"},
};

/* Has a tensor's name this component, at its begin or after a dot? */
static bool has_component(const char *name, const char *component)
{
    const char *at = strstr(name, component);
    while (at != NULL && at > name && at[-1] != '.')
        at = strstr(at + 1, component);
    return at != NULL;
}

const char *ctw_missing_remedy(const struct ctw_container *files, const struct ctw_want *want)
{
    for (size_t i = 0; i < CTW_COUNT(wrappers); i++)
        for (int64_t t = 0; t < ctw_container_count(files); t++)
            if (has_component(ctw_container_at(files, t)->name, wrappers[i].component))
                return wrappers[i].remedy;
    if (ctw_want_is_end(want, true, CTW_M_HEAD))
        return "; if the head is the embedding, set tie_word_embeddings to true in config.json, "
               "else fetch the file that has the head";
    return "";
}

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

/* Replaces "cannot be opened", which does not help a user who gave the wrong folder. */
enum ctw_status ctw_missing_config(const char *dir, const char *file, struct ctw_err *err)
{
    struct stat st;
    bool there = stat(dir, &st) == 0;
    if (there && ctw_foreign_is_gguf(dir))
        return ctw_fail(err, CTW_EUNSUP,
                        "format \"GGUF\" is not supported; give the folder of the safetensors "
                        "checkpoint that it was made from, with %s",
                        file);
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
