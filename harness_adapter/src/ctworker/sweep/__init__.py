"""`ctworker-sweep FILE.yaml`: many models x lm-eval tasks and other work, resumable, with a report (docs/SWEEP.md).

main.py is the command; work.py says what a sweep consists of; definition.py reads the YAML file; plan.py makes cells of
it; runner.py runs them with a worker and one process of cells (cell_process.py) a device; kinds/ says what a cell does;
results.py keeps results.json; tables.py, plots.py and report_html.py write what people read.
"""
