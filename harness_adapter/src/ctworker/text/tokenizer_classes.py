"""What transformers 5 knows of tokenizer classes and model types: default special tokens, and how it builds pipelines."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

#: A class's default special tokens, used if no file names them.
CLASS_DEFAULTS: dict[str, dict[str, str]] = {
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "CodeLlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "GemmaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "Qwen2Tokenizer": {
        "unk_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    },
    "GPT2Tokenizer": {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    },
    "CodeGenTokenizer": {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    },
    "GPTNeoXTokenizer": {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|padding|>",
    },
    "CohereTokenizer": {
        "unk_token": "<UNK>",
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "pad_token": "<PAD>",
        "cls_token": "<CLS>",
        "sep_token": "<SEP>",
        "mask_token": "<MASK_TOKEN>",
    },
}

#: Model types for which transformers ignores the tokenizer class and uses tokenizer.json itself.
PLAIN_MODEL_TYPES = {
    "ernie4_5",
    "ernie4_5_moe",
    "flex_olmo",
    "gpt_bigcode",
    "granitemoehybrid",
    "granitemoeshared",
    "olmo_hybrid",
    "phi3_v",
    "pixtral",
    "ministral",
    "ministral3",
    "mistral",
    "mistral3",
    "mixtral",
    "granite",
    "granitemoe",
    "olmo2",
    "olmo3",
    "stablelm",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v",
    "glm4v_moe",
    "kimi_k25",
    "llava",
    "llava_next",
    "mimo_v2_flash",
    "phi3",
    "phimoe",
    "nemotron",
    "internlm2",
    "internlm3",
    "minicpm3",
    "minimax_m2",
    "modernbert",
    "molmo",
    "smolvlm",
    "vipllava",
    "jamba",
    "arctic",
    "persimmon",
}

#: Model types for which transformers overrides the class that the files name.
FORCED_CLASS = {"qwen2": "Qwen2Tokenizer"}

#: Model types with a default class, used if no file names a class.
CLASS_WHEN_UNNAMED = {
    **dict.fromkeys(("qwen2_moe", "qwen2_vl", "qwen2_5_vl", "internvl"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "codegen", "opt", "phi", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "mpt", "olmo", "olmoe"), "GPTNeoXTokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("cohere", "cohere2"), "CohereTokenizer"),
}

#: Tokens that only CodeLlamaTokenizer has.
CODE_LLAMA_TOKENS = {
    "prefix_token": "\u2581<PRE>",
    "middle_token": "\u2581<MID>",
    "suffix_token": "\u2581<SUF>",
    "eot_token": "\u2581<EOT>",
    "fill_token": "<FILL_ME>",
}

#: Qwen2's pre-tokenizer, as in its tokenizer.json.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: Classes that decided about BOS themselves in transformers 4, regardless of tokenizer.json.
ADDED_BOS_IN_4 = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}


def _bpe(model: dict[str, Any], **flags: Any) -> Tokenizer:
    """A bare tokenizer with the vocabulary and merges of a tokenizer.json's model."""
    merges: list[tuple[str, str]] = [
        tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]
    ]
    return Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, **flags))


def _llama(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """LlamaTokenizer: no normalizer; blanks become U+2581, and a text without a leading U+2581 gets one."""
    tokenizer = _bpe(model, fuse_unk=True, byte_fallback=True)
    prefix_space = config.get("add_prefix_space")
    prefix_space = True if prefix_space is None else bool(prefix_space)
    scheme = "never" if not prefix_space else "always" if config.get("legacy", False) else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme=scheme, split=False
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        steps + ([decoders.Strip(content=" ", left=1)] if prefix_space else [])
    )
    return tokenizer


