"""A model as data: what every decoder layer computes and what is around the layers, and the tensors that this names.

families.py makes a recipe from config.json, reference_model.py computes it in float64, tiny_checkpoint.py writes its
tensors. The defaults of Layer and Model are Llama's.
"""

import math
from dataclasses import dataclass

import gated
import pooled
import recurrent


@dataclass(frozen=True)
class Norm:
    kind: str = "rms"  # or "layer": with the mean removed
    eps: float = 1e-6
    offset: float = 0.0  # added to the weight
    weight: bool = True
    bias: bool = False
    once: bool = False  # 16 bit: rounded after the weight only


@dataclass(frozen=True)
class Rope:
    rotated: int  # the first elements of a head, which are rotated
    settings: dict  # rope_type, rope_theta and the scaling's own keys
    interleaved: bool = False  # pairs (2i, 2i + 1) instead of (i, i + rotated / 2)
    backwards: bool = False  # by the negative angle


@dataclass(frozen=True)
class Router:
    """Which experts a token uses, and their weights. Names are relative to the layer's stem."""

    module: str = "mlp.gate"
    bias: bool = False
    scores: str = "softmax"  # or "sigmoid", "sqrtsoftplus"; "chosen": softmax over the chosen logits; "sparsemixer"
    correction: str | None = None  # a tensor, added to the scores for the choice only
    corrects_logits: bool = False  # added to the logits instead
    correction_shape: tuple = ()  # before the experts, in the file
    table: str | None = None  # a tensor of integers: each token's experts, which are then not chosen
    groups: int = 1  # of experts, of which only the best `kept` are candidates
    kept: int = 1
    group_best: int = 2  # how many of a group's best experts make its score
    outside: float = -math.inf  # the score of experts of other groups
    normalised: bool = True  # the chosen weights are divided by their sum
    added: float = 0.0  # to this sum
    least: float = 0.0  # this sum, at least
    scale: float = 1.0
    softcap: float = 0.0  # of the logits; 0: none
    jitter: float = 0.0  # sparsemixer's
    on_input: bool = False  # the weight multiplies the expert's input, not its output
    own_input: bool = False  # Gemma 4: the layer's input after a norm without weight, times "router.scale"
    by_expert: str | None = None  # a tensor, factors of the weights
    exact: bool = False  # logits are not rounded in a 16-bit run
    wide: bool = False  # the module's weight is stored as F32
    always: int = 0  # the last experts, which are chosen beside the others; correction has no numbers for them
    factor: str | None = None  # a tensor of one number, stored as F32: of all weights


@dataclass(frozen=True)
class Experts:
    """Names with "{}": a module for each expert; others: a tensor [n, ...], whose name is whole."""

    n: int
    chosen: int
    inner: int
    router: Router
    gate_up: tuple = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")
    down: str = "mlp.experts.{}.down_proj"
    columns: bool = False  # stored [n, inputs, outputs]
    flat: bool = False  # stored [n * inner, hidden], one expert's rows after another's; down's with its inputs as rows
    mixed_rows: bool = False  # in one tensor, row 2i is gate's and row 2i + 1 up's
    always: tuple = ()  # gate_up and down of the experts behind the n, which every token has: tensors of their own
    identity: int = 0  # experts behind the n that give what they read
    gated: bool = True
    latent: int = 0  # width of the experts' input and output, between two products; 0: the layer's
    latent_products: tuple = ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj")
    latent_norm: str | None = None  # of the experts' sum, before the second product
    bias: bool = False
    act: str = "silu"
    limit: float = 0.0
    slope: float = 0.0  # situ's bound of the gate
    limit_first: bool = False  # of the gate, before the activation
    norm_in: str | None = None  # of an own input; None: as the dense MLP
    norm_out: str | None = None
    dense_out: str | None = None  # a norm of the dense MLP's output


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention, with DeepSeek's names. The layer's `head` is [own part | part that turns]."""

    rank: int  # of the keys' and values' latent
    q_rank: int | None  # of the queries'; None: there is none
    turning: int  # the layer's rope turns these elements
    norm: Norm = Norm()  # of the latents
    bias: bool = False  # of the products to the latents
    index: "Indexer | None" = None  # sparse attention
    module: str = "self_attn"
    factor: float = 1.0  # of the keys' and values' latent


@dataclass(frozen=True)
class Indexer:
    """Chooses the keys that a query sees, with DeepSeek's names."""

    chosen: int
    heads: int
    head: int  # the layer's rope turns its first elements
    interleaved: bool  # in pairs of neighbours
    turns_last: bool = False  # ... its last elements
    pool: int = 0  # chooses among keys of so many tokens each; 0: of one
    shared: bool = False  # the choice of the layer before
    norm: Norm = Norm(kind="layer", bias=True)


