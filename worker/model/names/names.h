/*
 * The names of modules and tensors. A family's function describes names in one spelling; files have
 * other spellings, with another prefix. Used by model.c and tensors.c only.
 */
#ifndef CTW_WORKER_NAMES_H
#define CTW_WORKER_NAMES_H

#include "worker/model/config.h"

/*
 * Chooses the spelling in which the model's container has the embedding and the head (the first
 * spelling if it has neither), and renames the described tensors to the names of the makers' files
 * or of transformers 5's class. A head that transformers ties only by default is the embedding only
 * if the container has no head.
 */
enum ctw_status ctw_names_choose(struct ctw_config *c, struct ctw_model *m,
                                 struct ctw_err *err) CTW_MUST_CHECK;

/* The module's quantization_config group in any spelling, the file's first; other_class: that
 * targets may name instead of its own (NULL: none). A stack of experts also has the name of the
 * module that owns it. */
enum ctw_status ctw_name_find_group(const struct ctw_config *c, const struct ctw_want *want,
                                    const char *other_class, const struct ctw_quant_group **out,
                                    struct ctw_err *err) CTW_MUST_CHECK;

/* Is the module without the last `up` components of its name, in any spelling, a target, and not to
 * be ignored? */
enum ctw_status ctw_name_is_target(const struct ctw_config *c, const struct ctw_want *want, int up,
                                   const char *class_name, const struct ctw_patterns *targets,
                                   const struct ctw_patterns *ignore, bool *out,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/* The class of the attention modules: the target that may be it ("LlamaAttention"), if one does. */
const char *ctw_name_attention_class(const struct ctw_patterns *targets);

/* Removes the last component of a module's name. */
void ctw_name_parent(char *name);

/* Is this a tensor of another model than the text model: of a tower, of a draft (mtp)? */
bool ctw_name_is_apart(const struct ctw_config *c, const char *name) CTW_MUST_CHECK;

#endif
