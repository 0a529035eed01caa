"""`ctworker-ppl`: texts, methods and perplexities (docs/METHODS.md).

main.py is the command; methods.py has the presets; texts.py loads texts; measure.py tokenises and scores them;
options.py has the options that `ctworker-compare` shares. A new method is a line in methods.py.
"""
