"""Spellings of tokenizer files that transformers 5 and others have written, and what transformers reads from each
(data/tokenizer_spellings.json).

    python tokenizer_spellings.py          rewrites that file (needs transformers 5)

A spelling is a tokenizer.json with changes, and the files beside it. Where transformers refuses a spelling, the table
has its error in place of ids.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors

from tokenizer_cases import DATA, LLAMA3, QWEN2, SMOL, _byte_level, _named, _sentencepiece, _special, _split

TABLE = DATA / "tokenizer_spellings.json"
TEXTS = [
    "Hello world", " Hello 2013 , 12,345", "  two   22 spaces \n", "na\u00efve cafe\u0301 \U0001f600", "a <x1> b <x2> c  <x3>  d",
    "<|im_start|>user\nhi <|endoftext|> so", "<s> hi</s> no", "I <b>am</b>\u2581here",
]  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}]

#: (name, tokenizer.json or None, the other files by name)
Spelling = tuple[str, dict[str, Any] | None, dict[str, Any]]


def _flags(content: str, **flags: bool) -> dict[str, Any]:
    """A token as added_tokens_decoder stores it."""
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, **plain, "special": True, **flags}


def _stored(tokenizer: Tokenizer, **changes: Any) -> dict[str, Any]:
    return json.loads(tokenizer.to_str()) | changes


def _pre(tokenizer: pre_tokenizers.PreTokenizer) -> Any:
    return json.loads(tokenizer.__getstate__())


class Bases:
    """A tokenizer.json of each kind."""

    def __init__(self) -> None:
        stored = json.loads((DATA / "tokenizer_vocabularies.json").read_text(encoding="utf-8"))
        level = pre_tokenizers.ByteLevel
        self.plain = _byte_level(stored["bytes"], level(add_prefix_space=False), SMOL)
        self.prefixed = _byte_level(stored["bytes"], level(add_prefix_space=True), SMOL)
        self.qwen = _byte_level(stored["bytes"], _split(QWEN2), SMOL)
        self.llama3 = _byte_level(stored["bytes"], _split(LLAMA3), SMOL)
        digits = pre_tokenizers.Digits(individual_digits=True)
        self.digits, self.prefixed_digits = (
            _byte_level(stored["bytes"], pre_tokenizers.Sequence([digits, level(add_prefix_space=prefixes)]), SMOL)
            for prefixes in (False, True)
        )
        self.pieces = _sentencepiece(stored["pieces"], ["<unk>", "<s>", "</s>"])
        self.pieces.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        self.pieces.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
        self.gemma = _sentencepiece(stored["pieces"], ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
        self.gemma.normalizer = normalizers.Replace(" ", "\u2581")
        self.gemma.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )


def _ends(bos: str | None, eos: str | None) -> dict[str, Any]:
    """A post-processor as tokenizer.json stores it."""
    ends = [token for token in (bos, eos) if token]
    parts = ([bos] if bos else []) + ["$A"] + ([eos] if eos else [])
    post = processors.TemplateProcessing(
        single=parts, pair=[*parts, "$B"], special_tokens=[(token, SMOL.index(token)) for token in ends]
    )
    return json.loads(post.__getstate__())


def _classes(b: Bases) -> Iterator[Spelling]:
    """The class's pipeline, or the file's."""
    nfc, lower = {"type": "NFC"}, {"type": "Lowercase"}

    def of(name: str, stored: Any, class_name: str | None, kind: str = "llama", **config: Any) -> Spelling:
        named = {} if class_name is None else {"tokenizer_class": class_name}
        return name, stored, {"tokenizer_config.json": {**named, **config}, "config.json": {"model_type": kind}}

    for class_name in ("GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "CohereTokenizer", "Qwen2Tokenizer",
                       "PreTrainedTokenizerFast", "TokenizersBackend", "FooTokenizer"):  # fmt: skip
        yield of(f"{class_name}", _stored(b.plain), class_name)
        yield of(f"{class_name}-config-prefixes", _stored(b.plain), class_name, add_prefix_space=True)
        yield of(f"{class_name}-file-prefixes", _stored(b.prefixed), class_name)
    yield of("GPT2TokenizerFast-config-prefixes-not", _stored(b.prefixed), "GPT2TokenizerFast", add_prefix_space=False)
    yield of("gpt2-config-prefixes", _stored(b.plain), None, "gpt2", add_prefix_space=True)
    yield of("gpt2-prefix-null", _stored(b.prefixed), "PreTrainedTokenizerFast", "gpt2", add_prefix_space=None)
    for class_name in ("GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "PreTrainedTokenizerFast"):
        for name, normalizer in (("nfc", nfc), ("lower", lower)):
            yield of(f"{class_name}-{name}", _stored(b.plain, normalizer=normalizer), class_name)
        yield of(f"{class_name}-ends", _stored(b.plain, post_processor=_ends(SMOL[1], SMOL[2])), class_name,
                 bos_token=SMOL[1], eos_token=SMOL[2], add_bos_token=True, add_eos_token=False)  # fmt: skip
        yield of(f"{class_name}-config-ends", _stored(b.plain), class_name,
                 bos_token=SMOL[1], eos_token=SMOL[2], add_bos_token=True, add_eos_token=True)  # fmt: skip
    for class_name in ("GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "CohereTokenizer"):
        yield of(f"{class_name}-digits", _stored(b.digits), class_name)
    yield of("digits-no-class", _stored(b.digits), None)
    yield of("digits-no-class-file-prefixes", _stored(b.prefixed_digits), None)
    yield of("Qwen2Tokenizer-llama3", _stored(b.llama3), "Qwen2Tokenizer")
    yield of("qwen2-says-PreTrained", _stored(b.llama3), "PreTrainedTokenizerFast", "qwen2")
    yield of("qwen3-says-PreTrained", _stored(b.llama3), "PreTrainedTokenizerFast", "qwen3")
    yield of("qwen3-says-backend", _stored(b.llama3), "TokenizersBackend", "qwen3")
    yield of("qwen3-says-Llama", _stored(b.llama3), "LlamaTokenizer", "qwen3")
    yield of("qwen3-says-GPT2", _stored(b.llama3), "GPT2Tokenizer", "qwen3")
    yield of("glm4-says-GPT2", _stored(b.llama3), "GPT2Tokenizer", "glm4")
    yield of("unknown-type", _stored(b.llama3), "Qwen2Tokenizer", "no_such_type")
    yield of("unknown-type-no-class", _stored(b.plain), None, "no_such_type")
    named = {"tokenizer_config.json": {}, "config.json": {"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"}}
    yield "class-in-config.json", _stored(b.prefixed), named
    named = named | {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}
    yield "class-in-both", _stored(b.prefixed), named
    yield "no-config", _stored(b.plain), {}
    yield of("merges-as-strings", _merges_as_strings(b.plain), "GPT2Tokenizer")
    for kind in ("llama", "mistral"):
        for name, config in [
            ("", {}), ("-legacy", {"legacy": True}), ("-no-prefix", {"add_prefix_space": False}),
            ("-remote", {"auto_map": {"AutoTokenizer": [None, "x.Y"]}}), ("-eos", {"add_eos_token": True}),
        ]:  # fmt: skip
            yield of(f"{kind}-Llama{name}", _stored(b.pieces), "LlamaTokenizer", kind, **config)
    yield of("CodeLlama", _stored(b.pieces), "CodeLlamaTokenizer")
    yield of("CodeLlama-no-prefix", _stored(b.pieces), "CodeLlamaTokenizerFast", add_prefix_space=False, add_bos_token=False)
    prepend = _stored(b.pieces)["normalizer"]
    for name, changes in (("", {}), ("-prepends", {"normalizer": prepend}), ("-no-split", {"pre_tokenizer": None})):
        yield of(f"Gemma{name}", _stored(b.gemma, **changes), "GemmaTokenizer", "gemma2")
    yield of("Gemma-as-Llama", _stored(b.gemma), "LlamaTokenizer", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>")


def _merges_as_strings(tokenizer: Tokenizer) -> dict[str, Any]:
    stored = _stored(tokenizer)
    stored["model"]["merges"] = [" ".join(merge) for merge in stored["model"]["merges"]]
    return stored


def _token_files() -> dict[str, dict[str, Any]]:
    """What tokenizer_config.json ("config"), special_tokens_map.json ("map") and added_tokens.json ("added") say of tokens."""
    decoder = _special(*SMOL)
    bos = {"bos_token": "<x1>", "eos_token": SMOL[2]}
    typed = {name: {"__type": "AddedToken", **value} for name, value in _named(**bos).items()}
    one, two, three = "<x1>", "<x2>", "<x3>"
    return {
        "strings": {"config": bos},
        "typed": {"config": typed},
        "typed-decoder": {"config": typed | {"added_tokens_decoder": decoder}},
        "plain-dicts": {"config": _named(**bos)},
        "map": {"map": _named(**bos)},
        "map-over-config": {"config": {"bos_token": two}, "map": bos},
        "config-over-map": {"config": {"bos_token": two, "added_tokens_decoder": decoder}, "map": bos},
        "map-null": {"config": bos, "map": {"bos_token": None}},
        "map-flags": {"map": {"bos_token": {"content": one, "lstrip": True, "rstrip": True}}},
        "additional-config": {"config": {"additional_special_tokens": [one, two]}},
        "additional-map": {"map": {"additional_special_tokens": [one, two]}},
        "additional-both": {"config": {"additional_special_tokens": [one]}, "map": {"additional_special_tokens": [two, three]}},
        "additional-empty-config": {"config": {"additional_special_tokens": []}, "map": {"additional_special_tokens": [two]}},
        "additional-both-decoder": {
            "config": {"additional_special_tokens": [one], "added_tokens_decoder": decoder},
            "map": {"additional_special_tokens": [two]},
        },
        "additional-typed": {"config": {"additional_special_tokens": [{"__type": "AddedToken", **_flags(one, lstrip=True)}]}},
        "additional-dicts": {"map": {"additional_special_tokens": [_flags(one, rstrip=True)]}},
        "additional-meant": {"map": {"additional_special_tokens": [{"__type": "AddedToken", **_flags(one, rstrip=True)}]}},
        "extra-meant": {"config": {"extra_special_tokens": [{"__type": "AddedToken", **_flags(two, lstrip=True)}]}},
        "extra-list": {"config": {"extra_special_tokens": [two, one], "additional_special_tokens": [three]}},
        "extra-dict": {"config": {"extra_special_tokens": {"image_token": two, "audio_token": one}}},
        "extra-dict-additional": {
            "config": {"extra_special_tokens": {"image_token": two}, "additional_special_tokens": [three]}
        },
        "extra-both": {"config": {"extra_special_tokens": [one]}, "map": {"extra_special_tokens": [two, one]}},
        "extra-map-additional": {"config": {"extra_special_tokens": [one]}, "map": {"additional_special_tokens": [two]}},
        "extra-map-dict": {"map": {"extra_special_tokens": {"image_token": two}}},
        "extra-map-dicts": {"map": {"extra_special_tokens": [_flags(two, lstrip=True)]}},
        "own-token": {"config": {"image_token": two, "bos_token": one}},
        "own-token-map": {"map": {"image_token": {"content": two, "rstrip": True}, "bos_token": one}},
        "own-token-typed": {"config": {"image_token": {"__type": "AddedToken", **_flags(two)}}},
        "added": {"added": {one: 503, two: 504}},
        "added-order": {"added": {two: 504, one: 503}},
        "added-special": {"added": {one: 503, two: 504}, "map": {"additional_special_tokens": [one]}},
        "added-special-config": {"added": {one: 503}, "config": {"eos_token": one}},
        "added-decoder": {"added": {one: 503}, "config": {"added_tokens_decoder": decoder}},
        "decoder-new": {"config": {"added_tokens_decoder": decoder | {"503": _flags(one), "504": _flags(two, special=False)}}},
        "decoder-order": {"config": {"added_tokens_decoder": {"504": _flags(two), "503": _flags(one), **decoder}}},
        "decoder-gap": {"config": {"added_tokens_decoder": decoder | {"510": _flags(one)}}},
        "decoder-flags": {"config": {"added_tokens_decoder": decoder | {"0": _flags(SMOL[0], lstrip=True, rstrip=True)}}},
        "decoder-normalized": {"config": {"added_tokens_decoder": decoder | {"503": {"content": one}}}},
        "decoder-lacks": {"config": {"added_tokens_decoder": {"0": _flags(SMOL[0])}}},
        "decoder-lacks-eos": {"config": {"added_tokens_decoder": {"0": _flags(SMOL[0])}, "eos_token": SMOL[2]}},
        "decoder-plain-eos": {
            "config": {"added_tokens_decoder": decoder | {"2": _flags(SMOL[2], special=False)}, "eos_token": SMOL[2]}
        },
        "decoder-empty": {"config": {"added_tokens_decoder": {}, "pad_token": "<pad>"}},
        "vocabulary-word": {"config": {"pad_token": "<b>", "additional_special_tokens": ["am"]}},
        "split": {"config": {"split_special_tokens": True, "eos_token": SMOL[2]}},
        "clean-up": {"config": {"clean_up_tokenization_spaces": True}},
        "lengths": {"config": {"model_max_length": 77, "max_len": 5}},
    }


def _tokens(b: Bases) -> Iterator[Spelling]:
    """Which file's special and added tokens win, with a class that is used as it is and with one that is rebuilt."""
    for class_name in ("PreTrainedTokenizerFast", "GPT2Tokenizer"):
        for name, files in _token_files().items():
            config = {"tokenizer_class": class_name, **files.get("config", {})}
            out = {"tokenizer_config.json": config, "config.json": {"model_type": "llama"}}
            out |= {"special_tokens_map.json": files["map"]} if "map" in files else {}
            out |= {"added_tokens.json": files["added"]} if "added" in files else {}
            yield f"{class_name}-{name}", _stored(b.plain), out


