"""Tokenizer folders in the layout of the published families, with small vocabularies (data/tokenizer_vocabularies.json),
and the ids that transformers gives for them (data/tokenizer_ids.json).

    python tokenizer_cases.py          rewrites both files (needs transformers 5)
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

DATA = Path(__file__).parent / "data"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
FILES = "-files"  # of a case without tokenizer.json

TEXTS = [
    "", "Hello world", " Hello world", "  two  spaces ", "\n\nA\tB\n", " = Robert Boulter = \n",
    "In 2013 , 12,345.67 won", "na\u00efve caf\u00e9 e\u0301 \u00dcn\u00efc\u00f6d\u00e9 \u65e5\u672c\u8a9e \U0001f600",
    "<s>[INST] hi [/INST] yes</s> no", "<s>", "<|im_start|>user\nhi<|im_end|>\n", "<bos>x <eos> y",
    "<|begin_of_text|>Hello", "a\u00a0b\u2581c", "It's   don't 123456 !!??", "<unk> x", "trailing space ",
    "The Bill in 2000 . This was followed by a starring role in the play Herons", "x" * 50,
]  # fmt: skip


def _special(*tokens: str) -> dict[str, Any]:
    """added_tokens_decoder of tokenizer_config.json."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {str(i): {"content": token, **flags} for i, token in enumerate(tokens)}


def _named(**tokens: str) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {name: {"content": token, **flags} for name, token in tokens.items()}


def _bos(token: str, i: int) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, i)]
    )


def _byte_level(vocabulary: dict[str, Any], pre: pre_tokenizers.PreTokenizer, special: list[str]) -> Tokenizer:
    merges = [tuple(merge) for merge in vocabulary["merges"]]
    vocab = {token: i for i, token in enumerate([*special, *vocabulary["tokens"]])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer


def _sentencepiece(vocabulary: dict[str, Any], special: list[str]) -> Tokenizer:
    merges = [tuple(merge) for merge in vocabulary["merges"]]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    vocab = {token: i for i, token in enumerate([*special, *bytes_, *vocabulary["tokens"]])}
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(special)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if "<s>" in special else []
    tokenizer.decoder = decoders.Sequence(steps + strip)
    return tokenizer


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


#: (name, tokenizer, tokenizer_config.json, model_type, special_tokens_map.json)
Case: TypeAlias = tuple[str, Tokenizer, dict[str, Any], str, dict[str, Any] | None]
SMOL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # special tokens of SmolLM2, and of Qwen here


def _smollm2(stored: dict[str, Any]) -> Iterator[Case]:
    digits = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    config = {
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>", "additional_special_tokens": SMOL[1:], "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    yield "smollm2", _byte_level(stored["bytes"], digits, SMOL), config, "llama", None


def _llama3(stored: dict[str, Any]) -> Iterator[Case]:
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer = _byte_level(stored["bytes"], _split(LLAMA3), special)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), _bos(special[0], 0)])
    config = {"bos_token": special[0], "eos_token": special[1], "model_max_length": 131072}
    for name, class_name in [("llama3", "PreTrainedTokenizerFast"), ("llama3-wrong-class", "LlamaTokenizerFast")]:
        yield name, tokenizer, {**config, "tokenizer_class": class_name}, "llama", None


def _qwen(stored: dict[str, Any]) -> Iterator[Case]:
    tokenizer = _byte_level(stored["bytes"], _split(QWEN2), SMOL)
    tokenizer.normalizer = normalizers.NFC()
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "add_prefix_space": False,
        "added_tokens_decoder": _special(*SMOL),
    }  # fmt: skip
    yield "qwen2", tokenizer, config, "qwen2", None
    yield "qwen2-no-class", tokenizer, {"eos_token": "<|im_end|>"}, "qwen2", None
    yield "qwen3", tokenizer, {**config, "eos_token": "<|im_end|>"}, "qwen3", None
    tokenizer = _byte_level(stored["bytes"], _split(LLAMA3), SMOL)  # not the splits of the class
    yield "qwen3-no-class", tokenizer, {"eos_token": "<|im_end|>"}, "qwen3", None
    yield "qwen3_vl-no-class", tokenizer, {"eos_token": "<|im_end|>"}, "qwen3_vl", None
    yield "qwen3_vl_moe-no-class", tokenizer, {"eos_token": "<|im_end|>"}, "qwen3_vl_moe", None
    yield "internvl-no-class", tokenizer, {"eos_token": "<|im_end|>"}, "internvl", None
    for kind in ("mimo_v2_flash", "glm4_moe_lite", "glm4v_moe", "llava", "smolvlm"):  # types whose class transformers ignores
        yield kind, tokenizer, config, kind, None
    yield f"qwen2{FILES}", tokenizer, config, "qwen2", None