@dataclass(frozen=True)
class Blocks:
    """Chooses the blocks of keys that the queries of each key head see, with MiniMax's names."""

    size: int
    chosen: int
    local: int  # blocks up to the query's own, which are always seen
    head: int  # the layer's rope turns its first elements


@dataclass(frozen=True)
class Altup:
    """Several residual streams with alternating updates, and Laurel beside attention, with Gemma 3n's names."""

    n: int
    active: int
    low: int  # Laurel's rank
    scales: bool  # what the layer's own input reads has factors


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Names are relative to `stem`."""

    heads: int  # 0: no attention
    kv_heads: int
    head: int
    inner: int  # 0: no MLP
    norm: Norm
    stem: str = ""
    # beside attention, if any
    mixer: "recurrent.DeltaRule | recurrent.Mamba2 | recurrent.Mamba1 | recurrent.Lightning | recurrent.ShortConv | None" = None
    # norms of the branches' inputs, of their outputs before the addition, and of the sums; None: no norm
    attention_in: str | None = "input_layernorm"
    attention_out: str | None = None
    attention_after: str | None = None
    mlp_in: str | None = "post_attention_layernorm"
    mlp_out: str | None = None
    mlp_after: str | None = None
    parallel: bool = False  # x + attention(n) + mlp(m), m = n if there is no mlp_in
    residual: float = 1.0  # factor of what is added
    weights: tuple | None = None  # alpha and beta of the mixer, and of the MLP: the norms give the stream, x = alpha x + beta f(x)
    out_scalar: str | None = None  # tensor whose value multiplies the layer's result
    # attention; one projection: q, k and v in one matrix; no third one: the values are the keys before their norm
    projections: tuple = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    by_group: bool = False  # rows of one matrix: for every key-value head its queries, its key, its value
    blocks: int = 0  # rows of one matrix: for every block of heads its queries, its values, its keys
    ranks: int = 0  # rows of one matrix: for every such part of the heads its queries, its keys, its values
    o: str = "self_attn.o_proj"
    qkv_bias: bool = False
    o_bias: bool = False
    columns: bool = False  # weights are stored as [inputs, outputs]
    clip: float | None = None  # of q, k and v, before the norms of q and k
    clip_after: float | None = None  # or after them
    qk_norm: Norm | None = None
    q_norm: str = "self_attn.q_norm"  # "{}" in a name: one tensor per head
    k_norm: str = "self_attn.k_norm"
    qk_over: str = "head"  # "width": over all heads together; "own": over a head, with a weight per head
    qk_after_rope: bool = False
    v_norm: Norm | None = None
    scale: float = 1.0
    rope: Rope | None = None
    slopes: tuple | None = None  # ALiBi, per head, of the distance between key and query
    query_factor: tuple | None = None  # beta, length, first: queries times 1 + beta * ln(1 + floor((pos + first) / length))
    window: int | None = None  # keys that a query sees, with its own
    chunk: int | None = None  # a query sees the keys of its own block of so many tokens
    sinks: str | None = None  # a tensor: a logit of each head that takes part in the softmax and has no value
    head_v: int | None = None  # elements of a value; None: head
    value_scale: float = 1.0
    log_factor: tuple | None = None  # beta, length: queries and their bias times 1 + beta * ln(max(1, (pos + 1) / length))
    relative: tuple | None = None  # a bias by distance: module of the states, tensor [rank, extent], rank, extent
    kv_convs: tuple = ()  # tensors [n, 1, taps], F32: keys (before their norm) and values plus their convolutions
    out_convs: tuple = ()  # the same of attention's output and of the MLP's
    taps: int = 0
    gate_in_q: bool = False  # each head's queries are followed by a gate of its output, before a sigmoid
    attention_factors: tuple = (1.0, 1.0, 1.0)  # of the input, the keys and the output
    out_gate: tuple | None = None  # module, activation, by element: factors of the attention's output; by head otherwise
    latent: Latent | None = None
    blocks_seen: Blocks | None = None
    pooled: "pooled.Pooled | None" = None  # attention of its own
    pools: "gated.PoolChoice | None" = None
    ngrams: "gated.Ngrams | None" = None  # added to the streams before the layer
    softcap: float | None = None
    attention_norm: str | None = None  # before o
    kv_of: int | None = None  # another layer whose keys and values are used
    # MLP; one of `gate_up`: a plain MLP, or gate and up in one matrix
    gate_up: tuple = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    gated: bool = True
    up_first: bool = False  # in one matrix
    mixed_rows: bool = False  # in one matrix, row 2i is gate's and row 2i + 1 up's
    mlp_scale: str | None = None  # a tensor of one number, of the output
    act: str = "silu"
    mlp_bias: bool = False
    mlp_factors: tuple = (1.0, 1.0)  # of gate and of the output
    mlp_norm: str | None = None  # before down
    limit: float = 0.0  # of gate after the activation, from above, and of up on both sides; 0: none
    slope: float = 0.0  # situ's bound of the gate
    blended: bool = False  # each branch reads a blend of sums of blocks of layers
    limit_first: bool = False  # of gate before it
    experts: Experts | None = None  # the MLP above is the shared expert then
    shortcut: str | None = None  # "leaves": the experts' sum does not join here; "takes": that of the layer before joins behind the MLP
    shared_gate: str | None = None  # a module of one row: the shared expert's factor before a sigmoid
    extra: int = 0  # width of the layer's own input
    cutoff: float = 0.0  # the gate's part above the quantile of a normal distribution; 0: all


@dataclass(frozen=True)
class Model:
    layers: tuple
    hidden: int
    vocab: int
    norm: Norm
    embed: str = "model.embed_tokens"
    embed_suffix: str = ".weight"
    embed_width: int | None = None  # None: hidden
    embed_scale: float = 1.0
    embed_norm: str | None = None
    positions: str | None = None  # learned
    n_positions: int = 0
    position_offset: int = 0
    project_in: str | None = None
    project_out: str | None = None
    final: str | None = "model.norm"
    head: str | None = "lm_head"  # None: the embedding
    head_bias: bool = False
    head_rows: int | None = None  # the first ids; None: vocab
    unit_head: bool = False  # its rows are divided by their lengths
    logit_scale: float = 1.0
    tokens: int | None = None  # ids that are tokens: the head's first rows; None: all
    softcap: float | None = None
    block: int = 0  # layers of a block, whose outputs have a sum of their own; 0: one sum for all
    extra: int = 0  # Gemma 4 E: width of each layer's own input, from a second embedding and the first
    extra_stem: str = "model."
    extra_rows: int | None = None  # of the second embedding; None: vocab
    altup: Altup | None = None
    streams: "pooled.Streams | gated.GatedStreams | None" = None  # None: one


def tensors(m):
    """(name, shape, kind) of every tensor. kind: embed, scaled embed (also the head), positions, linear, columns (a
    linear one stored [inputs, outputs]), heads (such ones, stacked), stack,
    column stack and flat stack N (of experts), router, wide router and wide bias (F32), bias,
    long head (rows of very different lengths), table N (integers below N), norm,
    shifted norm (1 is added), small norm, head, half, tiny (constants), blend;
    and the kinds of recurrent.py."""
    width = m.embed_width or m.hidden
    scaled = m.head is None and m.embed_scale != 1
    yield m.embed + m.embed_suffix, (m.vocab, width), "scaled embed" if scaled else "embed"
    if m.positions:
        yield m.positions + ".weight", (m.n_positions, m.hidden), "positions"
    if m.embed_norm:
        yield from norm_tensors(m.embed_norm, m.hidden, m.norm)
    if m.extra:
        n = len(m.layers) * m.extra
        yield m.extra_stem + "embed_tokens_per_layer.weight", (m.extra_rows or m.vocab, n), "embed"
        yield m.extra_stem + "per_layer_model_projection.weight", (n, m.hidden), "linear"
        yield from norm_tensors(m.extra_stem + "per_layer_projection_norm", m.extra, m.norm)
    if m.project_in:
        yield m.project_in + ".weight", (m.hidden, width), "linear"
    several = gated if isinstance(m.streams, gated.GatedStreams) else pooled
    for layer in m.layers:
        for name, shape, kind in layer_tensors(layer, m.hidden, m.vocab):
            yield layer.stem + name, shape, kind
        for name in m.streams.around if m.streams else ():
            yield from several.mix_tensors(layer.stem + name, m.streams, m.hidden)
        for name, shape, kind in gated.ngram_tensors(layer.ngrams, m.streams, m.hidden) if layer.ngrams else ():
            yield layer.stem + name, shape, kind
    if m.altup:
        for i in range(m.altup.n - 1):
            yield f"{m.extra_stem}altup_projections.{i}.weight", (m.hidden, m.hidden), "linear"
            yield f"{m.extra_stem}altup_unembed_projections.{i}.weight", (m.hidden, m.hidden), "linear"
        for layer in m.layers:
            yield from altup_tensors(m.altup, layer.stem, m.hidden, m.norm)
    if m.streams and m.streams.end:
        yield from several.mix_tensors(m.streams.end, m.streams, m.hidden, mixes=False)
    if m.final:
        yield from norm_tensors(m.final, m.hidden, m.norm)
    if m.block:
        yield from blend_tensors(m.final.removesuffix("norm") + "output_attn_res", m.hidden)
    if m.project_out:
        yield m.project_out + ".weight", (width, m.hidden), "linear"
    if m.head:
        yield m.head + ".weight", (m.head_rows or m.vocab, m.hidden), "long head" if m.unit_head else "head"
    if m.head_bias:
        yield m.head + ".bias", (m.vocab,), "bias"


def altup_tensors(u, stem, hidden, norm):
    yield stem + "altup.modality_router.weight", (u.n, hidden), "blend"
    yield from norm_tensors(stem + "altup.router_norm", hidden, norm)
    yield stem + "altup.prediction_coefs.weight", (u.n * u.n, u.n), "blend"
    yield stem + "altup.correction_coefs.weight", (u.n, u.n), "blend"
    yield stem + "altup.correct_output_scale", (hidden,), "norm"  # the class always has it
    yield stem + "laurel.linear_left.weight", (u.low, hidden), "linear"
    yield stem + "laurel.linear_right.weight", (hidden, u.low), "linear"
    yield from norm_tensors(stem + "laurel.post_laurel_norm", hidden, norm)


def norm_tensors(name, n, norm, kind=None):
    shape = n if isinstance(n, tuple) else (n,)
    if norm.weight:
        yield name + ".weight", shape, kind or ("shifted norm" if norm.offset else "norm")
    if norm.bias:
        yield name + ".bias", shape, "bias"


def blend_tensors(stem, hidden):
    yield f"{stem}_norm.weight", (hidden,), "norm"
    yield f"{stem}_proj.weight", (1, hidden), "blend"


def layer_tensors(a, hidden, vocab=0):
    q, kv, v = a.heads * a.head, a.kv_heads * a.head, a.kv_heads * (a.head_v or a.head)
    out = a.heads * (a.head_v or a.head)
    for name in (a.attention_in, a.attention_out, a.attention_after, a.mlp_in, a.mlp_out, a.mlp_after):
        if name:
            yield from norm_tensors(name, hidden, a.norm)
    for stem in ("self_attention_res", "mlp_res") if a.blended else ():
        yield from blend_tensors(stem, hidden)
    rows = (q + kv + v,) if len(a.projections) == 1 else (q * (1 + a.gate_in_q), kv, v)
    own = a.projections if a.kv_of is None else a.projections[:1]
    products = [(p, n, hidden, a.qkv_bias) for p, n in zip(own, rows)]
    if a.latent:
        products = list(latent_products(a, hidden))
        yield from latent_vectors(a.latent, hidden)
    if a.blocks_seen:
        b = a.blocks_seen
        products += [("self_attn.index_q_proj", a.kv_heads * b.head, hidden, False), ("self_attn.index_k_proj", b.head, hidden, False)]
        for name in ("self_attn.index_q_norm", "self_attn.index_k_norm"):
            yield from norm_tensors(name, b.head, a.qk_norm)
    wide = a.inner * (1 + (a.gated and len(a.gate_up) == 1))
    products += [(a.o, hidden, out, a.o_bias), *((p, wide, hidden, a.mlp_bias) for p in a.gate_up),
                 (a.down, hidden, a.inner, a.mlp_bias)]
    if a.relative:
        products.append((a.relative[0], a.heads * a.relative[2], hidden, False))
        yield a.relative[1], a.relative[2:], "bias"
    for name, n in (*((name, kv) for name in a.kv_convs), *((name, hidden) for name in a.out_convs)):
        yield name, (n, 1, a.taps), "wide taps"
    if a.mlp_scale:
        yield a.mlp_scale, (1,), "norm"
    if a.out_gate:
        products.append((a.out_gate[0], out if a.out_gate[2] else a.heads, hidden, False))
    if a.extra:
        products += [("per_layer_input_gate", a.extra, hidden, False), ("per_layer_projection", hidden, a.extra, False)]
        yield from norm_tensors("post_per_layer_input_norm", hidden, a.norm)
    if a.shared_gate:
        yield a.shared_gate + ".weight", (1, hidden), "router"
    for name, n, k, bias in (p for p in products if p[1] and p[2]):
        yield name + ".weight", (k, n) if a.columns else (n, k), "columns" if a.columns else "linear"
        if bias:
            yield name + ".bias", (n,), "bias"
    if a.mixer:
        yield from recurrent.tensors(a.mixer, hidden)
    if a.pooled:
        yield from pooled.tensors(a.pooled, hidden)
    if a.pools:
        yield from gated.choice_tensors(a.pools, hidden)
    normed = [(a.q_norm, a.heads), (a.k_norm, a.kv_heads)][:2 if a.kv_of is None else 1]
    for name, heads in normed if a.qk_norm and a.heads else ():
        for stem in [name.format(h) for h in range(heads)] if "{}" in name else [name]:
            shape = {"head": a.head, "width": heads * a.head, "own": (heads, a.head)}[a.qk_over]
            small = a.scale == 1 and not a.qk_norm.offset  # the norms' weights are the scale
            yield from norm_tensors(stem, shape, a.qk_norm, "small norm" if small else None)
    if a.attention_norm:
        yield from norm_tensors(a.attention_norm, q, a.norm)
    if a.mlp_norm:
        yield from norm_tensors(a.mlp_norm, a.inner, a.norm)
    if a.out_scalar:
        yield a.out_scalar, (1,), "norm"
    if a.sinks:
        yield a.sinks, (a.heads,), "bias"
    if a.experts:
        yield from expert_tensors(a.experts, hidden, a.norm)
        if a.experts.router.table:
            yield a.experts.router.table, (vocab, a.experts.chosen), f"table {a.experts.n}"
    if a.act == "xielu":
        for name, shape, kind in (("alpha_p", (1,), "bias"), ("alpha_n", (1,), "bias"), ("beta", (), "half"),
                                  ("eps", (), "tiny")):
            yield f"mlp.act_fn.{name}", shape, kind


def latent_vectors(m, hidden):
    """Norms of latents, and of the indexer its norm and what pools its keys."""
    yield from norm_tensors(m.module + ".kv_a_layernorm", m.rank, m.norm)
    if m.q_rank:
        yield from norm_tensors(m.module + ".q_a_layernorm", m.q_rank, m.norm)
    if m.index and not m.index.shared:
        yield from norm_tensors(m.module + ".indexer.k_norm", m.index.head, m.index.norm)
        if m.index.pool:
            stem = m.module + ".indexer.index_kpool_compress_"
            yield stem + "gate", (m.index.head, hidden), "gates"
            yield stem + "ape", (m.index.pool, m.index.head), "bias"


def latent_products(a, hidden):
    m, q, own = a.latent, a.heads * a.head, a.head - a.latent.turning
    if m.q_rank:
        yield m.module + ".q_a_proj", m.q_rank, hidden, m.bias
        yield m.module + ".q_b_proj", q, m.q_rank, False
    else:
        yield m.module + ".q_proj", q, hidden, False
    yield m.module + ".kv_a_proj_with_mqa", m.rank + m.turning, hidden, m.bias
    yield m.module + ".kv_b_proj", a.heads * (own + (a.head_v or a.head)), m.rank, False
    if m.index and not m.index.shared:
        yield m.module + ".indexer.wq_b", m.index.heads * m.index.head, m.q_rank, False
        yield m.module + ".indexer.wk", m.index.head, hidden, False
        yield m.module + ".indexer.weights_proj", m.index.heads, hidden, False


def expert_tensors(e, hidden, norm):
    r = e.router
    yield r.module + ".weight", (e.n + e.identity + r.always, hidden), "wide router" if r.wide else "router"
    if r.bias:
        yield r.module + ".bias", (e.n,), "bias"
    if r.correction:
        yield r.correction, (*r.correction_shape, e.n + e.identity), "wide bias"
    if r.factor:
        yield r.factor, (1,), "wide norm"
    for name, shape in zip(e.always, ((r.always, 2 * e.inner, hidden), (r.always, hidden, e.inner))):
        yield name, shape, "stack"
    if r.own_input:
        yield "router.scale", (hidden,), "norm"
    if r.by_expert:
        yield r.by_expert, (e.n,), "norm"
    for name in (e.norm_in, e.norm_out, e.dense_out):
        if name:
            yield from norm_tensors(name, hidden, norm)
    wide, width = e.inner * (2 if e.gated and len(e.gate_up) == 1 else 1), e.latent or hidden
    if e.latent:
        yield f"{e.latent_products[0]}.weight", (e.latent, hidden), "linear"
        yield f"{e.latent_products[1]}.weight", (hidden, e.latent), "linear"
        if e.latent_norm:
            yield from norm_tensors(e.latent_norm, e.latent, norm)
    for name, n, k in (*((p, wide, width) for p in e.gate_up), (e.down, width, e.inner)):
        if "{}" in name:
            yield from ((name.format(i) + ".weight", (n, k), "linear") for i in range(e.n))
            yield from ((name.format(i) + ".bias", (n,), "bias") for i in range(e.n) if e.bias)
        elif e.flat:
            yield name, (e.n * e.inner, width), f"flat stack {e.n}"
        else:
            yield name, (e.n, k, n) if e.columns else (e.n, n, k), "column stack" if e.columns else "stack"
            if e.bias:
                yield name + "_bias", (e.n, n), "bias"
