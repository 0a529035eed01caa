/* The error message for a folder without safetensors that we can open. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "worker/checkpoint/container/container_folder.h"

/* The first row that some file in the folder matches gives the message. */
static const struct {
    const char *pattern;
    const char *advice;
} rows[] = {
    {"adapter_model.*", "is an adapter (LoRA); merge it into its base model first (peft: "
                        "merge_and_unload) and give the merged folder"},
    {"model-*-of-*.safetensors",
     "is one shard, but model.safetensors.index.json is missing; fetch that file as well"},
    {"*.safetensors", "is not named model.safetensors, and there is no "
                      "model.safetensors.index.json; rename it, or give the folder of the "
                      "transformers checkpoint"},
    {"pytorch_model*.bin", "is a pickle, which can run code and is never opened; save the model "
                           "again as safetensors (transformers: save_pretrained)"},
    {"*.pth", "is a pickle, which can run code and is never opened; fetch the safetensors files "
              "of the model, or save it again with transformers (save_pretrained)"},
    {"*.pt", "is a pickle, which can run code and is never opened; save the model again as "
             "safetensors (transformers: save_pretrained)"},
};

enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };

/* The lowest row that a file matches, and that file's name. If several files match the row, the
 * first in strcmp order, so that the message does not depend on the directory's order. */
static int best_row(DIR *listing, char *name, size_t cap)
{
    int best = N_ROWS;
    const struct dirent *entry;
    while ((entry = readdir(listing)) != NULL)
        for (int i = 0; i < N_ROWS && i <= best; i++) {
            if (fnmatch(rows[i].pattern, entry->d_name, FNM_PERIOD) != 0)
                continue;
            if (i < best || strcmp(entry->d_name, name) < 0)
                (void)snprintf(name, cap, "%s", entry->d_name);
            best = i;
            break;
        }
    return best;
}

enum ctw_status ctw_container_explain_missing(const char *dir, struct ctw_err *err)
{
    char name[256] = "";
    DIR *listing = opendir(dir);
    int row = N_ROWS;
    if (listing != NULL) {
        row = best_row(listing, name, sizeof(name));
        (void)closedir(listing);
    }
    if (row < N_ROWS)
        return ctw_fail(err, CTW_ENOTFOUND, "no model.safetensors in this folder: %s %s", name,
                        rows[row].advice);
    return ctw_fail(err, CTW_ENOTFOUND,
                    "neither model.safetensors nor model.safetensors.index.json is in this folder; "
                    "give the folder that holds them and config.json");
}

enum ctw_status ctw_container_open_folder(int *out, const char *dir, struct ctw_err *err)
{
    *out = open(dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (*out >= 0)
        return CTW_OK;
    if (errno == ENOTDIR)
        return ctw_fail(err, CTW_ENOTFOUND,
                        "%s: not a folder; give the folder that holds config.json and "
                        "model.safetensors, not a file in it",
                        dir);
    return ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO, "%s: cannot be opened: %s", dir,
                    errno == ENOENT ? "no such folder" : strerror(errno));
}
