"""What lm-eval needs besides the model (../lm.py): bars, its cache, checks before generation, tracebacks."""
