#!/usr/bin/env python3
"""Scores token ids with llama.cpp itself, through a library that exports its C interface.

    llama_cpp_scores.py LIBRARY MODEL.gguf [--cache f16] [--flash] [--threads 2] <LINES >SCORES

Lines and scores are those of `ctworker score`: {"id": 0, "tokens": [...]} and {"id": 0, "logprobs": [...]}, log-probabilities
of tokens 1 ... n-1. LIBRARY: libllama.so, or a Python package's, such as xllamacpp's xllamacpp.abi3.so. By default, keys and
values are kept in F32, and attention is computed without flash attention: what remains of llama.cpp's own arithmetic are F32
sums, and int8 activations at matrices of block types.
"""

import argparse
import ctypes as c
import json
import sys

import numpy as np

F32, F16 = 0, 1


class ContextParams(c.Structure):
    """struct llama_context_params of llama.cpp b11549, October 2026; check() compares it with the library's defaults."""
    _fields_ = [*((name, c.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max",
                                                  "n_outputs_max_per_seq")),
                *((name, c.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type",
                                                 "attention_type", "flash_attn_type")),
                *((name, c.c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
                                                 "yarn_beta_fast", "yarn_beta_slow")),
                ("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float), ("cb_eval", c.c_void_p), ("cb_data", c.c_void_p),
                ("type_k", c.c_int32), ("type_v", c.c_int32), ("abort_callback", c.c_void_p), ("abort_data", c.c_void_p),
                ("added", c.c_void_p),
                *((name, c.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
                ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p)]

    def check(self):
        found = (self.n_batch, self.n_ubatch, self.type_k, self.type_v, self.offload_kqv, self.n_samplers)
        if found != (2048, 512, F16, F16, True, 0):
            raise SystemExit(f"the library's struct llama_context_params differs from this script's: its defaults are {found}")


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p), ("pos", c.POINTER(c.c_int32)),
                ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8))]


class ModelParams(c.Structure):
    """Only passed on: larger than llama.cpp's, which is returned and passed in memory."""
    _fields_ = [("bytes", c.c_uint64 * 64)]


class Model:
    def __init__(self, library, path, n_ctx, cache=F32, flash=False, threads=2):
        self.lib = lib = c.CDLL(library)
        for name, result in (("llama_model_default_params", ModelParams), ("llama_context_default_params", ContextParams),
                             ("llama_model_load_from_file", c.c_void_p), ("llama_init_from_model", c.c_void_p),
                             ("llama_model_get_vocab", c.c_void_p), ("llama_get_memory", c.c_void_p), ("llama_batch_init", Batch),
                             ("llama_get_logits", c.POINTER(c.c_float)), ("llama_vocab_n_tokens", c.c_int32)):
            getattr(lib, name).restype = result
        errors = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
        self.quiet = errors(lambda level, text, _: level == 4 and sys.stderr.write(text.decode()))
        lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = lib.llama_context_default_params()
        params.check()
        params.n_ctx, params.n_batch, params.n_ubatch, params.swa_full = n_ctx, n_ctx, min(n_ctx, 512), True
        params.n_outputs_max = params.n_outputs_max_per_seq = n_ctx
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = cache
        params.flash_attn_type = int(flash)
        self.context = lib.llama_init_from_model(c.c_void_p(self.model), params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context of {path}")
        self.n_vocab = lib.llama_vocab_n_tokens(c.c_void_p(lib.llama_model_get_vocab(c.c_void_p(self.model))))
        self.batch = lib.llama_batch_init(n_ctx, 0, 1)

    def logits(self, tokens):
        """float32 [tokens][n_vocab], valid until the next call."""
        lib, batch, n = self.lib, self.batch, len(tokens)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        lib.llama_memory_clear(c.c_void_p(lib.llama_get_memory(c.c_void_p(self.context))), True)
        if lib.llama_decode(c.c_void_p(self.context), batch) != 0:
            raise SystemExit("llama_decode failed")
        return np.ctypeslib.as_array(lib.llama_get_logits(c.c_void_p(self.context)), (n, self.n_vocab))

    def logprobs(self, tokens):
        """Log-probabilities of tokens 1 ... n-1."""
        logits = self.logits(tokens)[:-1].astype(np.float64)
        chosen = logits[np.arange(len(tokens) - 1), tokens[1:]]
        highest = logits.max(axis=1)
        return chosen - highest - np.log(np.exp(logits - highest[:, None]).sum(axis=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("model")
    parser.add_argument("--cache", choices=("f32", "f16"), default="f32")
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    lines = [json.loads(line) for line in sys.stdin]
    n_ctx = -(-max(len(line["tokens"]) for line in lines) // 256) * 256
    model = Model(args.library, args.model, n_ctx, F16 if args.cache == "f16" else F32, args.flash, args.threads)
    for line in lines:
        print(json.dumps({"id": line["id"], "logprobs": model.logprobs(line["tokens"]).tolist()}), flush=True)


if __name__ == "__main__":
    main()
