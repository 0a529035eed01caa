/*
 * The text models of MiniCPM-V 2.5 to 4.5, whose version says which family they are of; their keys
 * are at the top level. Defaults: those of that family.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    static const struct {
        double version;
        const struct ctw_family *text;
    } models[] = {{2.5, &ctw_family_llama},
                  {2.6, &ctw_family_qwen2},
                  {4.0, &ctw_family_llama},
                  {4.5, &ctw_family_qwen3}};
    const double version = ctw_key_number(c, "version", 0, CTW_NULL_REFUSED, 0, 100);
    for (size_t i = 0; i < CTW_COUNT(models) && c->status == CTW_OK; i++)
        if (models[i].version == version) {
            models[i].text->describe(c);
            return;
        }
    ctw_key_fail(c, "version", CTW_EUNSUP, "found %g; supported: 2.5, 2.6, 4.0, 4.5", version);
}

static const struct ctw_spelling spellings[] = {{"llm.model.", "llm.lm_head"}, {NULL, NULL}};

const struct ctw_family ctw_family_minicpmv = {.model_type = "minicpmv",
                                               .architecture = "MiniCPMV",
                                               .wrapper = &(const struct ctw_wrapper){.flat = true},
                                               .spellings = spellings,
                                               .describe = describe};
