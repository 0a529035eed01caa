"""lm_eval's command line without the index of its built-in tasks, which costs 6 s at every start.

Takes lm_eval's arguments. Tasks come from --include_path alone.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module

sys.argv[0] = "ctworker-lm-eval"  # the console script's name
if os.environ.get("CTWORKER_TEST_INSTALLED") != "1":
    import_module("_ctworker_hook")  # Python reads no .pth file in a source tree

manager = import_module("lm_eval.tasks").TaskManager
manager.__init__ = functools.partialmethod(manager.__init__, include_defaults=False)
import_module("lm_eval.__main__").cli_evaluate()
