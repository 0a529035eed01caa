#!/usr/bin/env python3
"""Makes tests/python/data/gguf_tokens.json: token ids of texts by what defines them, for each tokenizer.ggml.pre.

Needs gguf, xllamacpp (llama.cpp's server), tiktoken, sentencepiece and regex (reference only; no test runs this program).
A small vocabulary of pieces of the texts themselves, trained without splits, shows every split in the ids. llama.cpp reads
them from a model of one layer. The originals' expressions, where a package has them, must give the same ids by tiktoken: of
tekken and gpt-4o, llama.cpp has only approximations, so these are tiktoken's. llama.cpp never normalises: names whose
originals do (NFC) get normalised texts. The file keeps the first 8 hexadecimal digits of the SHA-256 of a text's ids.
"""

import hashlib
import io
import json
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

TEXTS = [
    "Hello world", " leading space", "  two spaces", "a\n\nb\n \n  c\t\td", "It's we'll I'M DON'T they'Ve 'tis",
    "1234567 3.14159 0x1F 10,000", "e\u0301 cafe\u0301 na\u00efve Stra\u00dfe", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4e2d\u6587123", "\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u30ab\u30ca\u4e16\u754c",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f642\U0001f469\u200d\U0001f467 emoji \u2728", "def f(x):\n    return x**2  # why\n\n\tprint(i)\n",
    "<|im_start|>user\nHi<|im_end|>\n", "trailing   ", "\r\n\r\nwin", "A_b-c/d\\e {json: [1,2,3]}",
    "HTTPServerError camelCaseWord ALLCAPS", "\u00bd \u00b2 \u2167 \u2460", "\u00a0nbsp\u2003em", "/path//to/\n\n", "", "x", "  ", "\n",
]
PRE = ["gpt-2", "phi-2", "smollm", "starcoder", "command-r", "llama-bpe", "llama3", "llama-v3", "qwen2", "qwen35", "tekken",
       "gpt-4o", "llama4", "deepseek-v3", "lfm2", "falcon3", "exaone4"]
NFC = ("qwen2", "qwen35", "command-r")
BOS = "<|im_start|>"
CONTROL = [BOS, "<|im_end|>"]
# The expressions of Llama 3's and 4's tokenizer.py (llama-models), Qwen's tokenization_qwen.py (qwen-agent), transformers'
# tokenization_qwen3_5.py, and mistral-common's tekken_240911.json.
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|\p{N}%s"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = CASED % (*["(?i:'s|'t|'re|'ve|'m|'ll|'d)?"] * 2, "{1,3}")
ORIGINALS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+",
    "tekken": CASED % ("", "", ""), "gpt-4o": O200K, "llama4": O200K,
}
TRUSTED = ("tekken", "gpt-4o", "llama4")


def byte_vocabulary():
    """The 256 bytes, and pieces of the texts, in the spelling of GPT-2."""
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=900, min_frequency=1, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    plain = [text for text in TEXTS if not any(token in text for token in CONTROL)]
    tok.train_from_iterator(plain + [unicodedata.normalize("NFC", text) for text in plain], trainer)
    vocab = tok.get_vocab()
    return sorted(vocab, key=vocab.get)


def merges_of(tokens):
    """Every way to make a token of two earlier ones, as converters of tiktoken's files write them."""
    known = set(tokens)
    return [[token[:i], token[i:]] for token in tokens for i in range(1, len(token)) if token[:i] in known and token[i:] in known]