def _qwen2(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """Qwen2Tokenizer: NFC, its own splits, bytes."""
    tokenizer = _bpe(model, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(
                add_prefix_space=prefixes(config), use_regex=False
            ),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt2(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """GPT2Tokenizer and CodeGenTokenizer: GPT-2's splits, bytes."""
    tokenizer = _bpe(model, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixes(config))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt_neox(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """GPTNeoXTokenizer: NFC, GPT-2's splits, bytes."""
    tokenizer = _gpt2(config, model)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _cohere(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """CohereTokenizer: NFC, single digits, GPT-2's splits, bytes."""
    tokenizer = _gpt_neox(config, model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=prefixes(config)),
        ]
    )
    return tokenizer


def _pieces(model: dict[str, Any], unk_token: str) -> Tokenizer:
    """Pieces with U+2581 in place of blanks, and bytes for what has no piece."""
    tokenizer = _bpe(model, fuse_unk=True, byte_fallback=True, unk_token=unk_token)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _gemma(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """GemmaTokenizer: blanks become U+2581 before the text is split at blanks, so it is one piece."""
    tokenizer = _pieces(model, _unk(config, "GemmaTokenizer"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    return tokenizer


def _code_llama(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """CodeLlamaTokenizer: the text, but not a part of it after a special token, begins with U+2581."""
    tokenizer = _pieces(model, _unk(config, "CodeLlamaTokenizer"))
    prefix_space = config.get("add_prefix_space")
    scheme = "first" if prefix_space is None or prefix_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    return tokenizer


def _unk(config: dict[str, Any], class_name: str) -> str:
    """The text of the unknown token."""
    value = config.get("unk_token", CLASS_DEFAULTS[class_name]["unk_token"])
    return str(value["content"] if isinstance(value, dict) else value)


def prefixes(config: dict[str, Any]) -> bool:
    """Whether the configuration puts a blank before each text; classes of byte-level vocabularies do not by default."""
    return bool(config.get("add_prefix_space"))


#: Classes that transformers rebuilds around the vocabulary and merges of a tokenizer.json.
ANEW = {
    "CodeGenTokenizer": _gpt2,
    "CodeLlamaTokenizer": _code_llama,
    "CohereTokenizer": _cohere,
    "GPT2Tokenizer": _gpt2,
    "GPTNeoXTokenizer": _gpt_neox,
    "GemmaTokenizer": _gemma,
    "LlamaTokenizer": _llama,
    "Qwen2Tokenizer": _qwen2,
}

#: Those whose splits do not replace the splits of a tokenizer.json that has more than GPT-2's (docs/METHODS.md, "Tokens").
KEEPS_SPLITS = {"CodeGenTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"}

#: Classes that put BOS first, or nothing, whatever the post-processor of a tokenizer.json is.
ADDS_BOS = {"CodeLlamaTokenizer": True, "GPTNeoXTokenizer": False}

#: Further classes that transformers rebuilds, in ways that are not followed here: no supported model has them.
REBUILT_ELSEWHERE = {
    "AlbertTokenizer", "BartTokenizer", "BarthezTokenizer", "BertTokenizer", "BigBirdTokenizer", "BlenderbotTokenizer",
    "CLIPTokenizer", "CamembertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "FunnelTokenizer", "HerbertTokenizer",
    "LEDTokenizer", "LayoutXLMTokenizer", "LukeTokenizer", "MBart50Tokenizer", "MBartTokenizer", "MLukeTokenizer",
    "MPNetTokenizer", "MvpTokenizer", "NllbTokenizer", "NougatTokenizer", "OpenAIGPTTokenizer", "PegasusTokenizer",
    "Qwen3_5Tokenizer", "ReformerTokenizer", "RemBertTokenizer", "RoFormerTokenizer", "RobertaTokenizer",
    "SeamlessM4TTokenizer", "Siglip2Tokenizer", "SplinterTokenizer", "T5Tokenizer", "UdopTokenizer", "WhisperTokenizer",
    "XGLMTokenizer", "XLMRobertaTokenizer", "XLNetTokenizer",
}  # fmt: skip

#: Classes built from vocab.json and merges.txt, if there is no tokenizer.json.
FROM_VOCABULARY = {"GPT2Tokenizer": _gpt2, "CodeGenTokenizer": _gpt2, "Qwen2Tokenizer": _qwen2}
