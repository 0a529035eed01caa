"""The lm-eval model `ctworker`: log-likelihoods from a ctworker process, without torch in this process."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from tqdm import tqdm

from .base.errors import ArgumentError
from .base.progress import Progress
from .client import hub, report
from .client.batches import Item
from .client.results import Score
from .client.session import Session
from .client.wire import INT32
from .harness import cache, excepthook, guard
from .harness.bar import Bar
from .options import arguments
from .options.arguments import DEFAULT_DEVICE
from .text import chat, gguf_tokenizer
from .text.encoding import Encoder, Pair, make_item
from .text.tokenizer import UNLIMITED, TextTokenizer

log = logging.getLogger("lm_eval.ctworker")

#: Model types whose configuration class has none of the keys that lm-eval's hf backend reads a maximum length from
#: (n_positions, max_position_embeddings, n_ctx): there it takes the tokenizer's, else _HF_LENGTH.
_NO_LENGTH = {"bloom", "mpt"}
_HF_LENGTH = 2048


class CTWorkerLM(TemplateLM):
    """Arguments: see docs/LM_EVAL.md. Our own worker stops at close(), when this object is dropped, and when this
    process ends in any way."""

    def __init__(self, pretrained: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        wishes = kwargs.pop("_wishes", None)
        given = kwargs if pretrained is None else {"pretrained": pretrained, **kwargs}
        settings = self._settings = arguments.parse(given, wishes=wishes)
        arguments.check_one_process()
        guard.install()
        self._checkpoint = None
        if settings.pretrained is not None:
            self._checkpoint = hub.resolve(
                settings.pretrained, settings, weights=settings.endpoint is None
            )
        settings = self._settings = hub.with_original(settings, self._checkpoint)
        if settings.endpoint is None or settings.tokenizer or self._checkpoint:
            self._load_tokenizer(None)  # before the worker starts, so that tokenizer errors come at once
        self._session = Session(settings, self._checkpoint)
        try:
            if self.tokenizer is None:
                self._load_tokenizer(self._session.folder())
            self._describe()
        except BaseException:
            self.close()
            raise
        self.batch_sizes: dict[str, int] = {}
        self.n_tokens = 0  # tokens of all requests so far
        self.on_progress: Callable[[Progress], None] | None = None  # called about twice per second
        self._template_name: str | None = None
        self._warned: set[str] = set()

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> CTWorkerLM:
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> CTWorkerLM:
        """Arguments in --model_args override the arguments that lm-eval adds (device, batch_size)."""
        excepthook.install()
        added = {
            name: value for name, value in (additional_config or {}).items() if value is not None
        }
        wishes = set(arg_dict)
        if added.get("device") not in (None, DEFAULT_DEVICE):
            wishes.add("device")
        return cls(**{**added, **arg_dict}, _wishes=wishes)

    # -- what lm-eval reads from the model ------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        return self._encoder.prefix_token_id

    @property
    def max_length(self) -> int:
        """Longest model input in tokens: the argument, else the model's own maximum, as lm-eval's hf backend reads it."""
        own = self._session.model["max_length"]
        if self._settings.max_length is None and self._session.model.get("model_type") in _NO_LENGTH:
            known = self.tokenizer.model_max_length
            own = min(own, _HF_LENGTH if known == UNLIMITED else known)
        return self._settings.max_length or own

    @property
    def batch_size(self) -> str:
        return "auto"

    @property
    def device(self) -> str:
        return str(self._session.model["device"])

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **_: Any,
    ) -> list[int]:
        ids = self._encoder.encode(string, add_special_tokens)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_decode(self, tokens: int | list[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template in use, for the results; a name selects among several templates."""
        if chat_template is False or chat_template is None:
            return None
        named = isinstance(self.tokenizer.chat_template, dict)
        self._template_name = chat_template if named and isinstance(chat_template, str) else None
        return self.tokenizer.select_template(self._template_name)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        def apply(messages: list[dict[str, str]]) -> str:
            return self.tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                template_name=self._template_name,
                **self._settings.chat_template_args,
            )

        try:
            return apply(chat_history)
        except chat.Refused as error:  # hf then leaves system messages out, too
            rest = [message for message in chat_history if message["role"] != "system"]
            if not rest or len(rest) == len(chat_history):
                raise
            text = apply(rest)
            self._warn_once("system", f"system messages are left out, as with lm-eval's hf backend: {error}")
            return text

    def get_model_info(self) -> dict[str, Any]:
        """For the results: hf's keys, and under `ctworker` everything that the scores depend on."""
        self._session.source()
        return report.model_info(self._session, self._checkpoint, self._settings, self._used())

    def _used(self) -> dict[str, Any]:
        """The arguments that scores depend on."""
        return {
            "max_length_used": self.max_length,
            "add_bos_token": self._settings.add_bos_token,
            "prefix_token_id": self.prefix_token_id,
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """--use_cache: separates the answers by checkpoint, numerics id, tokenizer and window."""
        super().set_cache_hook(cache_hook)
        if getattr(cache_hook, "dbdict", None) is not None:
            source = self._session.source() | self._used()
            cache.separate(cache_hook, source | {"tokenizer": self.tokenizer.fingerprint})

    # -- scoring --------------------------------------------------------------------------------------------

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Per request: (sum of the continuation's log-probabilities, whether greedy decoding gives the continuation)."""
        if self._settings.enable_thinking:
            names = ", ".join(sorted({str(r.task_name) for r in requests if r.task_name}))
            raise ArgumentError(
                "enable_thinking=True is not compatible with loglikelihood tasks: the answer would be scored in "
                f"place of the model's thoughts; pass enable_thinking=False (tasks: {names})"
            )
        texts = [request.args for request in requests]
        pairs = tqdm(
            self._encoder.pairs(texts, lambda i: self._where(requests, i)),
            desc="Tokenizing inputs",
            total=len(texts),
            disable=disable_tqdm,
        )
        encoded = [
            (text, pair.context, pair.continuation) for text, pair in zip(texts, pairs, strict=True)
        ]
        return self._loglikelihood_tokens(encoded, disable_tqdm=disable_tqdm, instances=requests)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        instances: list[Instance] | None = None,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool] | None] = [None] * len(requests)
        items: list[Item] = []
        numbers: list[int] = []  # request number of each item
        n_cut = n_empty = 0
        for i, (text, context, continuation) in enumerate(requests):
            if not continuation:  # the sum over no tokens
                answers[i] = (0.0, True)
                n_empty += 1
                self._keep("loglikelihood", text, answers[i])
                continue
            if not context:
                raise ArgumentError(f"{self._where(instances, i)}: the context has no token")
            item, cut = make_item(
                Pair(context, continuation), self.max_length, self._where(instances, i)
            )
            n_cut += cut > 0
            items.append(item)
            numbers.append(i)
        if n_empty:
            log.warning(
                "%d of %d requests have an empty continuation: their log-likelihood is 0, the sum over no tokens",
                n_empty,
                len(requests),
            )
        if n_cut:
            log.warning(
                "%d of %d requests are longer than the model's %d tokens: their contexts were truncated from the left",
                n_cut,
                len(requests),
                self.max_length,
            )

        def keep(k: int, score: Score) -> None:
            answer = (score.sum, score.is_greedy)
            answers[numbers[k]] = answer
            self._keep("loglikelihood", requests[numbers[k]][0], answer)

        self._score(
            "loglikelihood",
            items,
            {},
            keep,
            disable_tqdm,
            lambda k: self._where(instances, numbers[k]),
        )
        return answers  # type: ignore[return-value]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Sum of the log-probabilities of all tokens of each text, in windows of max_length."""
        texts = [request.args[0] for request in requests]
        prefix = self.prefix_token_id
        sums = [0.0] * len(texts)
        items: list[Item] = []
        for ids in self._encoder.texts(texts, lambda i: self._where(requests, i)):
            if ids and ids[0] == prefix:
                self._warn_once(
                    "doubled",
                    f"both the tokenizer and lm-eval put token {prefix} before each text: its log-probability "
                    "after itself is counted, as with lm-eval's hf backend; add_bos_token=False avoids the "
                    "second token",
                )
            items.append(Item(array(INT32, ids)))

        def keep(k: int, score: Score) -> None:
            sums[k] = score.sum
            self._keep("loglikelihood_rolling", (texts[k],), score.sum)

        self._score(
            "loglikelihood_rolling",
            items,
            {"prefix_token": prefix, "context_length": 1},
            keep,
            disable_tqdm,
            lambda k: self._where(requests, k),
        )
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        raise guard.no_generation(sorted({str(request.task_name) for request in requests}))

    def _score(
        self,
        kind: str,
        items: list[Item],
        head: dict[str, Any],
        keep: Callable[[int, Score], None],
        disable_tqdm: bool,
        where: Callable[[int], str],
    ) -> None:
        if not items:
            return
        description = f"Running {kind} requests"
        n_tokens = sum(len(item.tokens) for item in items)
        bar = Bar(description, len(items), n_tokens, disable=disable_tqdm)

        def progress(now: Progress) -> None:
            bar.update(now)
            if self.on_progress is not None:
                self.on_progress(now)

        try:
            self._session.score(
                kind,
                items,
                {"max_length": self.max_length, **head},
                on_score=keep,
                on_progress=progress,
                where=where,
            )
            bar.finish()
            self.n_tokens += n_tokens
        finally:
            bar.close()

    # -- helpers --------------------------------------------------------------------------------------------

    def _keep(self, kind: str, arguments: tuple[Any, ...] | None, answer: Any) -> None:
        """--use_cache: stores each answer as soon as it is final."""
        if arguments is not None:
            self.cache_hook.add_partial(kind, arguments, answer)

    @staticmethod
    def _where(instances: list[Instance] | None, i: int) -> str:
        """The name of a request in messages."""
        if instances is None or i >= len(instances):
            return f"request {i}"
        return f"request {i} (task {instances[i].task_name}, document {instances[i].doc_id})"

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning("%s", message)

    def _load_tokenizer(self, loaded: Path | None) -> None:
        """Loads the tokenizer from tokenizer=, else pretrained=, else the folder that a running worker has loaded."""
        settings = self._settings
        if settings.tokenizer is not None:
            source = hub.resolve(settings.tokenizer, settings, weights=False)
        elif self._checkpoint is not None:
            source = self._checkpoint
        elif loaded is not None:
            source = hub.Checkpoint(loaded, str(loaded))
        else:
            raise ArgumentError(
                f"the files of the model at {settings.endpoint} are not on this machine: pass its tokenizer with "
                "tokenizer= (a folder or a hub name)"
            )
        self.tokenizer = TextTokenizer(
            source.folder, name=source.name, add_bos_token=settings.add_bos_token
        )
        if settings.tokenizer is not None and (place := loaded or (self._checkpoint and self._checkpoint.folder)):
            gguf_tokenizer.check(place, self.tokenizer.get_vocab(), source.name)
        self._encoder = Encoder(
            self.tokenizer,
            add_bos_token=settings.add_bos_token,
            prefix_token_id=settings.prefix_token_id,
        )
        _ = self._encoder.prefix_token_id  # fails now rather than at the first request

    def _describe(self) -> None:
        """Checks the tokenizer against the model, and logs what a reader of the results should know."""
        model = self._session.model
        if self.prefix_token_id >= model["vocab"]:
            raise ArgumentError(
                f"the prefix token {self.prefix_token_id} is outside the model's vocabulary of "
                f"{model['vocab']}: does tokenizer= belong to another model?"
            )
        report.announce(self._session, self._settings, self.max_length)

    def close(self) -> None:
        """Stops our own worker."""
        if getattr(self, "_session", None) is not None:
            self._session.close()
