/*
 * config.json's quantization_config, as its method reads it (compressed-tensors, or one of
 * quant_native.h): the scheme of each module, and the declarations that do not concern weights. An
 * unknown setting that would change the weights' numbers is refused by name.
 */
#ifndef CTW_WORKER_QUANT_CONFIG_H
#define CTW_WORKER_QUANT_CONFIG_H

#include "kernels/formats/format.h"
#include "worker/checkpoint/config/unread.h"
#include "worker/checkpoint/quant/match.h"
#include "worker/checkpoint/quant/quant_transform.h"

enum ctw_quant_when { CTW_QUANT_STATIC, CTW_QUANT_DYNAMIC, CTW_QUANT_LOCAL };

/* What quantization_config specifies for activations (QuantizationArgs). */
struct ctw_quant_activations {
    bool present;
    bool is_float, symmetric;
    int num_bits;
    char strategy[16];  /* "token", "tensor", "group", "tensor_group", ... */
    int64_t group_size; /* 0 if there is none */
    enum ctw_quant_when when;
    char scale_dtype[16]; /* "float8_e4m3fn", "uint8"; empty: not specified */
};

struct ctw_quant_group {
    const char *name;
    struct ctw_patterns targets;
    bool quantised;             /* false: the modules are dense (a scheme without weights) */
    struct ctw_quant_args args; /* for the weights */
    struct ctw_quant_activations input, output;
    char activations[112]; /* both in words: "int8 token dynamic"; empty: none */
};

struct ctw_quant_config {
    struct ctw_quant_group *groups;
    int64_t n_groups;
    struct ctw_patterns ignore;
    struct ctw_transform *transforms; /* of activations */
    int64_t n_transforms;
    const struct ctw_part_names *names; /* of the method that wrote the tensors */
    bool present;                       /* config.json has a quantization_config */
    bool tensors_decide; /* a weight that is stored dense is dense, regardless of the groups:
                            methods other than compressed-tensors list unquantised modules
                            loosely */
    bool mixes;          /* the stored tensors decide a module's method, format and groups, too */
    bool in_order;       /* if the targets of several groups match, the first group decides */
    bool frozen;         /* quantization_status "frozen": the weights may be compressed or not */
    const char *format;  /* the global format; NULL: not given, or mixed-precision */
    struct ctw_quant_activations kv_scheme; /* of keys and values */
    char kv_cache[64]; /* in words, or what another method calls it; empty: not quantised */
};

/*
 * Reads config.json's root; without a quantization_config every module is dense. Strings in *out
 * live as long as the document. The caller closes *out, also after a failure.
 */
enum ctw_status ctw_quant_config_read(struct ctw_quant_config *out,
                                      const struct ctw_json_node *root,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* Adds the members of root's quantization_config that neither compressed-tensors nor we read. */
enum ctw_status ctw_quant_config_list_unread(const struct ctw_json_node *root,
                                             struct ctw_unread *unread,
                                             struct ctw_err *err) CTW_MUST_CHECK;
void ctw_quant_config_close(struct ctw_quant_config *qc);

/* A module as targets and ignore may have it: any of its names may match. */
struct ctw_module {
    const char *const *names;
    int n_names;
    const char *class_name;
    const char *other_class; /* a class that targets may name instead; NULL: none */
};

/* The module's group; *out NULL: it has none, or one that quantises neither weights nor
 * activations. Its own class comes before the other. */
enum ctw_status ctw_quant_config_find(const struct ctw_quant_config *qc,
                                      const struct ctw_module *module,
                                      const struct ctw_quant_group **out,
                                      struct ctw_err *err) CTW_MUST_CHECK;

/* Fills in a preset's weights and activations ("W4A16", case-insensitive); false: no such preset.
 * */
bool ctw_quant_preset(const char *name, struct ctw_quant_group *group) CTW_MUST_CHECK;

/* Writes "int8 token dynamic"; "" if not present. */
void ctw_quant_activations_text(const struct ctw_quant_activations *a, char *text, size_t bytes);

#endif