def _stored_rules(b: Bases) -> Iterator[Spelling]:
    """What tokenizer.json itself says beside its tokens, and which of its versions counts."""
    config = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}, "config.json": {"model_type": "llama"}}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": SMOL[0],
    }  # fmt: skip
    yield "truncation", _stored(b.plain, truncation=truncation), config
    yield "padding", _stored(b.plain, padding=padding), config
    rebuilt = {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}
    yield "truncation-GPT2", _stored(b.plain, truncation=truncation), rebuilt
    tokens = _stored(b.plain)["added_tokens"]
    tokens[0] |= {"lstrip": True, "normalized": True, "special": False}
    yield "file-flags", _stored(b.plain, added_tokens=tokens), config
    yield "file-without-added", _stored(b.plain, added_tokens=[]), config
    versions = ["tokenizer.json", "tokenizer.4.0.json", "tokenizer.99.0.json"]
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "fast_tokenizer_files": versions}
    contents = (named, _stored(b.prefixed), _stored(b.digits))
    yield "versions", _stored(b.plain), dict(zip(("tokenizer_config.json", *versions[1:]), contents))


def _vocabularies(b: Bases) -> Iterator[Spelling]:
    """vocab.json and merges.txt without tokenizer.json."""
    for class_name in ("GPT2Tokenizer", "CodeGenTokenizer", "Qwen2Tokenizer"):
        for name, config in [
            ("", {}), ("-prefix", {"add_prefix_space": True}), ("-bos", {"add_bos_token": True, "bos_token": SMOL[1]}),
            ("-both", {"add_bos_token": True, "add_eos_token": True, "bos_token": SMOL[1], "eos_token": SMOL[2]}),
        ]:  # fmt: skip
            files = {"tokenizer_config.json": {"tokenizer_class": class_name, **config}, "config.json": {"model_type": "llama"}}
            yield f"{class_name}-vocabulary{name}", None, files


