"""Qwen 4 (experimental) for make_checkpoint.py: what its files hold beside Qwen 3.5's mixtures, as parts of recipe.py.

Its streams are mixed by gates, which read and replace the norms of branches' inputs; its attention chooses pools of keys; some
layers add features of n-grams. Its float64 reference is the golden's, by the defining library.
"""

from dataclasses import replace

import recurrent_families

AROUND = ("attn_hyper_connection", "mlp_hyper_connection")
IGNORE = ["re:.*hyper_connection", "re:.*\\.ple\\.", "re:.*index_qk_proj$"]  # modules that are not quantised


def is_one(c):
    return c["model_type"] == "qwen4_exp_text"


def describe(c):
    """The Model without what tensors() adds."""
    m = recurrent_families.qwen3_5_moe(c)
    return replace(m, final=None, layers=tuple(replace(a, attention_in=None, mlp_in=None) for a in m.layers))


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))


def table_rows(c):
    """Rows of each layer's table of n-grams: consecutive primes, one for each head."""
    found, heads, multiple = c["ngram_vocab_size_base"] - 1, (c["ngram_size"] - 1) * c["heads_per_ngram"], \
        c["make_ngram_vocab_size_divisible_by"]
    for layer in c["ple_layer_ids"]:
        rows = 0
        for _ in range(heads):
            found += 1
            while not is_prime(found):
                found += 1
            rows += found
        yield layer - 1, -(-rows // multiple) * multiple


def gates(stem, c, inject):
    width, n = c["hc_count"] * c["hidden_size"], c["hc_count"]
    yield f"{stem}.hc_norm.weight", (width,), "shifted norm"
    yield f"{stem}.input_mix_weight_down.weight", (c["hc_lowrank"], width), "gates"
    yield f"{stem}.input_mix_weight_up.weight", (width, c["hc_lowrank"]), "gates"
    if inject:
        yield f"{stem}.block_inject_weight.weight", (n, width), "gates"


def indexer(stem, c):
    head = c["indexer_head_dim"]
    yield f"{stem}.index_qk_proj.weight", ((c["indexer_n_heads"] + 1) * head, c["hidden_size"]), "gates"
    for name in ("q_layernorm", "k_layernorm"):
        yield f"{stem}.{name}.weight", (head,), "shifted norm"


def ngrams(stem, c, rows):
    hidden, columns = c["hidden_size"], c["ple_embed_dim"]
    width, heads = c["hc_count"] * hidden, (c["ngram_size"] - 1) * c["heads_per_ngram"]
    for i in range(c["split_ngram_parts"]):
        yield f"{stem}.ple_embedding.ngram_embedding.shard_{i}.weight", (rows // c["split_ngram_parts"], columns // heads), "embed"
    yield f"{stem}.key_proj.weight", (width, columns), "gates"
    yield f"{stem}.value_proj.weight", (hidden, columns), "gates"
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield f"{stem}.{name}.weight", (width,), "shifted norm"
    yield f"{stem}.conv1d.weight", (width, 1, c["ple_conv_kernel_size"]), "taps"


def tensors(c):
    """(name, shape, kind of recipe.py)"""
    for i, kind in enumerate(c["layer_types"]):
        for name in AROUND:
            yield from gates(f"model.layers.{i}.{name}", c, True)
        if kind == "full_attention":
            yield from indexer(f"model.layers.{i}.self_attn.indexer", c)
    yield from gates("model.hyper_connection_mixer", c, False)
    for i, rows in table_rows(c):
        yield from ngrams(f"model.layers.{i}.ple", c, rows)


def products(c):
    """As recurrent_shapes.mixer_products(): of the gates around a layer's two branches. Features of n-grams are left out."""
    width = c["hc_count"] * c["hidden_size"]
    yield "gates_down", c["hc_lowrank"] + c["hc_count"], width, len(AROUND)
    yield "gates_up", width, c["hc_lowrank"], len(AROUND)
