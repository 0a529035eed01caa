"""A tokenizer without transformers: the interface that lm-eval and its tasks need, on the `tokenizers` library."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding

from ..base.errors import ArgumentError
from . import chat, tokenizer_errors, tokenizer_files

log = logging.getLogger("lm_eval.ctworker")

#: The value of `model_max_length` if no file sets it, as in transformers.
UNLIMITED = int(1e30)


class TextTokenizer:
    """The tokenizer of a checkpoint folder or of a GGUF file; attribute names are those of transformers.

    name: the tokenizer's name in results. add_bos_token: None leaves the decision to the files.
    """

    def __init__(self, folder: Path, *, name: str, add_bos_token: bool | None = None) -> None:
        files = tokenizer_files.read(folder)
        self.name_or_path = name
        self._tokenizer = tokenizer_files.build(files, add_bos_token)
        self._special = files.special
        self.model_max_length: int = files.config.get("model_max_length") or UNLIMITED
        self._templates = chat.load_templates(files.folder, files.config)
        self._choose_pad()

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The chat template, or several by name; None: the tokenizer has none."""
        return self._templates.value

    def _choose_pad(self) -> None:
        """Does the same as lm-eval's configure_pad_token: ctworker never pads, but results record the token."""
        for name in ("pad_token", "unk_token", "eos_token"):
            if self._special.get(name):
                self._special.setdefault("pad_token", self._special[name])
                return

    def _id(self, name: str) -> int | None:
        text = self._special.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)

    @property
    def bos_token(self) -> str | None:
        """The token at the beginning of a text; None: the tokenizer has none."""
        return self._special.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        """The id of bos_token; None: there is no such token."""
        return self._id("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The token at the end of a text; None: the tokenizer has none."""
        return self._special.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of eos_token; None: there is no such token."""
        return self._id("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The token that fills up batches (ctworker itself never pads); None: the tokenizer has none."""
        return self._special.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of pad_token; None: there is no such token."""
        return self._id("pad_token")

    @property
    def unk_token(self) -> str | None:
        """The token for what the vocabulary lacks; None: the tokenizer has none."""
        return self._special.get("unk_token")

    @property
    def unk_token_id(self) -> int | None:
        """The id of unk_token; None: there is no such token."""
        return self._id("unk_token")

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give equal ids."""
        text = self._tokenizer.to_str() + repr(sorted(self._special.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by name (bos_token, ...)."""
        return dict(self._special)

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary without added tokens."""
        return self._tokenizer.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def n_ids(self) -> int:
        """Token ids are below this number; it may be smaller than the number of rows of the model's head."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def __bool__(self) -> bool:
        return True

    def get_vocab(self) -> dict[str, int]:
        """The id of each token, with added tokens."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """The id of a token, or of each of several tokens; None: the vocabulary lacks the token."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The token of each id, as the vocabulary writes it; None: there is no such id."""
        return [self._tokenizer.id_to_token(i) for i in ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Raises ArgumentError for what is no Unicode text."""
        return self._encoding(text, add_special_tokens).ids

    def _encoding(self, text: str, add_special_tokens: bool) -> Encoding:
        with tokenizer_errors.named(f"the tokenizer of {self.name_or_path}", "check the text and the tokenizer's files"):
            try:
                return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            except TypeError:
                tokenizer_errors.check_text(text, "a text to encode")
                raise

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> Iterable[list[int]]:
        """encode() of each text."""
        texts = list(texts)
        with tokenizer_errors.named(f"the tokenizer of {self.name_or_path}", "check the texts and the tokenizer's files"):
            try:
                encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
            except TypeError:
                for i, text in enumerate(texts):
                    tokenizer_errors.check_text(text, f"text {i} of {len(texts)} to encode")
                raise
        return (encoding.ids for encoding in encodings)

    def encode_starts(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """encode(), and for each token the place in the text where it starts; a special token that is not in the text
        starts where the token before it ends."""
        encoding = self._encoding(text, add_special_tokens)
        starts, end = [], 0
        for (start, stop), special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            added = special and start == stop == 0
            starts.append(end if added else start)
            end = end if added else stop
        return encoding.ids, starts

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        ids = [ids] if isinstance(ids, int) else list(ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def select_template(self, name: str | None = None) -> str:
        """The chat template of that name; None: the only template, or the default. Raises ArgumentError."""
        if self._templates.problem:
            raise ArgumentError(self._templates.problem)
        if self.chat_template is None:
            raise ArgumentError(
                f"the tokenizer of {self.name_or_path} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): leave --apply_chat_template out, or pass an instruct model's tokenizer with tokenizer="
            )
        if isinstance(self.chat_template, str):
            return self.chat_template
        chosen = name or "default"
        if chosen not in self.chat_template:
            raise ArgumentError(
                f"the tokenizer of {self.name_or_path} has no chat template '{chosen}'; it has "
                f"{', '.join(sorted(self.chat_template))}: name one with --apply_chat_template NAME"
            )
        return self.chat_template[chosen]

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        template_name: str | None = None,
        **variables: Any,
    ) -> str:
        """The text of a chat, with the special tokens as variables. tokenize must be False."""
        if tokenize:
            raise ArgumentError(
                "apply_chat_template(tokenize=True) is not supported: pass the returned text to encode()"
            )
        return chat.render(
            self.select_template(template_name),
            self._templates.source,
            conversation,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={**self.special_tokens_map, **variables},
        )