def _templates(b: Bases) -> Iterator[Spelling]:
    """A chat template in three places."""
    named = [{"name": "default", "template": "list"}, {"name": "rag", "template": "rag"}]
    jinja, more = {"chat_template.jinja": "file {{ bos_token }}"}, {"additional_chat_templates/rag.jinja": "folder"}
    for name, config, files in [
        ("string", {"chat_template": "config {{ eos_token }}"}, {}), ("list", {"chat_template": named}, {}),
        ("file", {}, jinja), ("file-over-config", {"chat_template": "config"}, jinja), ("file-and-folder", {}, jinja | more),
        ("folder-only", {"chat_template": "config"}, more), ("none", {}, {}),
        ("map", {}, {"special_tokens_map.json": {"chat_template": "map"}}),
    ]:  # fmt: skip
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SMOL[1], "eos_token": SMOL[2], **config}
        yield f"template-{name}", _stored(b.plain), {"tokenizer_config.json": config, **files}


def spellings() -> Iterator[Spelling]:
    bases = Bases()
    for part in (_classes, _tokens, _stored_rules, _vocabularies, _templates):
        yield from part(bases)


def write(folder: Path) -> dict[str, Path]:
    """Writes every spelling's folder. Returns name -> folder."""
    plain, out = Bases().plain, {}
    for name, stored, files in spellings():
        out[name] = folder / name
        out[name].mkdir(parents=True)
        if stored is None:
            plain.model.save(str(out[name]))
        else:
            (out[name] / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
        for file, value in files.items():
            (out[name] / file).parent.mkdir(exist_ok=True)
            text = value if isinstance(value, str) else json.dumps(value)
            (out[name] / file).write_text(text, encoding="utf-8")
    return out


def describe(tokenizer: Any) -> dict[str, Any]:
    """What the table holds of a tokenizer: ours and transformers' have the same interface."""
    names = ("bos_token_id", "eos_token_id", "model_max_length", "chat_template")
    out = {name: getattr(tokenizer, name) for name in names}
    out["length"] = len(tokenizer)
    out["ids"] = [tokenizer.encode(text) for text in TEXTS]
    out["bare"] = tokenizer.encode(TEXTS[5], add_special_tokens=False)
    out["decoded"] = tokenizer.decode(out["ids"][3])
    if out["chat_template"] is not None:
        out["chat"] = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    return out


def main() -> int:
    from transformers import AutoTokenizer, __version__

    found: dict[str, Any] = {"transformers": __version__, "spellings": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write(Path(folder)).items():
            try:
                tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
                found["spellings"][name] = describe(tokenizer)
            except Exception as error:
                found["spellings"][name] = {"error": f"{type(error).__name__}: {error}".replace(str(path), "DIR")[:200]}
    lines = [f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}" for name, entry in found["spellings"].items()]
    text = f'{{"transformers":"{__version__}","spellings":{{\n' + ",\n".join(lines) + "\n}}\n"
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
