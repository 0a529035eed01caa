"""The torch side of tests/gpu/bench, in a separate process: the GPU's limit on a model's shapes, and
transformers' dense model of the same shape with random weights.

Reads one JSON object per line, {"do": name, ...}, and answers each with one object: a result, or {"error": ..}.
"""

import gc
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from bench_plan import attention_flops, attention_layers, matrices, times
from mixture_shapes import n_experts

BF16 = torch.bfloat16


def seconds_of(step, at_least):
    """Mean time of a step in a loop of at least `seconds`, after a warm-up of the same kind."""
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

def gemm_step(m, n, k, w=None):
    x, out = random(m, k), torch.empty(m, n, device="cuda", dtype=BF16)
    w = random(n, k) * 0.02 if w is None else w
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


def limit(request):
    """Rates of products with each of `rows`, and of attention, on windows of `window`; all of it on rows[0]
    as one loop, in tokens/s."""
    c, rows, loop, window = request["config"], request["rows"], request["seconds"], request["window"]
    rates = {}
    for name, (n, k) in matrices(c).items():
        rates[name] = [2 * m * n * k / seconds_of(gemm_step(m, n, k), loop) / 1e12 for m in rows]
    out = {"gemm_tflops": rates, "attention_tflops": {}}
    for length in (window, 4 * window):
        batch = max(1, 8 * window // length)
        step, out["attention_by"] = attention_step(c, batch, length)
        s = seconds_of(step, loop)
        out["attention_tflops"][length] = batch * attention_flops(c, length) / s / 1e12
        if length == window:
            out["attention_token_s"] = s / (batch * length)  # of one layer
    out["mixed_tokens_per_s"] = mixed_limit(c, rows[0], window, max(loop, 3.0))
    return out


def mixed_limit(c, m, window, loop):
    """The same as one loop over a whole model's products: at the power that the mix draws."""
    shapes, passes, layers = matrices(c), times(c), c["num_hidden_layers"]
    head = gemm_step(m, *shapes.pop("lm_head"))
    steps = [(gemm_step(m, n, k), passes[name]) for name, (n, k) in shapes.items()]
    steps.insert(1, (attention_step(c, m // window, window)[0], attention_layers(c)))

    def model():
        for i in range(layers):
            for step, count in steps:
                for _ in range((i + 1) * count // layers - i * count // layers):
                    step()
        head()
    return m / seconds_of(model, loop)


# ---- weights as checkpoints hold them ------------------------------------------------------------

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
TYPES = {"BF16": BF16, "F32": torch.float32, "I32": torch.int32, "I64": torch.int64,
         "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}


def tensors_of(folder, prefix):
    """Suffix -> tensor, on the CPU, of a matrix in a checkpoint."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with open(path, "rb") as f:
            n = int.from_bytes(f.read(8), "little")
            for name, t in json.loads(f.read(n)).items():
                if not name.startswith(prefix + ".") or t.get("dtype") not in TYPES:
                    continue
                begin, end = t["data_offsets"]
                f.seek(8 + n + begin)
                data = torch.frombuffer(bytearray(f.read(end - begin)), dtype=torch.uint8)
                found[name[len(prefix) + 1:]] = data.view(TYPES[t["dtype"]]).reshape(t["shape"])
    return found


def decoded(folder, prefix, device):
    """A matrix [n, k] in bf16: dense, NVFP4, or 4 bits with symmetric groups."""
    t = {name: x.to(device) for name, x in tensors_of(folder, prefix).items()}
    if "weight" in t:
        return t["weight"].to(BF16)
    packed, scale = t["weight_packed"], t["weight_scale"]
    if "weight_global_scale" in t:
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
        values = torch.tensor(E2M1, device=device)[codes]
        scale = scale.to(torch.float32) / t["weight_global_scale"]
    elif packed.shape[1] * 8 == int(t["weight_shape"][1]) and "weight_zero_point" not in t:
        codes = torch.stack([packed >> 4 * i & 15 for i in range(8)], -1).flatten(1)
        values = (codes - 8).to(torch.float32)
    else:
        raise ValueError(f"{prefix}: only bf16, nvfp4 and w4a16 are decoded here")
    n, k = values.shape
    return (values.view(n, scale.shape[1], -1) * scale.float()[:, :, None]).view(n, k).to(BF16)


PRODUCTS = {"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "o": ("self_attn.o_proj",), "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
            "down": ("mlp.down_proj",)}


def drawn():
    """The current power in watts; None if unknown."""
    try:
        return torch.cuda.power_draw() / 1e3
    except Exception:  # the package is missing, or does not fit the driver
        return None


def in_turn(steps, rounds, slice_s):
    """Name -> (mean seconds of a step, mean watts), interleaved slices; the first round warms up."""
    count = {name: max(1, round(slice_s / seconds_of(step, 0.05))) for name, step in steps.items()}
    seconds, watts = {name: 0.0 for name in steps}, {name: [] for name in steps}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for i in range(rounds + 1):
        for name, step in steps.items():
            begin.record()
            for _ in range(count[name]):
                step()
            end.record()
            time.sleep(slice_s / 2)
            power = drawn()
            torch.cuda.synchronize()
            if i > 0:
                seconds[name] += begin.elapsed_time(end) / 1e3 / count[name] / rounds
                watts[name] += [power] if power is not None else []
    return {name: (s, statistics.mean(watts[name]) if watts[name] else None)
            for name, s in seconds.items()}


def data(request):
    """Kind of weights ("randn", formats) -> product -> {tflops, watts}: a layer's products on its own
    weights and on random ones, so that only the values differ."""
    c, m = request["config"], request["m"]
    types, middle = c.get("layer_types", []), c["num_hidden_layers"] // 2
    layer = f"model.layers.{next((i for i, t in enumerate(types) if i >= middle and t == 'full_attention'), middle)}"
    out = {kind: {} for kind in ("randn", *request["folders"])}
    for name, (n, k) in matrices(c).items():
        if name not in PRODUCTS:
            continue
        steps = {"randn": gemm_step(m, n, k)}
        for kind, folder in request["folders"].items():
            w = torch.cat([decoded(folder, f"{layer}.{p}", "cuda") for p in PRODUCTS[name]])
            steps[kind] = gemm_step(m, n, k, w)
        for kind, (s, watts) in in_turn(steps, request["rounds"], request["slice_s"]).items():
            out[kind][name] = {"tflops": 2 * m * n * k / s / 1e12, "watts": watts}
    return out


# ---- copies --------------------------------------------------------------------------------------

def copies(_):
    """Bytes per second: device to device (read and written), and from pinned host memory."""
    n = 2 << 30
    a, b = (torch.randint(0, 255, (n,), device="cuda", dtype=torch.uint8) for _ in range(2))
    device = 2 * n / seconds_of(lambda: b.copy_(a), 1.0)
    host = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty(256 << 20, device="cuda", dtype=torch.uint8)
    up = host.numel() / seconds_of(lambda: there.copy_(host, non_blocking=True), 0.5)
    return {"device_bytes_per_s": device, "host_bytes_per_s": up}


def wall_s(begin, at_least, n=2):
    """Mean seconds of begin(), which queues work on some GPUs, in a loop of at least so long."""
    def run(times):
        start = time.perf_counter()
        for _ in range(times):
            begin()
        for i in range(torch.cuda.device_count()):
            torch.cuda.synchronize(i)
        return (time.perf_counter() - start) / times
    run(n)
    return run(max(n, round(at_least / run(n))))


def several(request):
    """All GPUs at once: TFLOP/s of a product on one alone and on each of them; bytes per second of copies between two, of
    both directions together, and of what each GPU gets in NCCL's all-gather."""
    m, n, k, count = request["m"], request["n"], request["k"], torch.cuda.device_count()
    steps = []
    for i in range(count):
        with torch.cuda.device(i):
            steps.append(gemm_step(m, n, k))
    rates = [2 * m * n * k / wall_s(lambda s=some: [step() for step in s], request["seconds"], 8) / 1e12
             for some in (steps[:1], steps)]
    size = 1 << 30
    there = [torch.randint(0, 255, (size,), device=f"cuda:{i}", dtype=torch.uint8) for i in range(2)]
    got = [torch.empty(size, device=f"cuda:{1 - i}", dtype=torch.uint8) for i in range(2)]
    out = {"gemm_tflops": rates, "peer_bytes_per_s": size / wall_s(lambda: got[0].copy_(there[0], non_blocking=True), 0.5)}
    out["both_ways_bytes_per_s"] = 2 * size / wall_s(lambda: [g.copy_(t, non_blocking=True) for g, t in zip(got, there)], 0.5)
    try:
        whole = [torch.empty(2 * size, device=f"cuda:{i}", dtype=torch.uint8) for i in range(2)]
        out["all_gather_bytes_per_s"] = size / wall_s(lambda: torch.cuda.nccl.all_gather(there, whole), 0.5)
    except Exception as e:  # this torch was built without it
        out["all_gather"] = f"{type(e).__name__}: {e}"[:200]
    return out


# ---- transformers --------------------------------------------------------------------------------

MODEL, LAYERS = None, None  # and all of its layers, while it may have only the first of them


def dense_bytes(c):
    """Of the model without experts in bf16, norms left out."""
    counts = times(c) | {"lm_head": 2}
    return 2 * sum(n * k * counts[name] for name, (n, k) in matrices(c).items())


def build(request):
    """The dense model from its config alone; random weights; attention and experts as transformers chooses."""
    global MODEL, LAYERS
    import transformers
    config = {k: v for k, v in request["config"].items() if k != "quantization_config"}
    need, (free, _) = 0 if n_experts(config)[0] else dense_bytes(config), torch.cuda.mem_get_info()
    if need > 0.95 * free:
        return {"error": f"the dense model takes {need / 2**30:.0f} GiB, {free / 2**30:.0f} are free"}
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    start = time.perf_counter()
    torch.set_default_dtype(BF16)
    with torch.device("cuda"):
        MODEL = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    MODEL = MODEL.to(BF16).eval()
    LAYERS = list(MODEL.base_model.layers)
    torch.cuda.synchronize()
    return {"version": transformers.__version__, "torch": torch.__version__,
            "attention": MODEL.config._attn_implementation,
            "experts": getattr(MODEL.config, "_experts_implementation", None), "seconds": time.perf_counter() - start,
            "weights_bytes": sum(p.numel() * p.element_size() for p in MODEL.parameters())}


def change(request):
    """The built model with only so many of its layers, or with another implementation of its experts."""
    if "layers" in request:
        MODEL.base_model.layers = torch.nn.ModuleList(LAYERS[:request["layers"]])
        MODEL.config.num_hidden_layers = request["layers"]
    if "experts" in request:
        MODEL.set_experts_implementation(request["experts"])
    return {"layers": len(MODEL.base_model.layers), "experts": MODEL.config._experts_implementation}


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
    torch.cuda.empty_cache()  # the next process to be measured may need the memory
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
    """Frees the model's memory."""
    global MODEL, LAYERS
    MODEL = LAYERS = None
    torch.cuda.empty_cache()
    return {}


DO = {f.__name__: f for f in (limit, data, copies, several, build, change, score, first_score, drop)}


def main():
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = DO[request["do"]](request)
        except torch.OutOfMemoryError:
            answer = {"error": "out of memory"}
        except Exception as e:  # reported to the parent, which continues with the other parts
            answer = {"error": f"{type(e).__name__}: {e}"[:400]}
        gc.collect()  # objects that an exception's frames held
        torch.cuda.empty_cache()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
