"""Tokenizers of GGUF files: ids that llama.cpp, tiktoken and SentencePiece computed (tests/tools/gguf_tokens.py), files, refusals."""

import hashlib
import json
import struct
import unicodedata
from pathlib import Path

import pytest

from ctworker.base import gguf
from ctworker.base.errors import ArgumentError
from ctworker.text import gguf_tokenizer
from ctworker.text.tokenizer import TextTokenizer

GOLDEN = json.loads((Path(__file__).parent / "data/gguf_tokens.json").read_text())
NFC = ("qwen2", "qwen35", "command-r")
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
NUMBERS = {bool: (7, "?"), int: (5, "i"), float: (6, "f")}


def byte_letters():
    """The 256 bytes' letters in GPT-2's spelling, in the order of the vocabulary."""
    return sorted([chr(b) for b in PLAIN] + [chr(256 + i) for i in range(256 - len(PLAIN))])


def byte_keys(pre="smollm", **more):
    tokens = byte_letters() + GOLDEN["splits"]["tokens"]
    known = set(tokens)
    merges = [f"{t[:i]} {t[i:]}" for t in tokens for i in range(1, len(t)) if t[:i] in known and t[i:] in known]
    control = GOLDEN["control"]
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens + control, "merges": merges,
            "token_type": [1] * len(tokens) + [3] * len(control), "bos_token_id": len(tokens), "eos_token_id": len(tokens) + 1}
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | more).items() if value is not None}


def piece_keys(prefix, **more):
    case = next(case for case in GOLDEN["pieces"] if case["prefix"] == prefix)
    keys = {"model": "llama", "tokens": case["tokens"], "token_type": [int(kind) for kind in case["types"]],
            "scores": [float(score) for score in case["scores"]], "unknown_token_id": case["unknown"],
            "add_space_prefix": prefix, "bos_token_id": case["tokens"].index(GOLDEN["control"][0])}
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | more).items() if value is not None}, case["ids"]


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(v):
    """(type, bytes) of a value."""
    if isinstance(v, str):
        return 8, string(v)
    if isinstance(v, list):
        kind = value(v[0])[0]
        return 9, struct.pack("<IQ", kind, len(v)) + b"".join(value(item)[1] for item in v)
    kind, letter = NUMBERS[type(v)]
    return kind, struct.pack("<" + letter, v)


def file_of(keys, version=3):
    body = b"".join(string(key) + struct.pack("<I", value(v)[0]) + value(v)[1] for key, v in keys.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(keys)) + body


def digests(tokenizer, texts):
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [hashlib.sha256(json.dumps(line).encode()).hexdigest()[:8] for line in ids]


def differing(tokenizer, texts, golden):
    return [text for text, ours, theirs in zip(texts, digests(tokenizer, texts), golden.split(), strict=True) if ours != theirs]


@pytest.mark.parametrize("pre", GOLDEN["splits"]["ids"])
def test_splits_of_each_name(pre):
    tokenizer, _ = gguf_tokenizer.build(Path("x.gguf"), byte_keys(pre))
    texts = [unicodedata.normalize("NFC", text) if pre in NFC else text for text in GOLDEN["texts"]]
    assert differing(tokenizer, texts, GOLDEN["splits"]["ids"][pre]) == []
    assert differing(tokenizer, GOLDEN["texts"], GOLDEN["splits"]["ids"][pre]) == []  # NFC is the pipeline's work


def test_every_proven_name_has_golden_ids():
    assert set(gguf_tokenizer._SPLITS) == set(GOLDEN["splits"]["ids"])


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces(prefix):
    keys, golden = piece_keys(prefix)
    tokenizer, _ = gguf_tokenizer.build(Path("x.gguf"), keys)
    texts = [text for text in GOLDEN["texts"] if not any(token in text for token in GOLDEN["control"])]
    assert differing(tokenizer, texts, golden) == []
    assert tokenizer.decode(tokenizer.encode("Hello  world", add_special_tokens=False).ids) == "Hello  world"


def test_a_blank_before_a_text_with_users_tokens():
    keys, _ = piece_keys(False, add_space_prefix=True)
    with pytest.raises(ArgumentError, match="has '\u2581+' as a token of users, and texts get a blank"):
        gguf_tokenizer.build(Path("x.gguf"), keys)


def test_a_file_and_a_folder(tmp_path):
    keys = byte_keys("llama-bpe") | {
        "general.architecture": "llama", "llama.context_length": 512, "general.tags": ["a", "b"], "x.nested": [[1], [2, 3]],
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}",
    }
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(file_of(keys))
    (tmp_path / "model-00002-of-00002.gguf").write_bytes(file_of({"split.no": 1}))
    assert gguf.read(path) == keys
    for place in (path, tmp_path):
        tokenizer = TextTokenizer(place, name="m")
        bos = tokenizer.bos_token_id
        assert tokenizer.encode("Hello")[0] == bos  # llama-bpe begins so without a key
        assert tokenizer.encode("Hello<|im_end|>", add_special_tokens=False)[-1] == tokenizer.eos_token_id
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == tokenizer.bos_token + "hi"
        assert tokenizer.model_max_length == 512
        assert TextTokenizer(place, name="m", add_bos_token=False).encode("Hello")[0] != bos
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ArgumentError, match=r"has 3 GGUF files of several models \(model-00001-of-00002.gguf, .*name the file"):
        TextTokenizer(tmp_path, name="m")


