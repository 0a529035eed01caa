"""The torch side of tests/gpu/bench, a process of its own: what the GPU can do on a model's shapes, and
transformers' dense model of the same shape with random weights.

Reads one JSON object a line, {"do": name, ...}, and answers each with one: a result, or {"error": ..}.
"""

import gc
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16


def seconds_of(step, at_least):
    """Mean time of a step in a loop of at least so many seconds, after a warm-up of the same kind."""
    step()
    torch.cuda.synchronize()
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < 0.3:
        step()
        torch.cuda.synchronize()
        n += 1
    n = max(2, round(n * at_least / (time.perf_counter() - start)))
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(n):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / n


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=BF16)


# ---- limits --------------------------------------------------------------------------------------

def matrices(c):
    """Name -> (n, k) of a decoder layer's products, as few as can be, and of the head."""
    h, inner, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    return {"qkv": (q + 2 * kv, h), "o": (h, q), "gate_up": (2 * inner, h), "down": (h, inner),
            "lm_head": (c["vocab_size"], h)}


def gemm_step(m, n, k):
    x, w, out = random(m, k), random(n, k) * 0.02, torch.empty(m, n, device="cuda", dtype=BF16)
    return lambda: torch.mm(x, w.t(), out=out)


def attention_step(c, batch, length):
    """cuDNN's causal attention with grouped heads; which way it was called."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    n_q, n_kv, head = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def heads(n):  # [batch, n, length, head], as projections leave it
        return random(batch, length, n, head).transpose(1, 2)
    q, k, v = heads(n_q), heads(n_kv), heads(n_kv)

    def with_groups():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    try:
        with_groups()
        return with_groups, "cuDNN, grouped"
    except (RuntimeError, TypeError):
        k, v = (t.repeat_interleave(n_q // n_kv, 1) for t in (k, v))

    def repeated():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    try:
        repeated()
        return repeated, "cuDNN, repeated heads"
    except RuntimeError:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), "torch's choice"


def attention_flops(c, length):
    """Of one sequence, the causal half."""
    return 2 * length * length * c["num_attention_heads"] * c["head_dim"]


def limit(request):
    """Tokens per second that products and attention alone allow, on windows of `window`."""
    c, m, loop = request["config"], request["m"], request["seconds"]
    layers, window = c["num_hidden_layers"], request["window"]
    rates, token_s = {}, 0.0
    for name, (n, k) in matrices(c).items():
        s = seconds_of(gemm_step(m, n, k), loop)
        rates[name] = 2 * m * n * k / s / 1e12
        token_s += s / m * (1 if name == "lm_head" else layers)
    out = {"gemm_tflops": rates, "gemm_token_s": token_s, "attention_tflops": {}}
    for length in (window, 4 * window):
        batch = max(1, 8 * window // length)
        step, out["attention_by"] = attention_step(c, batch, length)
        s = seconds_of(step, loop)
        out["attention_tflops"][length] = batch * attention_flops(c, length) / s / 1e12
        if length == window:
            token_s += layers * s / (batch * length)
    out["tokens_per_s"] = 1 / token_s
    out["mixed_tokens_per_s"] = mixed_limit(c, m, window, max(loop, 3.0))
    return out


def mixed_limit(c, m, window, loop):
    """The same as one loop over a whole model's products: at the power that the mix draws."""
    shapes = matrices(c)
    head = gemm_step(m, *shapes.pop("lm_head"))
    steps = [gemm_step(m, n, k) for n, k in shapes.values()]
    steps.insert(1, attention_step(c, m // window, window)[0])

    def model():
        for _ in range(c["num_hidden_layers"]):
            for step in steps:
                step()
        head()
    return m / seconds_of(model, loop)


def copies(_):
    """Bytes per second: device to device (read and written), and from pinned host memory."""
    n = 2 << 30
    a, b = (torch.randint(0, 255, (n,), device="cuda", dtype=torch.uint8) for _ in range(2))
    device = 2 * n / seconds_of(lambda: b.copy_(a), 1.0)
    host = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty(256 << 20, device="cuda", dtype=torch.uint8)
    up = host.numel() / seconds_of(lambda: there.copy_(host, non_blocking=True), 0.5)
    return {"device_bytes_per_s": device, "host_bytes_per_s": up}


# ---- transformers --------------------------------------------------------------------------------

MODEL = None


def dense_bytes(c):
    """Of the model in bf16, norms left out."""
    shapes = matrices(c)
    n_head = shapes.pop("lm_head")
    each = sum(n * k for n, k in shapes.values())
    return 2 * (c["num_hidden_layers"] * each + 2 * n_head[0] * n_head[1])


def build(request):
    """The dense model from its config alone; random weights."""
    global MODEL
    import transformers
    config = {k: v for k, v in request["config"].items() if k != "quantization_config"}
    need, (free, _) = dense_bytes(config), torch.cuda.mem_get_info()
    if need > 0.95 * free:
        return {"error": f"the dense model takes {need / 2**30:.0f} GiB, {free / 2**30:.0f} are free"}
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    start = time.perf_counter()
    torch.set_default_dtype(BF16)
    with torch.device("cuda"):
        MODEL = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    MODEL = MODEL.to(BF16).eval()
    torch.cuda.synchronize()
    return {"version": transformers.__version__, "torch": torch.__version__,
            "attention": MODEL.config._attn_implementation, "seconds": time.perf_counter() - start,
            "weights_bytes": sum(p.numel() * p.element_size() for p in MODEL.parameters())}


def score_batch(rows, kind):
    """(context length, tokens) rows -> [(sum, is greedy)], as lm-eval's hf backend does: padded on the
    right, log-softmax of all logits, then each row's own."""
    longest = max(len(t) for _, t in rows) - 1
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (_, t) in enumerate(rows):
        ids[i, :len(t) - 1] = torch.tensor(t[:-1])
    lps = F.log_softmax(MODEL(ids.cuda()).logits, dim=-1, dtype=kind)
    out = []
    for lp, (n_context, t) in zip(lps, rows):
        lp = lp[n_context - 1:len(t) - 1]
        targets = torch.tensor(t[n_context:], device="cuda")
        greedy = (lp.argmax(-1) == targets).all()
        out.append((float(lp.gather(1, targets[:, None]).sum()), bool(greedy)))
    return out


def time_rows(rows, batch, kind):
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.inference_mode():
        for at in range(0, len(rows), batch):
            score_batch(rows[at:at + batch], kind)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def rows_of(request):
    """Longest first, as lm-eval orders them."""
    rows = [(n, t) for n, t in request["rows"]]
    return sorted(rows, key=lambda r: -len(r[1]))


def score(request):
    """Seconds for the rows at one batch size: the median of `reps`. Memory beyond the weights."""
    kind = torch.float32 if request.get("softmax", "float32") == "float32" else None
    rows, batch = rows_of(request), request["batch"]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    time_rows(rows[:batch], batch, kind)  # warm-up
    times = [time_rows(rows, batch, kind) for _ in range(request.get("reps", 1))]
    beyond = torch.cuda.max_memory_reserved() - before
    torch.cuda.empty_cache()  # the next one to measure may be another process
    return {"seconds": statistics.median(times), "all": times, "beyond_weights": beyond}


def first_score(request):
    """Seconds from a checkpoint on disk to a score, without the imports."""
    import transformers
    start = time.perf_counter()
    global MODEL
    MODEL = transformers.AutoModelForCausalLM.from_pretrained(
        request["folder"], dtype=BF16, device_map={"": 0}).eval()
    with torch.inference_mode():
        score_batch([(1, [1, 2, 3])], torch.float32)
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - start}


def drop(_):
    """Gives the model's memory back."""
    global MODEL
    MODEL = None
    torch.cuda.empty_cache()
    return {}


DO = {f.__name__: f for f in (limit, copies, build, score, first_score, drop)}


def main():
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = DO[request["do"]](request)
        except torch.OutOfMemoryError:
            answer = {"error": "out of memory"}
        except Exception as e:  # told to the parent, which goes on with the other parts
            answer = {"error": f"{type(e).__name__}: {e}"[:400]}
        gc.collect()  # what an exception's frames held
        torch.cuda.empty_cache()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
