"""Token lists compared with lm-eval's own code, for the tokenizer of every family; the maximum length of every family.

lm-eval's hf backend needs torch, so its two short methods are restated here, and lm-eval's torch-free code calls them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizer_cases
from conftest import requests
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import _add_special_kwargs, has_bos_prefix, resolve_max_length

from ctworker.lm import CTWorkerLM
from ctworker.text.encoding import Encoder
from ctworker.text.tokenizer import UNLIMITED, TextTokenizer

TEXTS = ["Hello world", " Hello", "two  spaces ", "a\n", "<s>x", "<bos>x", "</s> y", "<|endoftext|>z", "[gMASK]<sop>x", "12 ,"]


class HfRules(TemplateLM):
    """lm_eval 0.4.13, models/huggingface.py: prefix_token_id (lines 610 to 617), tok_encode (1040 to 1063)."""

    def __init__(self, tokenizer: TextTokenizer, add_bos_token: bool | None, prefix: int | None) -> None:
        super().__init__()
        self.tokenizer, self.add_bos_token, self.custom_prefix_token_id = tokenizer, add_bos_token, prefix

    eot_token_id = property(lambda self: self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        if self.custom_prefix_token_id is not None:
            return self.custom_prefix_token_id
        if self.tokenizer.bos_token_id is not None:
            return self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        special = _add_special_kwargs(add_special_tokens, self.add_bos_token)
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            special["add_special_tokens"] = False
        return self.tokenizer.encode(string, **special)

    def _loglikelihood_tokens(self, requests: list, **_: Any) -> list:
        return [(context, continuation) for _, context, continuation in requests]

    def loglikelihood_rolling(self, requests: list, **_: Any) -> list:
        raise NotImplementedError

    generate_until = loglikelihood_rolling


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tokenizer_cases.write(tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.parametrize("name", [case[0] for case in tokenizer_cases.cases()])
@pytest.mark.parametrize("add_bos", [None, True, False])
def test_tokens_are_those_of_hf(folders: dict[str, Path], name: str, add_bos: bool | None) -> None:
    tokenizer = TextTokenizer(folders[name], name=name, add_bos_token=add_bos)
    prefix = 1 if tokenizer.bos_token is None and tokenizer.eos_token is None else None
    ours = Encoder(tokenizer, add_bos_token=add_bos, prefix_token_id=prefix)
    theirs = HfRules(tokenizer, add_bos, prefix)
    assert ours.prefix_token_id == theirs.prefix_token_id
    assert list(ours.texts(TEXTS)) == [theirs.tok_encode(text) for text in TEXTS]
    pairs = [("", text) for text in TEXTS] + list(itertools.product(TEXTS, TEXTS))
    expected = theirs.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    assert [(pair.context, pair.continuation) for pair in ours.pairs(pairs)] == expected


@pytest.mark.parametrize(
    ("name", "prefix", "begins"),
    [
        ("gemma", "<bos>", ["<bos>"]),  # Gemma needs its BOS: its tokenizer adds it, whatever tokenizer_config.json says
        ("gemma3-no-class", "<bos>", ["<bos>"]),
        ("gemma4-says-no-bos", "<bos>", ["<bos>"]),
        ("opt", "</s>", ["</s>"]),
        ("opt-files", "</s>", ["</s>"]),
        ("cohere2", "<BOS_TOKEN>", ["<BOS_TOKEN>"]),
        ("gpt2-no-class", "<|endoftext|>", []),
        ("falcon", "<|endoftext|>", []),  # no BOS: EOS
        ("bloom", "<s>", []),
        ("glm4", "<|endoftext|>", ["[gMASK]", "<sop>"]),
        ("qwen3", "<|im_end|>", []),
    ],
)
def test_prefix_of_a_family(folders: dict[str, Path], name: str, prefix: str, begins: list[str]) -> None:
    tokenizer = TextTokenizer(folders[name], name=name)
    encoder = Encoder(tokenizer, add_bos_token=None, prefix_token_id=None)
    assert tokenizer.decode(encoder.prefix_token_id) == prefix
    expected = tokenizer.convert_tokens_to_ids(begins) + tokenizer.encode("x", add_special_tokens=False)
    assert encoder.encode("x")[: len(expected)] == expected


@pytest.mark.parametrize("kind", ["llama", "bloom", "mpt"])
@pytest.mark.parametrize("known", [UNLIMITED, 700, 5000])
def test_max_length_without_a_key(make: Callable[..., CTWorkerLM], kind: str, known: int) -> None:
    """bloom, mpt: the configuration class has no key that hf reads, so the tokenizer decides."""
    model = make()
    own = model.max_length
    model._session.model.update(model_type=kind, max_length=10**6)
    model.tokenizer.model_max_length = known
    keys = {} if kind != "llama" else {"max_position_embeddings": 10**6}
    config = SimpleNamespace(max_seq_len=8192, seq_length=4096, **keys)
    assert model.max_length == resolve_max_length(config, model.tokenizer, default=2048)
    model._session.model["max_length"] = own
    assert model.max_length <= own  # what the worker takes
