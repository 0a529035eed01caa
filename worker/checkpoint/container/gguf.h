/*
 * The header of one GGUF file, checked byte by byte:
 *
 *   "GGUF" | u32 version | u64 n_tensors | u64 n_keys
 *   n_keys    x {text key | u32 type | value}          text: u64 bytes, then as many; array: u32
 * type of elements, u64 count, elements n_tensors x {text name | u32 n_dims | u64 dims[n_dims] |
 * u32 ggml type | u64 offset} padding to general.alignment (default 32) | data
 *
 * All little-endian. dims[0] is contiguous, so records have the dimensions in reverse: a linear
 * layer's [K, N] is [N, K]. Offsets count from the data's start. Tensors lie one after another,
 * each padded to the alignment; the last tensor's padding may be missing. Versions 2 and 3 are
 * equal.
 *
 * A copy of the header alone has the highest bit of the version set, and zeros in place of the
 * data, as many as the data has bytes, but for tensors rope_f*, which are a part of the keys.
 * `ctworker inspect ORG/NAME` makes such copies; no other reader accepts them.
 *
 * Types of tensors are those of kernels/formats/ggml/ggml_types.h. A tensor of another type is
 * recorded, not refused (see struct ctw_tensor): forks use the same numbers for other types, so
 * that only a size that fits the place in the file makes a type believable.
 *
 * Source: github.com/ggml-org/ggml, docs/gguf.md and src/gguf.cpp.
 */
#ifndef CTW_WORKER_GGUF_H
#define CTW_WORKER_GGUF_H

#include "worker/checkpoint/container/container_internal.h"

enum { CTW_GGUF_MAX_HEADER = 1 << 30, CTW_GGUF_MAX_NESTING = 4 };

/* Checks the header of an open file, and reads nothing beyond. `what` names the file in messages.
 * CTW_EFORMAT; CTW_EUNSUP: big-endian, or another version; CTW_EIO, CTW_ENOMEM. */
enum ctw_status ctw_gguf_read(struct ctw_records *out, const char *what, int fd,
                              uint64_t file_bytes, struct ctw_err *err) CTW_MUST_CHECK;

/* The same for a file of file_bytes bytes that begins with these, and has at least its header
 * there, or is refused as truncated. */
enum ctw_status ctw_gguf_parse(struct ctw_records *out, const char *what, const void *start,
                               size_t bytes, uint64_t file_bytes,
                               struct ctw_err *err) CTW_MUST_CHECK;

#endif
