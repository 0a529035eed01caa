"""Attention over pooled keys, and several residual streams, as data: a part of recipe.py. Names are relative to the layer's stem."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pooled:
    """DeepSeek V4's attention: a window of tokens, and keys of blocks of tokens."""

    heads: int
    head: int
    turning: int  # the last elements of a head, which are rotated
    q_rank: int
    window: int
    groups: int  # of the output
    group_rank: int
    eps: float
    block: int = 0  # 0: the window alone
    overlaps: bool = False  # a key is also of the block before
    index: tuple | None = None  # (chosen, heads, head) of the indexer


@dataclass(frozen=True)
class Streams:
    """Hyper-connections: several residual streams, mixed around each branch."""

    n: int
    iterations: int  # 0: branches do not mix them with each other
    eps: float
    norm_eps: float
    post: tuple = (2.0, 0.0)  # factor and addend of a branch's share in each stream
    around: tuple = ("hc_attn", "hc_ffn")
    end: str | None = "hc_head"  # None: the final norm reads their mean


def tensors(p, hidden):
    yield "attn.wq_a.weight", (p.q_rank, hidden), "linear"
    yield "attn.q_norm.weight", (p.q_rank,), "norm"
    yield "attn.wq_b.weight", (p.heads * p.head, p.q_rank), "linear"
    yield "attn.wkv.weight", (p.head, hidden), "linear"
    yield "attn.kv_norm.weight", (p.head,), "norm"
    yield "attn.attn_sink", (p.heads,), "wide bias"
    yield "attn.wo_a.weight", (p.groups * p.group_rank, p.heads * p.head // p.groups), "linear"
    yield "attn.wo_b.weight", (hidden, p.groups * p.group_rank), "linear"
    if p.block:
        yield from maker("attn.compressor", p, p.head, hidden)
    if p.index:
        _, heads, head = p.index
        yield "attn.indexer.wq_b.weight", (heads * head, p.q_rank), "linear"
        yield "attn.indexer.weights_proj.weight", (heads, hidden), "gates"
        yield from maker("attn.indexer.compressor", p, head, hidden)


def maker(stem, p, head, hidden):
    """What makes keys of blocks."""
    columns = head * (1 + p.overlaps)
    yield f"{stem}.wkv.weight", (columns, hidden), "gates"
    yield f"{stem}.wgate.weight", (columns, hidden), "gates"
    yield f"{stem}.ape", (p.block, columns), "wide bias"
    yield f"{stem}.norm.weight", (head,), "norm"


def mix_tensors(name, streams, hidden, mixes=True):
    rows = streams.n * (1 if not mixes else 2 + streams.n if streams.iterations else 2)
    yield f"{name}_fn", (rows, streams.n * hidden), "wide taps"
    yield f"{name}_base", (rows,), "wide bias"
    yield f"{name}_scale", (1 if not mixes else 3 if streams.iterations else 2,), "wide norm"
