"""ctworker-sweep without the plots of its report, whose drawing takes longer than the cells of most tests.

Takes its arguments. tests/python/test_sweep_kinds.py and test_sweep_report.py draw plots.
"""

from __future__ import annotations

import sys

from ctworker.base import interrupt

if __name__ == "__main__":
    interrupt.install("ctworker-sweep", stores=False)
    from ctworker.sweep import main, plots

    plots.files = lambda document: iter(())
    sys.exit(main.main())
