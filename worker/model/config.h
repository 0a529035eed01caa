/*
 * Reads config.json against a family's table of keys (worker/model/families). The table has every
 * key that transformers' class for the family reads and that can change a score. Such a key is
 * used, or takes transformers' default, or is refused by name if its value requests an unsupported
 * feature. Any other key cannot change transformers' numbers: it is ignored and listed.
 * Configurations written by transformers 4 and 5 give the same result.
 */
#ifndef CTW_WORKER_CONFIG_H
#define CTW_WORKER_CONFIG_H

#include "kernels/backend.h"
#include "worker/checkpoint/quant_config.h"
#include "worker/checkpoint/unread.h"
#include "worker/model/rope.h"

struct ctw_arch;

struct ctw_config {
    struct ctw_json *doc;
    const char *file; /* the file's name, for messages */
    const struct ctw_arch *arch;
    const char *architecture, *model_type;
    /* filled from the family's rows */
    int64_t vocab, hidden, inner, n_decoders, n_head, n_kv, head, max_length;
    int64_t sliding_window; /* 0: none */
    int64_t max_window_layers;
    double norm_eps;
    bool tied, attention_bias, mlp_bias, use_sliding_window;
    enum ctw_activation act;
    /* read the same way for all families */
    bool has_dtype;
    enum ctw_dtype dtype;
    int64_t *windows; /* [n_decoders], 0: none */
    struct ctw_rope_params rope;
    struct ctw_quant_config quant;
    struct ctw_unread unread;
};

/* `file` is the path's last component. The caller closes *out, also after a failure. */
enum ctw_status ctw_config_read(struct ctw_config *out, const char *path, const char *file,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Reads config.json from a string, for tests. */
enum ctw_status ctw_config_parse(struct ctw_config *out, const char *text, size_t bytes,
                                 const char *file, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_config_close(struct ctw_config *c);

#endif
