"""The part `faults` of tests/gpu/run: a run that cannot work must end with one clear line and the right exit
code, never with wrong numbers."""

import json
import shutil
import struct
import subprocess
import sys
from array import array

from gpu_programs import SHIM, Served, bits, call, compute_capability, has_module, wide_items

EXIT_UNSUPPORTED, EXIT_USAGE, EXIT_DEVICE, EXIT_MEMORY = 65, 64, 69, 71  # base/status.c


# Takes all of the GPU's memory except this many MiB, reports it, and holds it until its input ends.
HOG = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
def must(code):
    if code:
        sys.exit(f"libcuda answers {code}")
device, context, free, total = (ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(),
                                ctypes.c_size_t())
must(cu.cuInit(0))
must(cu.cuDeviceGet(ctypes.byref(device), 0))
must(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
must(cu.cuCtxSetCurrent(context))
leave, block = int(sys.argv[1]) << 20, 1 << 30
while block >= 1 << 21:
    must(cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    p = ctypes.c_uint64()
    if free.value < leave + block or cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(block)):
        block //= 2
print("ready", free.value >> 20, flush=True)
sys.stdin.read()
"""


def refusal(c, options, code, words, env=None, model="135m-bf16"):
    """One line on stderr with one of the words, nothing on stdout, and this exit code."""
    argv = [c.p.worker, "score", "--model", c.wide(model), *options]
    done = call(argv, c.left(60), c.p.env | {"CTW_LOG": "error"} | (env or {}),
                '{"id": 0, "tokens": [1, 2, 3]}\n')
    lines = done.stderr.strip().splitlines()
    ok = (done.returncode == code and len(lines) == 1 and not done.stdout.strip() and
          any(w in lines[0] for w in words))
    return ok, f"exit {done.returncode}, {len(lines)} line(s): {lines[-1][:150] if lines else ''}"


def falls_back(c, env, why):
    _, err = c.p.score(c.wide("135m-bf16"), [{"id": 0, "tokens": [1, 2]}], env=env,
                       limit_s=c.left(60))
    text = next((x for x in err.splitlines() if " cpu-" in x), "")
    return bool(text), text[-150:] or f"not the CPU ({why})"


def poisoned(c):
    """A NaN in layer 1 must end in the message that the CPU gives, which names the layer."""
    folder = c.scratch / "poisoned"
    if not folder.exists():
        shutil.copytree(c.wide("135m-bf16"), folder)
        path = folder / "model.safetensors"
        with open(path, "r+b") as f:
            n = int.from_bytes(f.read(8), "little")
            at = json.loads(f.read(n))["model.layers.1.post_attention_layernorm.weight"]
            f.seek(8 + n + at["data_offsets"][0] + 2 * 100)
            f.write(b"\xc0\x7f")
    said = {}
    for backend in ("cpu", "cuda"):
        done = call([c.p.worker, "score", "--model", folder, "--backend", backend], c.left(60),
                    c.p.env | {"CTW_LOG": "error"}, '{"id": 0, "tokens": [1, 2, 3]}\n')
        said[backend] = done.returncode, done.stderr.strip(), done.stdout
    ok = said["cpu"] == said["cuda"] and said["cuda"][0] != 0 and "layer 1" in said["cuda"][1]
    return ok, f"exit {said['cuda'][0]}: {said['cuda'][1][-150:]}"


def crowded(c, leave_mib):
    """With hardly any free memory: exit code 71 and one line, or the right bits; never wrong bits."""
    model = c.wide("8b-w4a16")
    items = wide_items(model, (65, 700, 2049), c.seed)
    want = bits(c.p.score(model, items, *c.options("auto"), limit_s=c.left(60))[0])
    hog = subprocess.Popen([sys.executable, "-c", HOG, str(leave_mib)], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
    try:
        if not hog.stdout.readline().startswith("ready"):
            return False, "cannot take the GPU's memory"
        text = "".join(json.dumps(i) + "\n" for i in items)
        done = call([c.p.worker, "score", "--model", model, *c.options("auto")], c.left(60),
                    c.p.env | {"CTW_LOG": "error"}, text)
    finally:
        hog.stdin.close()
        hog.wait(30)
    if done.returncode == 0:
        got = bits([json.loads(x) for x in done.stdout.splitlines()])
        return got == want, "it fits, " + ("the same bits" if got == want else "OTHER BITS")
    lines = done.stderr.strip().splitlines()
    return done.returncode == EXIT_MEMORY and len(lines) == 1, (
        f"exit {done.returncode}, {len(lines)} line(s): {lines[-1][:150] if lines else ''}")


# ---- a library for another GPU -------------------------------------------------------------------

FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
FATBIN_MAGIC = 0xBA55ED50


def patch_architectures(data, arch):
    """Sets the architecture of every piece of device code in a library's bytes (a bytearray); how many.
    Each entry begins with u16 kind, u16 version, u32 header bytes, u64 payload bytes; at 28 u32 architecture."""
    n, at = 0, 0
    while (at := data.find(struct.pack("<I", FATBIN_MAGIC), at)) >= 0:
        _, version, header, size = FATBIN.unpack_from(data, at)
        entry, end = at + header, at + header + size
        at += 4
        if version != 1 or header != FATBIN.size or end > len(data):
            continue
        while entry < end:
            head, payload = struct.unpack_from("<IQ", data, entry + 4)
            struct.pack_into("<I", data, entry + 28, arch)
            entry += head + payload
            n += 1
        at = end
    return n


def library_for_another(c):
    """A copy of the device library in which all code is marked as code for a newer GPU."""
    path = c.scratch / "libctworker_cuda_newer.so"
    if not path.exists():
        data = bytearray(c.p.library.read_bytes())
        if patch_architectures(data, 121) == 0:
            raise ValueError("no device code found in the library")
        path.write_bytes(data)
    return {"CTWORKER_CUDA_LIBRARY": str(path)}


# ---- a GPU that fails -----------------------------------------------------------------------

FALLING = ("--cuda-variant", "general", "--chunk-tokens", "129")  # cuBLASLt does all products: about 420


def fault_env(c, at, fresh=False):
    env = {"LD_PRELOAD": str(c.p.tests / SHIM), "CTW_FAULT_AT": str(at)}
    return env | ({"XDG_CACHE_HOME": str(c.scratch / "no-choices")} if fresh else {})


def falls_over(c, model, items, want, at, fresh):
    """`score` when product number `at` makes the GPU fail. fresh: while algorithms are chosen."""
    shutil.rmtree(c.scratch / "no-choices", ignore_errors=True)
    text = "".join(json.dumps(i) + "\n" for i in items)
    done = call([c.p.worker, "score", "--model", model, "--backend", "cuda", *FALLING], c.left(60),
                c.p.env | {"CTW_LOG": "error"} | fault_env(c, at, fresh), text)
    lines = done.stderr.strip().splitlines()
    got = bits([json.loads(x) for x in done.stdout.splitlines()])
    ok = (done.returncode == EXIT_DEVICE and len(lines) == 1 and "cuda: " in lines[0] and
          "fault_shim" not in lines[0] and not got and len(want) == len(items))
    return ok, (f"exit {done.returncode}, {len(got)} results, {len(lines)} line(s): "
                f"{lines[-1][:150] if lines else 'it was not reached?'}")


def served_falls_over(c, model, items, want, at):
    """`serve`: earlier jobs are right, the job that hits the error fails as `device`, the worker ends with 69."""
    pairs = [(i["tokens"][:1], i["tokens"][1:]) for i in items]
    alone = [tuple(array("f", json.loads(text)[0])) for _, text in want]
    n_right, reply = 0, None
    with Served(c.p, model, "--backend", "cuda", *FALLING, limit_s=c.left(60),
                env=fault_env(c, at)) as worker:
        while reply is None and n_right < 20:
            job = worker.submit(pairs)
            state = worker.wait(job, c.left(60))
            if state["state"] != "done":
                reply = state
                break
            got = worker.result(job, len(pairs))
            if [got[i][1] for i in range(len(pairs))] != alone:
                return False, f"job {n_right + 1}, before the fault, has OTHER BITS"
            n_right += 1
        if reply is None:
            return False, f"{n_right} jobs went well: the fault was not reached"
        error, health = reply.get("error", {}), worker.client.health()
        code = worker.process.wait(c.left(30))  # the worker waits some seconds for clients to read the reason
        said = [x for x in worker.text().splitlines() if x.startswith("ctworker: error: ")]
    ok = (n_right > 0 and reply["state"] == "failed" and error.get("code") == "device" and
          "cuda: " in error.get("message", "") and health["state"] == "failed" and
          health["message"] == error["message"] and code == EXIT_DEVICE and len(said) == 1)
    return ok, (f"{n_right} jobs right, then {reply['state']}, {error.get('code')}: "
                f"{error.get('message', '')[:90]}; health {health['state']}, {len(said)} error line(s), exit {code}")


def falling(c):
    """A sticky error in the first product, in the first layer, in the second, while choosing, in `serve`."""
    if not (c.p.tests / SHIM).exists():
        return c.skip("a GPU that falls over", f"no {c.p.tests / SHIM}")
    model = c.wide("8b-w4a16")
    few, many = (wide_items(model, n, c.seed) for n in ((3, 130, 700), (2049, 700, 129, 1025, 2049)))
    options = ("--backend", "cuda", *FALLING)
    want_few, want_many = (bits(c.p.score(model, items, *options, limit_s=c.left(60))[0])
                           for items in (few, many))
    for at, fresh in ((1, False), (9, False), (200, False), (30, True)):
        name = f"falls over at product {at}{', choosing' if fresh else ''}"
        c.attempt(name, falls_over, c, model, many, want_many, at, fresh)
    if has_module("msgpack"):
        c.attempt("falls over, serve", served_falls_over, c, model, few, want_few, 200)
    else:
        c.skip("falls over, serve", "no msgpack for this Python")


# ---- all -----------------------------------------------------------------------------------------

def part_faults(c):
    """No GPU, no library, wrong device, too little memory, NaN, a GPU that fails: one clear line."""
    no_gpu, no_library = {"CUDA_VISIBLE_DEVICES": ""}, {"CTWORKER_CUDA_LIBRARY": "/nowhere/lib.so"}
    cuda = ["--backend", "cuda"]
    c.attempt("no GPU, --backend cuda", refusal, c, cuda, EXIT_UNSUPPORTED, ["no GPU"], no_gpu)
    c.attempt("no GPU, auto", falls_back, c, no_gpu, "no GPU")
    c.attempt("no library, --backend cuda", refusal, c, cuda, EXIT_UNSUPPORTED, ["no GPU"], no_library)
    c.attempt("no library, auto", falls_back, c, no_library, "no library")
    if compute_capability() < 120:
        c.attempt("library for another GPU, --backend cuda",
                  lambda: refusal(c, cuda, EXIT_UNSUPPORTED, ["this build is for sm_"],
                                  library_for_another(c)))
        c.attempt("library for another GPU, auto",
                  lambda: falls_back(c, library_for_another(c), "no code for the GPU"))
    c.attempt("--device 9", refusal, c, [*cuda, "--device", "9"], EXIT_USAGE, ["device 9"])
    c.attempt("--memory-limit 1MiB", refusal, c, [*cuda, "--memory-limit", "1MiB"],
              EXIT_MEMORY, ["--memory-limit"])
    c.attempt("a NaN in layer 1", poisoned, c)
    for mib in (200, 900, 1400):
        c.attempt(f"{mib} MiB free on the GPU", crowded, c, mib)
    falling(c)