def _llama2(stored: dict[str, Any]) -> Iterator[Case]:
    tokenizer = _sentencepiece(stored["pieces"], ["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.post_processor = _bos("<s>", 1)
    named = _named(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    config |= {name: {"__type": "AddedToken", **value} for name, value in named.items()}
    for name, model_type, changes in [
        ("llama2", "llama", {}),
        ("llama2-legacy", "llama", {"legacy": True}),
        ("llama2-no-prefix-space", "llama", {"add_prefix_space": False}),
        ("llama2-says-no-bos", "llama", {"add_bos_token": False}),
        ("mistral", "mistral", {}),
    ]:
        yield name, tokenizer, config | changes, model_type, named
    yield "ernie4_5", tokenizer, config, "ernie4_5", named
    yield "bare", tokenizer, {}, "llama", None


def _gemma(stored: dict[str, Any]) -> Iterator[Case]:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokenizer = _sentencepiece(stored["pieces"], special)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = _bos("<bos>", 2)
    config = {
        "tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>",
        "pad_token": "<pad>", "add_bos_token": True, "added_tokens_decoder": _special(*special),
    }  # fmt: skip
    yield "gemma", tokenizer, config, "gemma2", None
    yield "gemma3-no-class", tokenizer, _without(config, "tokenizer_class"), "gemma3_text", None
    yield "gemma4-says-no-bos", tokenizer, config | {"add_bos_token": False}, "gemma4", None


def _without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def _byte_families(stored: dict[str, Any]) -> Iterator[Case]:
    """Byte-level families whose tokenizers put nothing, BOS or a prefix before a text. FILES: no tokenizer.json."""
    plain, end = pre_tokenizers.ByteLevel(add_prefix_space=False), "<|endoftext|>"
    ends = {"bos_token": end, "eos_token": end, "unk_token": end}
    tokenizer = _byte_level(stored["bytes"], plain, [end, "<|padding|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    code_gen = {"tokenizer_class": "CodeGenTokenizer", **ends}
    yield "gpt2-no-class", tokenizer, {"model_max_length": 1024}, "gpt2", None
    yield f"gpt2-no-class{FILES}", tokenizer, {"model_max_length": 1024}, "gpt2", None
    yield f"phi{FILES}", tokenizer, code_gen | {"add_prefix_space": True}, "phi", None
    yield "granite", tokenizer, {"tokenizer_class": "GPT2Tokenizer", **ends}, "granite", None
    yield "falcon", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}, "falcon", None
    tokenizer.normalizer = normalizers.NFC()
    for kind in ("mpt", "olmoe"):
        yield f"{kind}-no-class", tokenizer, {"model_max_length": 2048}, kind, None
    yield "gptneox", tokenizer, {"tokenizer_class": "GPTNeoXTokenizer", **ends}, "gpt_neox", None
    tokenizer = _byte_level(stored["bytes"], plain, ["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = _bos("</s>", 2)
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "pad_token": "<pad>"}
    config |= {name: "</s>" for name in ends}
    yield "opt", tokenizer, config, "opt", None
    yield f"opt{FILES}", tokenizer, config | {"add_eos_token": True}, "opt", None
    tokenizer = _byte_level(stored["bytes"], plain, ["<unk>", "<s>", "</s>", "<pad>"])
    config = {"tokenizer_class": "BloomTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    yield "bloom", tokenizer, config, "bloom", None
    special = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"]
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    tokenizer = _byte_level(stored["bytes"], digits, special)
    tokenizer.normalizer, tokenizer.post_processor = normalizers.NFC(), _bos("<BOS_TOKEN>", 5)
    yield "cohere2", tokenizer, {"tokenizer_class": "CohereTokenizer", "add_bos_token": True}, "cohere2", None
    tokenizer = _byte_level(stored["bytes"], plain, ["[gMASK]", "<sop>", end])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A", pair="[gMASK] <sop> $A $B", special_tokens=[("[gMASK]", 0), ("<sop>", 1)]
    )
    yield "glm4", tokenizer, {"tokenizer_class": "PreTrainedTokenizer", "eos_token": end}, "glm4", None


def cases() -> Iterator[Case]:
    stored = json.loads((DATA / "tokenizer_vocabularies.json").read_text(encoding="utf-8"))
    for family in (_smollm2, _llama3, _qwen, _llama2, _gemma, _byte_families):
        yield from family(stored)


def write(folder: Path) -> dict[str, Path]:
    """Writes every case's folder. Returns name -> folder."""
    out = {}
    for name, tokenizer, config, model_type, special in cases():
        out[name] = folder / name
        out[name].mkdir(parents=True, exist_ok=True)
        if name.endswith(FILES):
            tokenizer.model.save(str(out[name]))  # vocab.json, merges.txt
        else:
            tokenizer.save(str(out[name] / "tokenizer.json"))
        files = {"tokenizer_config": config, "config": {"model_type": model_type}, "special_tokens_map": special}
        for file, value in files.items():
            if value is not None:
                (out[name] / f"{file}.json").write_text(json.dumps(value), encoding="utf-8")
    return out


def _train() -> dict[str, Any]:
    from pydoc_data.topics import topics

    from tokenizers import trainers

    text = "\n".join(topics.values())[:300_000].splitlines()
    out = {}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    out["bytes"] = json.loads(tokenizer.to_str())["model"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=500, max_token_length=12, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    out["pieces"] = json.loads(tokenizer.to_str())["model"]
    return {
        name: {"tokens": sorted(model["vocab"], key=model["vocab"].get), "merges": model["merges"]}
        for name, model in out.items()
    }


def main() -> int:
    from transformers import AutoTokenizer, __version__

    DATA.mkdir(exist_ok=True)
    (DATA / "tokenizer_vocabularies.json").write_text(json.dumps(_train(), ensure_ascii=False) + "\n", encoding="utf-8")
    expected: dict[str, Any] = {"transformers": __version__, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write(Path(folder)).items():
            entry: dict[str, Any] = {}
            for add_bos in (None, True, False):
                options = {} if add_bos is None else {"add_bos_token": add_bos}
                tokenizer = AutoTokenizer.from_pretrained(path, **options)
                entry[f"ids {add_bos}"] = [
                    [tokenizer.encode(text, add_special_tokens=special) for special in (True, False)]
                    for text in TEXTS
                ]
            for key in ("bos_token_id", "eos_token_id", "vocab_size", "model_max_length"):
                entry[key] = getattr(tokenizer, key)
            entry["length"] = len(tokenizer)
            entry["decoded"] = tokenizer.decode(tokenizer.encode(TEXTS[5], add_special_tokens=False))
            expected["cases"][name] = entry
    (DATA / "tokenizer_ids.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
