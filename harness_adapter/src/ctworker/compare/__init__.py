"""`ctworker-compare`: models against a reference, and lm-eval runs against each other (docs/METHODS.md). Needs numpy.

main.py is the command. models.py runs the workers and makes the report: divergence.py has the statistics of predictions,
layers.py and matrices.py say where a quantisation hurts, report.py and plot.py show it. runs.py compares lm-eval runs:
samples.py reads them, paired.py tests them. A new statistic is a line in divergence.py's summarize() and one in report.py.
"""

#: Windows of each document on which matrices are exchanged, unless a number is given.
MATRIX_WINDOWS = 4
