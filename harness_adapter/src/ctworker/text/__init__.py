"""From texts to token ids: tokenizers and chat templates, as in transformers."""