def write_gguf(path, model, tokens, types, keys):
    """A llama of one layer."""
    writer = gguf.GGUFWriter(path, "llama")
    width, n = 32, len(tokens)
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    shapes = {"token_embd.weight": (n, width), "output_norm.weight": (width,)}
    shapes |= {f"blk.0.{name}.weight": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate",
                                                                  "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{name}.weight": (width,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SERVE = """
import json, os, sys, urllib.request, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.warmup, params.n_parallel = sys.argv[1], 256, False, 1
params.port = 8932
server = xllamacpp.Server(params)
url = server.listening_address
for text in json.load(sys.stdin):
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    reply = urllib.request.urlopen(urllib.request.Request(url + "/tokenize", body, {"Content-Type": "application/json"}))
    print("IDS", json.dumps(json.load(reply)["tokens"]), flush=True)
os._exit(0)
"""


def llama_cpp(path, texts):
    done = subprocess.run([sys.executable, "-c", SERVE, path], input=json.dumps(texts), capture_output=True, text=True,
                          check=False)
    out = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("IDS ")]
    assert len(out) == len(texts), done.stderr[:6000]
    return out


def by_tiktoken(tokens, pattern, texts):
    letters = {chr(c): b for b, c in gguf_bytes().items()}
    ranks = {bytes(letters[c] for c in token): i for i, token in enumerate(tokens)}
    special = {token: len(tokens) + i for i, token in enumerate(CONTROL)}
    encoding = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return [encoding.encode(text, allowed_special="all") for text in texts]


def gguf_bytes():
    """Byte -> code of its letter in GPT-2's spelling."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return {b: b for b in plain} | {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in plain)}


def digests(ids):
    return " ".join(hashlib.sha256(json.dumps(line).encode()).hexdigest()[:8] for line in ids)


def splits(scratch):
    tokens = byte_vocabulary()
    merges = [" ".join(pair) for pair in merges_of(tokens)]
    out = {}
    for pre in PRE:
        path = f"{scratch}/{pre}.gguf"
        write_gguf(path, "gpt2", tokens + CONTROL, [1] * len(tokens) + [3] * len(CONTROL),
                   {"tokenizer_pre": pre, "token_merges": merges, "bos_token_id": len(tokens)})
        texts = [unicodedata.normalize("NFC", text) if pre in NFC else text for text in TEXTS]
        ids = llama_cpp(path, texts)
        if pre in ORIGINALS:
            ours = by_tiktoken(tokens, ORIGINALS[pre], texts)
            differ = [text for text, a, b in zip(texts, ids, ours) if a != b]
            print(f"{pre}: llama.cpp differs from the original in {differ}", file=sys.stderr)
            assert pre in TRUSTED or not differ
            ids = ours
        out[pre] = digests(ids)
    return {"tokens": tokens[256:], "ids": out}


def pieces(scratch):
    """SentencePiece with a blank before the text, and without it, but with tokens of users."""
    out = []
    for prefix in (True, False):
        users = [] if prefix else ["\u2581\u2581", "\u2581\u2581\u2581\u2581", "\n\n"]
        model = io.BytesIO()
        text = [line for text in TEXTS for line in text.splitlines() if line.strip()] * 3
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=model, model_type="bpe", vocab_size=500, byte_fallback=True,
            add_dummy_prefix=prefix, remove_extra_whitespaces=False, normalization_rule_name="identity",
            user_defined_symbols=users, control_symbols=CONTROL, minloglevel=2)
        sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        n = sp.vocab_size()
        tokens = [sp.id_to_piece(i) for i in range(n)]
        types = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in range(n)]
        for i, token in enumerate(tokens):
            if token in users:
                types[i] = 4
        scores = [int(sp.get_score(i)) for i in range(n)]
        stored = [token.replace("\u2581", " ") if kind == 4 else token for token, kind in zip(tokens, types)]
        path = f"{scratch}/pieces.gguf"
        write_gguf(path, "llama", stored, types, {"token_scores": list(map(float, scores)), "add_space_prefix": prefix, "bos_token_id": 1,
                                                  "unk_token_id": sp.unk_id()})
        texts = [text for text in TEXTS if not any(token in text for token in CONTROL)]
        own, ids = [sp.encode(text) for text in texts], llama_cpp(path, texts)
        differ = [(text, a, b) for text, a, b in zip(texts, own, ids) if a != b]
        assert not differ, (prefix, differ)
        out.append({"prefix": prefix, "tokens": stored, "types": "".join(map(str, types)), "scores": scores,
                    "unknown": sp.unk_id(), "ids": digests(own)})
    return out


with tempfile.TemporaryDirectory(prefix="ctw-tokens-") as folder:
    made = {"texts": TEXTS, "control": CONTROL, "splits": splits(folder), "pieces": pieces(folder)}
place = Path(__file__).resolve().parents[1] / "python/data/gguf_tokens.json"
place.write_text(json.dumps(made, separators=(",", ":")) + "\n")
print(place, place.stat().st_size)
