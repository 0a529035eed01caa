"""Exceptions of the `tokenizers` library as ArgumentErrors of one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tokenizers

from ..base.errors import ArgumentError, CtworkerError

_RECALL = (
    "if another program reads the file, upgrade the library (pip install -U tokenizers) or save the tokenizer again (python "
    '-c "from '
    "transformers import AutoTokenizer as A; A.from_pretrained('DIR').save_pretrained('TOKENIZER_DIR')\", then pass "
    "tokenizer=TOKENIZER_DIR); else download the file again"
)


@contextmanager
def named(what: str, remedy: str = _RECALL) -> Iterator[None]:
    """Turns whatever the library raises into an ArgumentError that begins with `what`."""
    try:
        yield
    except CtworkerError:
        raise
    except BaseException as error:  # the binding raises plain Exception; a panic of its Rust code is a BaseException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ArgumentError(
            f"{what}: the tokenizers library {tokenizers.__version__} says: {cause}; {remedy}"
        ) from error


def check_text(text: str, where: str) -> None:
    """Raises an ArgumentError for a text that is not Unicode text: half of a surrogate pair has no UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.start + 20]
        raise ArgumentError(
            f"{where}: character {error.start} is U+{ord(text[error.start]):04X}, half of a surrogate pair, which is no text "
            f"(around it: {around!a}): mend the data, for instance text.encode('utf-16', 'surrogatepass').decode('utf-16', "
            "'replace')"
        ) from None
