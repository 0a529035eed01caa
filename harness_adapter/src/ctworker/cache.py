"""lm-eval's cache of answers (--use_cache), kept apart by what the answers depend on.

lm-eval finds an answer by the texts of its request alone, so that one file used for two checkpoints would
answer for the second with the numbers of the first. Its cache is a SqliteDict, one table of a file: each
source of answers gets a table of its own there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from .errors import CtworkerError

log = logging.getLogger("lm_eval.ctworker")


def separate(hook: Any, source: dict[str, Any]) -> None:
    """Turns the cache behind lm-eval's CacheHook to the table of this source.

    source: everything that an answer depends on beside its texts. Raises CtworkerError when this lm-eval's cache
    is another than we know.
    """
    store = getattr(hook, "dbdict", None)
    if store is None:  # no cache
        return
    from sqlitedict import SqliteDict

    if not isinstance(store, SqliteDict):
        raise CtworkerError(
            f"--use_cache: this lm_eval caches in a {type(store).__name__}, expected was a SqliteDict, in which answers of "
            "several checkpoints can be kept apart: run without --use_cache, or with lm_eval 0.4.13"
        )
    key = json.dumps(source, sort_keys=True).encode()
    name = f"ctworker-{hashlib.sha256(key).hexdigest()[:32]}"
    SqliteDict(store.filename, tablename=name).close()  # makes the table
    store.tablename = name
    log.info(
        "cache: %d answers of this checkpoint, numerics id and these arguments are in %s", len(store), store.filename
    )  # fmt: skip
