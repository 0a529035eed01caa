/* Vectors: tensors that are not matrices of products. See tensors.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/names/missing.h"
#include "worker/model/tensors.h"

/* [n], a bias also padded, and [] for one number, or as Kimi Linear's decays are stored, [1, 1, n,
 * 1]; or [n, k], or as a convolution has it, [n, 1, k], of MLX [n, k, 1]. */
static bool has_shape(const struct ctw_tensor *t, const struct ctw_want *want, int64_t padding)
{
    const size_t length = strlen(want->name);
    bool bias = length > 5 && strcmp(want->name + length - 5, ".bias") == 0;
    if (padding > 0 && bias && want->k == 0 && t->n_dims == 1 &&
        t->shape[0] == (want->n + padding - 1) / padding * padding)
        return true;
    if (want->k == 0 && t->n_dims == 4)
        return t->shape[0] == 1 && t->shape[1] == 1 && t->shape[2] == want->n && t->shape[3] == 1;
    if (want->k != 0 && t->n_dims == 3)
        return t->shape[0] == want->n && t->shape[1] * t->shape[2] == want->k &&
               (t->shape[1] == 1 || t->shape[2] == 1);
    if (want->k != 0)
        return t->n_dims == 2 && t->shape[0] == want->n && t->shape[1] == want->k;
    return t->n_dims == 1 ? t->shape[0] == want->n : t->n_dims == 0 && want->n == 1;
}

/* Checks a vector of integers. */
static enum ctw_status check_integers(const struct ctw_finder *finder, const struct ctw_tensor *t,
                                      const struct ctw_want *want, struct ctw_err *err)
{
    const int64_t k = want->k;
    if (ctw_container_is_headers_alone(finder->container))
        return CTW_OK;
    for (int64_t i = 0; i < want->n * k; i++) {
        const int64_t v = ctw_tensor_integer(finder, t, i);
        bool twice = false;
        for (int64_t j = i - i % k; j < i; j++)
            twice |= ctw_tensor_integer(finder, t, j) == v;
        if (v < 0 || v >= want->below || twice)
            return ctw_fail(err, CTW_EFORMAT,
                            "%s: %s: found %" PRId64 "%s in row %" PRId64
                            ", expected different numbers from 0 to %" PRId64,
                            ctw_container_file(finder->container, t->file), want->name, v,
                            twice ? " twice" : "", i / k, want->below - 1);
    }
    return CTW_OK;
}

enum ctw_status ctw_vector_open(struct ctw_finder *finder, const struct ctw_tensor **out,
                                const struct ctw_want *want, struct ctw_err *err)
{
    char found[96], needed[64];
    const char *name = want->name;
    enum ctw_status st = ctw_tensor_find(finder, "", name, out, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_tensor *t = *out;
    if (want->k == 0)
        (void)snprintf(needed, sizeof(needed), "[%" PRId64 "]", want->n);
    else
        (void)snprintf(needed, sizeof(needed), "[%" PRId64 ", %" PRId64 "]", want->n, want->k);
    if (t == NULL)
        return ctw_fail(err, CTW_EFORMAT, "the checkpoint has no tensor %s, which %s needs as %s%s",
                        name, finder->config->file, needed,
                        ctw_missing_remedy(finder->container, want));
    const bool integers = want->below > 0;
    bool fits = integers ? t->dtype == CTW_I32 || t->dtype == CTW_I64
                         : t->dtype == CTW_BF16 || t->dtype == CTW_F16 || t->dtype == CTW_F32;
    if (!fits || !has_shape(t, want, finder->config->quant.names->padding)) {
        struct ctw_part part = ctw_tensor_part(t);
        return ctw_fail(err, CTW_EFORMAT, "%s: %s: found %s, expected %s %s by %s",
                        ctw_container_file(finder->container, t->file), name,
                        ctw_part_text(&part, found, sizeof(found)),
                        integers ? "I32 or I64" : "BF16, F16 or F32", needed, finder->config->file);
    }
    return integers ? check_integers(finder, t, want, err) : CTW_OK;
}

enum ctw_status ctw_table_open(struct ctw_finder *finder, struct ctw_table *table,
                               const struct ctw_want *want, struct ctw_err *err)
{
    char found[96];
    const struct ctw_tensor *t;
    const size_t n = (size_t)table->n;
    enum ctw_status st = ctw_tensor_find(finder, "", want->name, &t, err);
    if (st != CTW_OK)
        return st;
    if (t == NULL)
        return ctw_fail(err, CTW_EFORMAT,
                        "the checkpoint has no tensor %s, which %s needs as [.., %lld]", want->name,
                        finder->config->file, (long long)want->k);
    const enum ctw_dtype dtype = n > 0 ? table->part[0]->dtype : t->dtype;
    const struct ctw_part part = ctw_tensor_part(t);
    const bool floats = t->dtype == CTW_F32 || t->dtype == CTW_BF16 || t->dtype == CTW_F16;
    if (!floats || t->dtype != dtype || t->n_dims != 2 || t->shape[1] != want->k)
        return ctw_fail(err, CTW_EFORMAT, "%s: %s: found %s, expected %s [.., %lld] by %s",
                        ctw_container_file(finder->container, t->file), want->name,
                        ctw_part_text(&part, found, sizeof(found)),
                        n > 0 ? ctw_dtype_name(dtype) : "BF16, F16 or F32", (long long)want->k,
                        finder->config->file);
    const struct ctw_tensor **parts = ctw_realloc(table->part, n + 1, sizeof(*parts));
    table->part = parts != NULL ? parts : table->part;
    int64_t *row0 = ctw_realloc(table->row0, n + 2, sizeof(*row0));
    table->row0 = row0 != NULL ? row0 : table->row0;
    if (parts == NULL || row0 == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of tensors");
    row0[0] = 0;
    row0[n + 1] = row0[n] + t->shape[0];
    parts[n] = t;
    table->n++;
    return CTW_OK;
}
