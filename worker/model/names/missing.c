#include "worker/model/names/missing.h"

#include <string.h>

#include "base/mem.h"

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

/* Experts that are cut for tensor parallelism, as a patch of vLLM stores them in EXL3. */
static const char sliced[] = "_rank0.";
static const char whole[] = "; the file holds experts cut into slices (\"_rank0\"), which is not "
                            "supported: quantise the model with exllamav3's own convert.py";

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
    for (int64_t t = 0; t < ctw_container_count(files); t++)
        if (strstr(ctw_container_at(files, t)->name, sliced) != NULL)
            return whole;
    if (ctw_want_is_end(want, true, CTW_M_HEAD))
        return "; if the head is the embedding, set tie_word_embeddings to true in config.json, "
               "else fetch the file that has the head";
    return "";
}
