"""lm-eval's cache of answers (--use_cache), separated by everything that the answers depend on.

lm-eval looks an answer up by the request's texts alone, so one file used for two checkpoints would return the
first checkpoint's answers for the second. The cache is a SqliteDict, one table in a file: each source of
answers gets its own table.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from ..base.errors import CtworkerError

log = logging.getLogger("lm_eval.ctworker")


def separate(hook: Any, source: dict[str, Any]) -> None:
    """Switches the cache behind lm-eval's CacheHook to the table of this source.

    source: everything that an answer depends on in addition to its texts. Raises CtworkerError when this lm-eval
    uses another kind of cache.
    """
    store = getattr(hook, "dbdict", None)
    if store is None:  # no cache
        return
    from sqlitedict import SqliteDict

    if not isinstance(store, SqliteDict):
        raise CtworkerError(
            f"--use_cache: this lm_eval caches in a {type(store).__name__}, expected a SqliteDict, which can keep the "
            "answers of several checkpoints apart: run without --use_cache, or with lm_eval 0.4.13"
        )
    key = json.dumps(source, sort_keys=True).encode()
    name = f"ctworker-{hashlib.sha256(key).hexdigest()[:32]}"
    SqliteDict(store.filename, tablename=name).close()  # creates the table
    store.tablename = name
    log.info(
        "cache: %d answers for this checkpoint, numerics id and these arguments in %s", len(store), store.filename
    )  # fmt: skip
