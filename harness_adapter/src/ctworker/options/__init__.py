"""The options of a model and its worker: the table (settings.py), readers of values, lm-eval's arguments, spellings."""
