/*
 * Quantisation configurations of other methods than compressed-tensors whose weights can be read:
 * FP8 as DeepSeek and others publish it, FBGEMM FP8, ModelOpt, gpt-oss' MXFP4, GPTQ, AWQ, MLX,
 * bitsandbytes, Quark, HQQ, torchao, and AutoRound where it stores weights as these. One
 * configuration describes all modules that are not on its list. The stored tensors decide about
 * each module.
 */
#ifndef CTW_WORKER_QUANT_NATIVE_H
#define CTW_WORKER_QUANT_NATIVE_H

#include "worker/checkpoint/quant/quant_config.h"

struct ctw_quant_method;

/* Writes the names of all supported methods, compressed-tensors first, and returns the text. */
const char *ctw_quant_methods_text(char *text, size_t bytes);
/* The supported method whose name is nearest to a mistyped one; NULL: none is near enough. */
const char *ctw_quant_method_nearest(const char *name);

/* The quant_method of a quantization_config or, if that key is absent, the method that other keys
 * show; NULL: none. ModelOpt's is "modelopt" with any quant_algo. */
const char *ctw_quant_method_name(const struct ctw_json_node *quantization);
/* The method of a quantization_config; NULL: compressed-tensors, or one that is not supported. */
const struct ctw_quant_method *ctw_quant_method_find(const struct ctw_json_node *quantization);

/* Reads the method's quantization_config. The caller closes *out, also after a failure. */
enum ctw_status ctw_quant_method_read(const struct ctw_quant_method *method,
                                      struct ctw_quant_config *out,
                                      const struct ctw_json_node *quantization,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* Adds the members that do not matter to the method. */
enum ctw_status ctw_quant_method_list_unread(const struct ctw_quant_method *method,
                                             const struct ctw_json_node *quantization,
                                             struct ctw_unread *unread,
                                             struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Reads the file beside config.json in which some tools alone say how they quantised: ModelOpt's
 * hf_quant_config.json, AutoGPTQ's quantize_config.json, AutoAWQ's quant_config.json. *doc: the
 * file, which *out refers to and the caller closes after *out; NULL: there is none.
 */
enum ctw_status ctw_quant_folder_read(struct ctw_quant_config *out, struct ctw_json **doc,
                                      const char *dir, struct ctw_err *err) CTW_MUST_CHECK;

/* Does the object, of any name, have MLX's members? */
bool ctw_quant_is_mlx(const struct ctw_json_node *object);
/* Is the member's key the name of a module? */
bool ctw_quant_mlx_is_module(const struct ctw_json_node *member);

/* What bitsandbytes' quant_state says of a [n, k] matrix replaces members of *args. */
enum ctw_status ctw_quant_read_bnb_state(struct ctw_quant_args *args, const char *text,
                                         size_t bytes, int64_t n, int64_t k,
                                         struct ctw_err *err) CTW_MUST_CHECK;

/* ---- of quant_native.c, quant_packed.c, quant_modelopt.c and other quant_METHOD.c ---- */

/* The members bits, group_size and sym (or AWQ's zero_point) that are present replace those of
 * *args. 16 bits or more: not quantised. */
enum ctw_status ctw_quant_read_packed(struct ctw_quant_args *args,
                                      const struct ctw_json_node *object, bool awq,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* A group of the modules that match the regular expression, which `member` states. */
enum ctw_status ctw_quant_add_rule(struct ctw_quant_config *out, const struct ctw_json_node *member,
                                   const char *text, const struct ctw_quant_args *args,
                                   struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_gptq(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                    struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_awq(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* The groups of "quantized_layers", an algorithm for each module. */
enum ctw_status ctw_quant_read_modelopt_layers(struct ctw_quant_config *out,
                                               const struct ctw_json_node *q,
                                               struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_modelopt(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                        struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_bnb(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_mlx(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_quark(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                     struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_hqq(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_torchao(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                       struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_quant_read_auto_round(struct ctw_quant_config *out,
                                          const struct ctw_json_node *q,
                                          struct ctw_err *err) CTW_MUST_CHECK;

#endif
