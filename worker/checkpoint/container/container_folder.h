/* Private to the container: the folder, before any file in it is opened. */
#ifndef CTW_WORKER_CONTAINER_FOLDER_H
#define CTW_WORKER_CONTAINER_FOLDER_H

#include "base/status.h"

/* Opens the folder for openat(). CTW_ENOTFOUND, CTW_EIO. */
enum ctw_status ctw_container_open_folder(int *out, const char *dir, struct ctw_err *err);

/* CTW_ENOTFOUND: the message names the folder's files in place of safetensors, and the remedy. */
enum ctw_status ctw_container_explain_missing(const char *dir, struct ctw_err *err);

#endif