def test_named_templates_and_ends(tmp_path):
    keys = byte_keys(add_eos_token=True, add_bos_token=True) | {
        "tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools {{ messages[0]['content'] }}",
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of(keys, version=2))
    tokenizer = TextTokenizer(path, name="m")
    assert tokenizer.select_template() == "plain"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], template_name="tool_use") == "tools x"
    ids = tokenizer.encode("Hello")
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)


@pytest.mark.parametrize(("more", "words"), [
    ({"pre": "kimi-k2"}, r"tokenizer.ggml.pre is 'kimi-k2', whose splits are not proven here \(proven: gpt-2, .*with tokenizer="),
    ({"pre": None}, r"tokenizer.ggml.pre is missing"),
    ({"model": "rwkv"}, r"tokenizer.ggml.model is 'rwkv', which is not supported \(supported: gpt2, llama\): pass the original"),
    ({"model": None}, r"tokenizer.ggml.model is missing"),
    ({"tokens": None}, r"tokenizer.ggml.tokens is missing"),
    ({"token_type": [1, 1]}, r"tokenizer.ggml.token_type has 2 entries, expected \d+, one a token"),
    ({"merges": None}, r"tokenizer.ggml.merges is missing"),
    ({"merges": ["a zebra"]}, r"tokenizer.ggml.merges has 'a zebra', whose tokens are not in"),
    ({"merges": ["a"]}, r"tokenizer.ggml.merges has 'a', whose"),
    ({"bos_token_id": 10**6}, r"bos_token_id is 1000000, but there are \d+ tokens"),
    ({"add_bos_token": "yes"}, r"tokenizer.ggml.add_bos_token is 'yes', expected bool"),
])
def test_refusals(more, words):
    with pytest.raises(ArgumentError, match=words):
        gguf_tokenizer.build(Path("x.gguf"), byte_keys(**more))


def test_a_token_stands_once():
    keys = byte_keys()
    keys["tokenizer.ggml.tokens"][-1] = "a"
    with pytest.raises(ArgumentError, match=r"tokenizer.ggml.tokens has 'a' twice"):
        gguf_tokenizer.build(Path("x.gguf"), keys)


@pytest.mark.parametrize(("change", "words"), [
    (lambda b: b"", "cannot be read"),
    (lambda b: b"PK" + b[2:], "does not begin with GGUF"),
    (lambda b: b[:4] + struct.pack(">I", 3) + b[8:], "big-endian"),
    (lambda b: b[:4] + struct.pack("<I", 1) + b[8:], "the version is 1, expected 2 or 3"),
    (lambda b: b[:-1], r"b at byte \d+ needs 4 bytes, but 3 are left"),
    (lambda b: b[:16] + struct.pack("<Q", 3) + b[24:], "key 2 at byte"),
    (lambda b: b[:24] + struct.pack("<Q", 2**63) + b[32:], r"key 0 at byte 32 needs 9223372036854775808 bytes"),
    (lambda b: b.replace(struct.pack("<IQ", 5, 2), struct.pack("<IQ", 5, 2**62)), "a at byte"),
    (lambda b: b.replace(struct.pack("<IQ", 5, 2), struct.pack("<IQ", 9, 2**40)), r"a has \d+ elements"),
    (lambda b: b.replace(struct.pack("<IQ", 5, 2), struct.pack("<IQ", 13, 2)), "a has a value of type 13"),
    (lambda b: b.replace(string("b"), string("a")), "the key a stands twice"),
    (lambda b: b.replace(string("b"), struct.pack("<Q", 1) + b"\xff"), "key 1 is not UTF-8"),
])
def test_broken_files(tmp_path, change, words):
    path = tmp_path / "m.gguf"
    path.write_bytes(change(file_of({"a": [1, 2], "b": 7})))
    with pytest.raises(ArgumentError, match=words):
        gguf.read(path)


def test_nesting_ends(tmp_path):
    deep = 1
    for _ in range(6):
        deep = [deep]
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of({"a": deep}))
    with pytest.raises(ArgumentError, match="nested too deeply"):
        gguf.read(path)


def test_another_tokenizer_must_agree(tmp_path):
    keys = byte_keys()
    (tmp_path / "m.gguf").write_bytes(file_of(keys))
    tokens = keys["tokenizer.ggml.tokens"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    gguf_tokenizer.check(tmp_path, vocabulary, "ORIGINAL")
    vocabulary[tokens[5]], vocabulary[tokens[6]] = 6, 5
    gguf_tokenizer.check(tmp_path / "nothing", vocabulary, "ORIGINAL")
    with pytest.raises(ArgumentError, match=r"tokenizer.ggml.tokens has .* as token 5, but the tokenizer of ORIGINAL has"):
        gguf_tokenizer.check(tmp_path / "m.gguf", vocabulary, "ORIGINAL")
