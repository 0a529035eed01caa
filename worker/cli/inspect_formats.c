#include "worker/cli/inspect_formats.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void ctw_inspect_describe(const struct ctw_weight *w, char *buf, size_t bytes)
{
    char group[64] = "", method[32] = "";
    if (ctw_weight_is_dense(w)) {
        snprintf(buf, bytes, "%s %s", w->format->name, ctw_dtype_long_name(w->dtype));
        return;
    }
    if (w->format->id == CTW_FORMAT_ggml_heads) {
        snprintf(buf, bytes, "%s %s, %s", w->format->name, ctw_part_type(&w->part[CTW_PART_VALUES]),
                 ctw_part_type(&w->part[CTW_PART_MORE_VALUES]));
        return;
    }
    if (w->part[CTW_PART_VALUES].block != NULL) {
        snprintf(buf, bytes, "%s", ctw_part_type(&w->part[CTW_PART_VALUES]));
        return;
    }
    if (w->format->id == CTW_FORMAT_exl3) {
        static const char *const codebooks[] = {"3inst", "mcg", "mul1"};
        snprintf(buf, bytes, "%s, %g bits, codebook %s", w->format->name,
                 (double)w->part[CTW_PART_VALUES].shape[2] / 16, codebooks[w->codebook]);
        return;
    }
    if (w->scale_stride == 0)
        snprintf(group, sizeof(group), ", one scale");
    else if (w->group_rows > 1)
        snprintf(group, sizeof(group), ", blocks of %" PRId64 " x %" PRId64, w->group_rows,
                 w->group_size);
    else if (w->n_groups == 1)
        snprintf(group, sizeof(group), ", one scale per row");
    else
        snprintf(group, sizeof(group), ", groups of %" PRId64, w->group_size);
    if (strcmp(w->names->method, "compressed-tensors") != 0)
        snprintf(method, sizeof(method), " (%s)", w->names->method);
    snprintf(buf, bytes, "%s%s, %d bits%s%s%s", w->format->name, method, w->bits, group,
             w->symmetric ? "" : ", asymmetric", w->indexed ? ", activation order" : "");
}

/* Counts a matrix in its kind. If the table is full, the last kind becomes "others". */
static void add_to_kind(struct ctw_inspect_kind *kinds, int *n_kinds, const struct ctw_weight *w)
{
    char text[96];
    int i = 0;
    ctw_inspect_describe(w, text, sizeof(text));
    while (i < *n_kinds && strcmp(kinds[i].text, text) != 0)
        i++;
    if (i == CTW_INSPECT_KINDS) {
        i = CTW_INSPECT_KINDS - 1;
        snprintf(kinds[i].text, sizeof(kinds[i].text), "others");
    } else if (i == *n_kinds) {
        kinds[i] = (struct ctw_inspect_kind){0};
        memcpy(kinds[i].text, text, sizeof(text));
        ++*n_kinds;
    }
    kinds[i].n_matrices++;
    kinds[i].n_params += w->n * w->k;
    kinds[i].bytes += (double)ctw_weight_bytes(w);
}

int ctw_inspect_formats(const struct ctw_model *m, struct ctw_inspect_kind *kinds)
{
    int n_kinds = 0;
    for (int l = 0; l < m->n_layers; l++)
        for (int i = 0; i < ctw_layer_n_matrices(&m->layers[l]); i++) {
            const struct ctw_matrix *matrix = ctw_layer_matrix_of(&m->layers[l], i);
            if (matrix->name != NULL && !ctw_is_tied_head(m, l, i) &&
                !ctw_is_repeated_matrix(m, l, i))
                add_to_kind(kinds, &n_kinds, &matrix->weight);
        }
    return n_kinds;
}
