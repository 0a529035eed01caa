/*
 * The header of one safetensors file, checked byte by byte:
 *
 *   u64 little-endian N | N bytes of JSON {name: {dtype, shape, data_offsets}} | data
 *
 * N <= 100,000,000. The JSON begins with '{' and is padded with spaces only. The only key that is
 * not a tensor is "__metadata__", which maps strings to strings. The tensors' byte ranges cover the
 * data from 0 to the end of the file without gap or overlap. Each range is as long as shape and
 * dtype require. Rank 0 and dimensions of 0 are legal. An unknown dtype is recorded, not refused
 * (see struct ctw_tensor).
 *
 * A copy of the header alone has the highest bit of N set, and zeros in place of the data, as many
 * as the data has bytes. `ctworker inspect ORG/NAME` makes such copies; no other reader accepts
 * them.
 *
 * Source: github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
 */
#ifndef CTW_WORKER_SAFETENSORS_H
#define CTW_WORKER_SAFETENSORS_H

#include "worker/checkpoint/container/container_internal.h"

enum { CTW_SAFETENSORS_MAX_HEADER = 100000000, CTW_SAFETENSORS_PRELUDE = 512 };

/*
 * Reads N from `prelude`, the file's first `bytes` bytes (CTW_SAFETENSORS_PRELUDE, or the whole
 * file if shorter). `what` names the file in messages. CTW_EFORMAT: not safetensors; separate
 * messages cover empty files and Git LFS pointers.
 */
enum ctw_status ctw_safetensors_prelude(const char *what, const void *prelude, size_t bytes,
                                        uint64_t file_bytes, size_t *header_bytes,
                                        struct ctw_err *err) CTW_MUST_CHECK;

/* Checks the header (the N bytes after the length) of a file of file_bytes bytes. */
enum ctw_status ctw_safetensors_parse(struct ctw_records *out, const char *what, const char *header,
                                      size_t header_bytes, uint64_t file_bytes,
                                      struct ctw_err *err) CTW_MUST_CHECK;

/* Both steps for an open file. Reads nothing beyond the header. CTW_EIO as well. */
enum ctw_status ctw_safetensors_read(struct ctw_records *out, const char *what, int fd,
                                     uint64_t file_bytes, struct ctw_err *err) CTW_MUST_CHECK;

#endif
