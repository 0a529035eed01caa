"""The parts of tests/gpu that need no GPU: arguments, arithmetic of shapes, parsing of the output of programs."""

import importlib.machinery
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))
import bench_plan as plan  # noqa: E402
import bench_several  # noqa: E402
import gpu_faults  # noqa: E402
import gpu_programs  # noqa: E402
import gpu_several  # noqa: E402
import gpu_streaming  # noqa: E402
import real_worker  # noqa: E402
import tiny_checkpoint  # noqa: E402


def ask(program, *args):
    done = subprocess.run([sys.executable, GPU / program, *args], capture_output=True, text=True,
                          check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("shape", ["llama-8b", "llama-1b", "qwen3-32b", "qwen3.5-27b"])
def test_a_bench_is_planned_without_a_gpu(shape):
    code, out, _ = ask("bench", "--plan", "--shape", shape, "--parts",
                       "limit,data,ours,memory,mix,load,peerload,head,stages")
    assert code == 0
    assert all(f"{part} " in out for part in ("checkpoints", "data", "ours", "mix", "peerload", "head"))


def test_mixtures_have_products_of_every_model():
    loader = importlib.machinery.SourceFileLoader("mixtures", str(GPU / "mixtures"))
    mixtures = importlib.util.module_from_spec(importlib.util.spec_from_loader("mixtures", loader))
    loader.exec_module(mixtures)
    for name in mixtures.MODELS:
        products, attention = mixtures.limit_products(name)
        assert all(min(sizes) > 0 for sizes in products + attention) and len(products) > 4, name


@pytest.mark.parametrize("args, words", [
    (["--plan", "--shape", "gpt"], "--shape: invalid choice"),
    (["--plan", "--parts", "ours,heat"], "no part heat; there are limit"),
    (["--plan", "--formats", "w4a16,int9"], "format int9 is unknown; known: bf16"),
    (["--plan", "--formats", "fp8:file"], "fp8:file: expected FORMAT or FORMAT:checkpoint"),
    (["--plan", "--parts", "ours,load", "--one-by-one"], "--one-by-one needs --parts ours"),
    (["--plan", "--windows", "0"], "--windows must be more than 0"),
    (["--parts", "head"], "--build DIR or --bundle DIR is missing"),
])
def test_wrong_arguments_of_a_bench(args, words):
    code, _, err = ask("bench", *args)
    assert code == 2 and words in err


@pytest.mark.parametrize("args, words", [
    ([], "--before TREE and --build DIR (or --bundle DIR) are needed"),
    (["--before", "t", "--build", "b", "--parts", "bits,heat"], "no part heat; there are bits, rates, load"),
    (["--before", "t", "--build", "b", "--models", "gpt:w4a16"], "gpt:w4a16: expected SHAPE:FORMAT"),
    (["--before", "t", "--build", "b", "--reps", "0"], "--reps must be more than 0"),
])
def test_wrong_arguments_of_a_comparison_with_a_version(args, words):
    code, _, err = ask("before_after", *args)
    assert code == 2 and words in err


def test_the_parts_of_run():
    code, out, _ = ask("run", "--list")
    assert code == 0 and "faults " in out
    code, _, err = ask("run", "--only", "fault")
    assert code == 2 and "no part fault" in err


def predicted(**more):
    args = {"shape": "llama-8b", "layers": None, "parts": ["ours"], "formats": ["w4a16"], "windows": 141,
            "reps": 1, "loop": 2.5, "limit": 345}
    return dict(plan.predict(SimpleNamespace(**(args | more))))


def test_predictions_follow_the_work():
    one, two = predicted(), predicted(windows=282)
    window_s = 2048 * plan.token_flops(plan.config_of("llama-8b")) / plan.GEMM_FLOPS
    assert set(one) == {"checkpoints", "ours"}
    assert two["ours"] - one["ours"] == pytest.approx(3 * 141 * window_s)  # N windows, then twice N
    assert "memory" in predicted(parts=["memory"]) and "memory" not in predicted(parts=["ours", "memory"])
    # Too large for transformers, so only our own part is left.
    assert predicted(shape="llama-70b", parts=["single"], formats=["nvfp4"])["torch"] == plan.TORCH_S


@pytest.mark.parametrize("shape, fmt", [*(("llama-1b", f) for f in ("bf16", "w4a16", "nvfp4", "w3a16", "w4a16_asym", "gptq", "awq",
                                                                    "exl3", "q4_k_m")),
                                        ("phi-4", "w4a16"), ("gemma3-270m", "w4a16"), ("gemma3-270m", "nvfp4"),
                                        ("like-qwen3.5-300m", "w4a16"), ("like-qwen3.5-300m", "fp8_block"),
                                        ("nemotron-3-nano-30b-a3b", "fp8")])
def test_stored_bytes_are_what_is_written(tmp_path, shape, fmt):
    folder = gpu_programs.make_checkpoint(tmp_path / "m", shape, fmt, "--layers", "1", "--vocab", "64")
    config = json.loads((folder / "config.json").read_text())
    header = 1 << 13 if fmt == "q4_k_m" else 0  # of a GGUF file, which counts as a whole
    assert 0 <= gpu_programs.weight_bytes(folder) - plan.stored_bytes(config, fmt) <= header


def test_blocks_that_repeat(tmp_path):
    """As many bytes, the same in every run, and hardly a value in the same place."""
    parts = []
    for name, more in (("a", ["--repeat"]), ("b", ["--repeat"]), ("c", [])):
        folder = gpu_programs.make_checkpoint(tmp_path / name, "llama-1b", "w4a16", "--layers", "1", "--vocab", "64", *more)
        parts.append((folder / "model.safetensors").read_bytes())
    assert parts[0] == parts[1] and len(parts[0]) == len(parts[2])
    codes = slice(1 << 20, 2 << 20)
    assert sum(x == y for x, y in zip(parts[0][codes], parts[2][codes])) < 1 << 14


def test_a_checkpoint_serves_both_kinds_of_activations():
    assert [plan.stored_format(f) for f in ("int8", "int8:checkpoint")] == ["int8", "int8"]
    one, two = (predicted(formats=f)["checkpoints"] for f in (["int8"], ["int8", "int8:checkpoint"]))
    assert one == two


def test_parameters_of_published_shapes():
    """Within 2 % of what their makers name."""
    for shape, billions in (("gemma3-270m", 0.268), ("gemma3-27b", 27.0), ("phi-4", 14.66), ("mistral-large-123b", 122.6),
                            ("qwen3.5-27b", 26.9), ("qwen3.5-35b-a3b", 34.7), ("nemotron-3-nano-30b-a3b", 31.6),
                            ("qwen3-next-80b-a3b", 79.7), ("deepseek-v4-flash", 284.3), ("minimax-m3", 426), ("kimi-linear-48b-a3b", 49.1)):
        assert plan.stored_bytes(plan.config_of(shape), "bf16") / 2e9 == pytest.approx(billions, rel=0.02), shape


def test_the_limit_of_a_shape():
    c = plan.config_of("llama-8b")
    weights = 32 * (6144 * 4096 + 4096 * 4096 + 28672 * 4096 + 4096 * 14336) + 128256 * 4096
    even = {name: 500.0 for name in plan.matrices(c)}
    assert plan.tokens_per_s(c, even, 0) == pytest.approx(500e12 / (2 * weights))
    halved = plan.tokens_per_s(c, even, 0, {name: 0.5 for name in even})
    assert halved == pytest.approx(plan.tokens_per_s(c, even, 0) / 2)
    attention = 32 * plan.attention_flops(c, 2048) / 2048
    assert plan.token_flops(c) == pytest.approx(2 * weights + attention)


def test_the_limit_of_recurrent_shapes():
    """All products that a token passes, and the attention of some layers; nothing of the recurrences."""
    for shape, billions in (("qwen3.5-27b", 25.6), ("qwen3.5-35b-a3b", 2.9), ("nemotron-3-nano-30b-a3b", 3.2),
                            ("deepseek-v4-flash", 12.97), ("kimi-linear-48b-a3b", 3.09), ("glm-5-next", 16.57)):
        c = plan.config_of(shape)
        even = {name: 500.0 for name in plan.matrices(c)}
        assert plan.tokens_per_s(c, even, 0) == pytest.approx(500e12 / (2e9 * billions), rel=0.02), shape
    c = plan.config_of("qwen3.5-27b")
    assert plan.attention_layers(c) == 16 and plan.pairs_share(c) == 0.25
    assert plan.attention_layers(plan.config_of("nemotron-3-nano-30b-a3b", 16)) == 2


@pytest.mark.parametrize("shape, fmt, layers", [
    ("qwen3.5-27b", "w4a16", 4), ("qwen3.5-35b-a3b", "nvfp4", 4), ("nemotron-3-nano-30b-a3b", "fp8", 6),
    ("qwen3-next-80b-a3b", "fp8_block", 4), ("minimax-m3", "nvfp4", 2), ("deepseek-v4-flash", "deepseek", 2),
    ("kimi-linear-48b-a3b", "w4a16", 4), ("glm-5-next", "nvfp4", 4), ("like-qwen4-exp", "w4a16", 4)])
def test_recurrent_shapes_open(tmp_path, shape, fmt, layers):
    folder = gpu_programs.make_checkpoint(tmp_path / "m", shape, fmt, "--layers", str(layers), "--holes")
    for options in (["--backend", "cpu"], ["--devices", "2", "--device-memory", "80GiB"]):
        done = subprocess.run([real_worker.WORKER, "inspect", *options, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"layers        {layers}," in done.stdout
    assert re.search(r"weights: resident, .* on each device\n", done.stdout), done.stdout
    assert re.search(r"weights: about \d+ tokens/s on all devices together", done.stdout), done.stdout


def test_windows_have_fewer_pairs():
    assert plan.pairs_share(plan.config_of("llama-8b")) == 1
    c = plan.config_of("gemma3-27b", 6)
    windowed = sum(min(i + 1, 1024) for i in range(2048)) / sum(i + 1 for i in range(2048))
    assert plan.pairs_share(c) == pytest.approx((1 + 5 * windowed) / 6)


def test_rates_of_heads_are_read():
    source = (GPU / "gemm_rates.h").read_text()  # in the current form of the output
    line = "".join(re.findall(r'"(.*)"', re.search(r'"%5lld x[^;]*?cuBLASLt\\n"', source)[0]))
    line = line.replace("%5lld", "%5d").replace("lld", "d").replace("\\n", "\n")
    text = "NVIDIA H200, 132 multiprocessors\n" + line % (8192, 6144, 4096, "cuBLASLt", 700, 690, 597, 1)
    for n, k, rate in ((128256, 4096, 660), (262144, 2048, 640)):
        for what, r in (("cuBLASLt", 650), ("bf16 store16", 655), ("bf16 head", rate)):
            text += line % (2048, n, k, what, r + 10, r, 2e-6 * 2048 * n * k / r, r / 650)
    assert plan.head_rates(text + "all ok\n") == [(128256, 4096, 660.0, 650.0), (262144, 2048, 640.0, 650.0)]


def fatbin(*architectures):
    entries = b""
    for i, arch in enumerate(architectures):
        head = struct.pack("<HHIQ", 1 + i % 2, 257, 64, 24) + bytes(12) + struct.pack("<I", arch) + bytes(32)
        entries += head + bytes([i]) * 24
    return gpu_faults.FATBIN.pack(gpu_faults.FATBIN_MAGIC, 1, 16, len(entries)) + entries


def test_a_library_gets_another_architecture():
    stray = struct.pack("<I", gpu_faults.FATBIN_MAGIC) + bytes(28)  # the number alone means that there is no code
    data = bytearray(b"ELF" + fatbin(80, 90) + stray + fatbin(90) + b"end")
    assert gpu_faults.patch_architectures(data, 121) == 3
    assert data == b"ELF" + fatbin(121, 121) + stray + fatbin(121) + b"end"


def test_hazards_of_cublaslt_are_not_ours():
    theirs = "Error: Race reported between Read access at nvjet_sm90_tss_64x16_h_badd_TNT+0xb00"
    ours = "Error: Race reported between Read access at void product_kernel<0, 1>+0x10"
    invalid = "Invalid __global__ read of size 4 bytes"
    said = ["COMPUTE-SANITIZER", theirs, "and Write access at nvjet_sm90_tss_64x16_h_badd_TNT+0x28f0"]
    assert gpu_programs.hazards(said) == ([], 1)
    assert gpu_programs.hazards([*said, theirs, ours, invalid]) == ([ours, invalid], 2)
    kept = "RACECHECK SUMMARY: 33 hazards were not printed. Use --print-limit option to adjust"
    assert gpu_programs.hazards([*said, kept]) == ([kept], 1)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_are_in_the_middle(bits):
    table, mask, middle = plan.mc.zero_point_table(bits), (1 << bits) - 1, 1 << (bits - 1)
    codes = {int(word) >> at & mask for word in table for at in range(0, 16, bits)}
    assert codes == {middle - 1, middle, middle + 1}


@pytest.fixture
def on_fake_gpus(tmp_path, monkeypatch):
    """What parts of tests/gpu/run get, on the two fake GPUs of tests/service, and a tiny checkpoint."""
    build = Path(os.environ.get("CTW_FAKE_WORKER", GPU.parents[1] / "build/ci/tests/fake_worker")).parents[1]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ctworker").symlink_to(build / "worker/ctworker")
    (tmp_path / "bin/libctworker_cuda.so").symlink_to(build / "tests/libctw_fake_device.so")
    monkeypatch.setenv("CTWORKER_CUDA_LIBRARY", str(tmp_path / "bin/libctworker_cuda.so"))
    for module in (gpu_several, gpu_streaming):
        monkeypatch.setattr(module, "LENGTHS", (2, 9, 40, 17, 33, 60))
    model = tmp_path / "model"
    tiny_checkpoint.write(model, "llama", "w4a16_g32", 1, layers=9)
    return SimpleNamespace(p=gpu_programs.Programs(bundle=tmp_path), model=model, seed=5, n_gpus=2, left=lambda most: most,
                           options=lambda variant: ["--backend", "cuda", "--threads", "1", "--cuda-variant", variant])


def test_parts_of_several_gpus(on_fake_gpus, monkeypatch):
    c = on_fake_gpus
    ok, detail = gpu_several.same_bits(c, c.model, "hopper")
    assert ok, detail
    # As with CUDA, all fail. At other operations than on a GPU: there are fewer.
    monkeypatch.setattr(gpu_several, "fault_env", lambda c, at: {"CTW_FAKE_GPU_FAIL_OP": f"{at // 20},{at // 20}"})
    ok, detail = gpu_several.falls_over(c, c.model)
    assert ok, detail
    for placement, disturb in (("resident", True), ("sharded", False), ("streamed", False)):
        ok, detail = gpu_several.served(c, c.model, "hopper", placement, disturb)
        assert ok, detail


def test_bytes_from_neighbours_are_counted(on_fake_gpus):
    """The bench reads from the log what devices read from host memory, and what they copied from each other."""
    c, moved = on_fake_gpus, {}
    items = [{"id": i, "tokens": list(range(1, 30))} for i in range(40)]
    for devices in ("0", "0,1"):
        _, log = c.p.score(c.model, items, "--backend", "cuda", "--threads", "1", "--devices", devices, "--pass-tokens", 60,
                           *gpu_several.hosted(c.model), env={"CTW_LOG": "debug"})
        moved[devices] = bench_several.bytes_moved(log)
    assert moved["0"]["host"] > 0 and moved["0"]["neighbours"] == 0, moved
    assert moved["0,1"]["neighbours"] > 0, moved


def test_other_bits_are_seen(on_fake_gpus, monkeypatch):
    """With several GPUs' results changed, both checks fail."""
    c = on_fake_gpus
    score, result = c.p.score, gpu_programs.Served.result

    def changed(model, items, *options, **more):
        results, log = score(model, items, *options, **more)
        if "sharded" in options:
            results[0]["sum"] += 1e-9
        return results, log
    monkeypatch.setattr(c.p, "score", changed)
    assert not gpu_several.same_bits(c, c.model, "hopper")[0]
    monkeypatch.setattr(gpu_programs.Served, "result", lambda self, job, n, limit_s: {
        i: (got[0] + 1e-9 * ("share the work" in self.text()), *got[1:]) for i, got in result(self, job, n, limit_s).items()})
    assert not gpu_several.served(c, c.model, "hopper", "resident", False)[0]


def test_gpus_that_are_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert gpu_programs.n_gpus() == 2
