#!/usr/bin/env python3
"""The stages of tests/run, which sets up the machine and then calls this file.

    tests/run [--quick] [--only STAGE] ... [--all-architectures] [--at-once N] [--list]

Stages run two at a time, because many stages leave a processor idle now and then, and three while a processor
is idle for long. Prints one line per stage when the stage ends, and "N passed, N failed" (checks, not stages) last.
The output of a stage is in build/test-logs/STAGE.log; if the stage fails, the end of its output is printed as well.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
WORKER = BUILD / "ci/worker/ctworker"
DATA = BUILD / "test-data"
TINY = DATA / "tiny"
JOBS = str(os.cpu_count() or 1)
IDLE_S = 15  # for so long a processor must be idle for one more stage
PY = sys.executable
PYTEST = [PY, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
# These tests mostly wait, for processes and for timeouts. The tests of a class share a pytest worker.
E2E = [*PYTEST, "-n", "4", "--dist", "loadscope", "tests/e2e"]
# Unit tests whose subject is a time of the server: any process of a busy machine may stand still for seconds.
TIMED = "^test_(server|bounds)$"
# A unit test opens hundreds of models one after the other: what one gives back, glibc keeps for the next, and the kernel has no
# pages to clear, which took more time than the rest. (The sanitizers have allocators of their own.)
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": 1 << 30, "MALLOC_TRIM_THRESHOLD_": 1 << 30, "MALLOC_TOP_PAD_": 16 << 20}
# What the sanitizers' stages leave out of tests/e2e (a file, or a class of one), and why. Other stages run all of it.
NOT_OURS = {
    "test_contract.py": "the build",
    "test_cuda_decision.py": "the build",
    "test_gpu_tools.py": "Python programs",
}
NO_THREADS = {
    "test_commands.py": "commands, which have one thread",
    "test_device.py::Scores": "bits, by the same threads as the file's other classes",
    "test_device.py::Loading::test_layers_of_many_stages": "tensors larger than a stage; DEEP models have more uploads than stages",
    "test_device_limit.py": "plans and amounts of memory; test_streaming.py and unit/test_units.c have the threads",
    "test_edges.py": "arguments and closed streams of commands, which have one thread",
    "test_example.py": "the example client, which has one thread",
    "test_gguf.py": "files of one tensor after the other, by the same threads as other checkpoints",
    "test_files.py": "sums and bytes of files; unit/test_identity.c, unit/test_map_guard.c and test_streaming.py have the threads",
    "test_layer_scalar.py": "numbers",
    "test_planning.py": "plans, which have one thread",
    "test_protocol.py::Info::test_largest_part_and_reply": "sizes of messages",
    "test_several_devices.py::SeveralDevices::test_memory_of_shards": "amounts of memory; test_states has the threads",
    "test_several_devices.py::SeveralDevices::test_quantised_activations": "bits, by the threads of test_score",
    "test_several_devices.py::SeveralDevices::test_uuids": "names of devices; test_score has the threads",
    "test_store.py::Real::test_each_source_has_results_of_its_own": "keys of results; unit/test_stored_jobs.c has the threads",
    "test_streaming.py::Scores": "bits with every limit; the file's other classes and unit/test_streamed.c have the threads",
    "test_sharing.py::Scores": "bits and amounts of memory, by the same threads as the file's jobs",
}


@dataclass
class Step:
    """One command of a stage. `kind` says how to count its checks: "one" (the exit status is the
    only check), "ctest", "pytest", or "lines" (the output ends with "N passed, N failed")."""

    argv: list
    kind: str = "one"
    env: dict = field(default_factory=dict)


@dataclass
class Stage:
    name: str
    about: str
    steps: list
    needs: tuple = ("build",)  # stages that must end first
    quick: bool = True  # part of --quick
    limit_s: int = 900
    note: str = ""


def data_folder(variable, name):
    """The folder that an environment variable names, or ../shared/data/NAME; None if neither exists."""
    folder = Path(os.environ.get(variable, ROOT / "../shared/data" / name))
    if variable in os.environ and not folder.is_dir():
        sys.exit(f"{variable}={folder}: no such folder; unset the variable or name a folder")
    return folder.resolve() if folder.is_dir() else None


def generator(build):
    """Options of cmake: Ninja if it is installed, unless the folder was made with another generator. A whole build by Make takes
    half a minute of processor time more."""
    cache = BUILD / build / "CMakeCache.txt"
    known = re.search("^CMAKE_GENERATOR:INTERNAL=(.*)$", cache.read_text(), re.MULTILINE) if cache.exists() else None
    return ["-G", "Ninja"] if shutil.which("ninja") and (known is None or known[1] == "Ninja") else []


def build_steps(preset, targets=("all", "invariance")):
    configure = Step(["cmake", "--preset", preset, *generator(preset), "-DCTW_CUDA=OFF"])  # the stage cuda builds the GPU backend
    return [configure, Step(["cmake", "--build", "--preset", preset, "-j", JOBS, "--target", *targets])]


def sanitizer_stage(name, about, ctest_options, left_out, scored, environment, targets=("all", "invariance")):
    """The unit tests, the protocol tests and a few scores in a build with a sanitizer. `left_out`: of tests/e2e. `scored`: parts
    of tiny checkpoints' names."""
    worker, fake = BUILD / name / "worker/ctworker", BUILD / name / "tests/fake_worker"
    env = environment | {"CTW_FAKE_WORKER": str(fake), "CTW_TEST_PATIENCE": "3"}
    return Stage(name, about, [
        *build_steps(name, targets),
        Step(["ctest", "--preset", name, "-j", JOBS, *ctest_options], "ctest", env),
        Step([*E2E, *(f"--deselect=tests/e2e/{x}" if "::" in x else f"--ignore=tests/e2e/{x}" for x in left_out)], "pytest", env),
        *(Step([PY, "tests/golden/check_scores.py", "--tiny", TINY, "--only", checkpoint, "--one-config", "--short",
                "--threads", JOBS, "--worker", worker], "lines", env) for checkpoint in scored),
        Step([BUILD / name / "tests/invariance", TINY / "mistral_swa-w8a16_channel", "auto", "1",
              "1"], env=env),
    ], needs=("tiny",), quick=False, limit_s=1800)


def golden_folders():
    return [p for p in (data_folder("CTWORKER_GOLDEN_FAMILIES", "golden_families"),
                        data_folder("CTWORKER_GOLDEN_2026", "golden_2026")) if p]


def golden_stage():
    golden = data_folder("CTWORKER_GOLDEN", "golden")
    families = data_folder("CTWORKER_GOLDEN_FAMILIES", "golden_families")
    newest = data_folder("CTWORKER_GOLDEN_2026", "golden_2026")
    configs = data_folder("CTWORKER_CONFIGS", "configs")
    cases = data_folder("CTWORKER_CASES", "cases")
    published = [Step([PY, "tests/golden/check_configs.py", WORKER], "lines",
                      {"CTWORKER_CONFIGS": configs})] if configs else []
    published += [Step([PY, "tests/golden/check_cases.py", WORKER, cases], "lines")] if cases else []
    rotated = Step([PY, "tests/golden/check_rotations.py"], "lines")
    if golden is None or families is None or newest is None:
        written = Step([PY, "tests/golden/check_activations.py"], "lines")
        return Stage("golden", "golden checkpoints, if there are any", [*published, written, rotated],
                     note="no golden checkpoints (CTWORKER_GOLDEN, .._GOLDEN_FAMILIES, .._GOLDEN_2026): only those that the tests write")
    return Stage("golden", "golden checkpoints: hashes, scores, refusals; published configurations", [
        *published,
        Step([PY, "tests/golden/check_hashes.py", WORKER], "lines", {"CTWORKER_GOLDEN": f"{golden}:{families}:{newest}"}),
        Step([PY, "tests/golden/check_scores.py", "--golden", golden, families, newest], "lines"),
        Step([PY, "tests/golden/check_activations.py", "--golden", golden], "lines"),
        rotated,
         Step([PY, "tests/golden/check_reference.py", golden, families, newest], "lines"),
         Step([PY, "tests/invariance/check_sharing.py", golden, families, newest], "lines")])


def cuda_stage(all_architectures):
    """Compiles the CUDA backend; tests/gpu/run tests it on a machine with a GPU."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True,
                          check=False).stdout if nvcc else ""
    version = re.search(r"release (\d+)\.(\d+)", text)
    about = "the CUDA backend and its tests compile"
    if not version or (int(version[1]), int(version[2])) < (12, 8):
        return Stage("cuda", about, [], quick=False, note="skipped: found no nvcc 12.8 or newer")
    build = BUILD / "cuda-compiled"  # not build/cuda, which tests/gpu/run measures
    # Other stages optimise and test the host's code. No stage runs the GPU's code: nvcc since 12.9 can leave its optimisation
    # out, which takes most of the time. Files without Hopper's own code are the same for all architectures: the oldest is enough.
    fast = " -Ofc=max" if (int(version[1]), int(version[2])) >= (12, 9) else ""
    flags = [f"-DCMAKE_{x}_FLAGS_RELWITHDEBINFO={f}" for x, f in (("C", "-O0 -DNDEBUG"), ("CUDA", f"-O1 -DNDEBUG{fast}"))]
    chosen, told = ["-DCTW_CUDA_ARCHITECTURES=90a", "-DCTW_CUDA_GENERAL_ARCHITECTURES=80", "-DCTW_TEST_ARCHITECTURES=90a"], "sm_80, sm_90a"
    if all_architectures:
        chosen, told = [x.replace("-D", "-U").split("=")[0] for x in chosen], "all architectures"
    return Stage("cuda", about, [
        Step(["cmake", "-S", ROOT, "-B", build, "-DCTW_CUDA=ON", "-DCTW_TESTS=ON", "-DCTW_WERROR=ON",
              f"-DCMAKE_CUDA_COMPILER={nvcc}", *chosen, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *flags]),
        Step(["cmake", "--build", build, "-j", JOBS, "--target", "ctworker_cuda", "gpu_tests"]),
        Step([*PYTEST, "tests/gpu/test_drivers.py", "tests/gpu/test_build.py"], "pytest",
             {"CTW_CUDA_BUILD": build}),
    ], quick=False, limit_s=1800, note=f"nvcc {version[1]}.{version[2]}, {told}")


def stages(all_architectures=False):
    """All stages in starting order: first the stages that others need, then the long stages."""
    return [
        Stage("lint", "includes, libraries, banned calls, sizes, headers",
              [Step([PY, "tests/lint/check_tree.py"], "lines")], needs=()),
        Stage("types", "the Python package and its examples: mypy --strict and ruff", [
            Step([PY, "-m", "mypy"]), Step([PY, "-m", "ruff", "check", "--no-cache", "harness_adapter"]),
            Step([PY, "tests/tools/python_docs.py", "--snippets", BUILD / "snippets"], env={"PYTHONPATH": ROOT / "harness_adapter/src"}),
            Step([PY, "-m", "mypy", BUILD / "snippets"])], needs=()),
        Stage("build", "warnings are errors; installs", [
            *build_steps("ci"),
            Step(["cmake", "--install", "build/ci", "--prefix", BUILD / "ci-install"]),
            Step([BUILD / "ci-install/bin/ctworker", "--version"])], needs=(), limit_s=1800),
        Stage("unit", "unit tests, kernels against definitions, queue, short fuzzing",
              [Step(["ctest", "--preset", "ci", "-j", JOBS, "-E", TIMED], "ctest", KEPT_MEMORY),
               Step(["ctest", "--preset", "ci", "-j", JOBS, "-R", TIMED, "--repeat", "until-pass:3"], "ctest",
                    {"CTW_TEST_PATIENCE": "2"})]),
        Stage("tiny", "scores of every family and format against the float64 model", [
            Step([PY, "tests/tools/tiny_checkpoint.py", "--all", TINY]),
            Step([PY, "tests/golden/check_scores.py", "--tiny", TINY], "lines")]),
        golden_stage(),
        cuda_stage(all_architectures),
        # Not the operations: one by one they take minutes, and the scores of this stage run all of them. What test_exchange and
        # test_compare_layers add to the threads of test_compare are numbers, test_store_faults to those of test_store files.
        sanitizer_stage("tsan", "thread sanitizer", ["-LE", "fuzz|ops", "-E", "test_(exchange|compare_layers|store_faults)$"],
                        NOT_OURS | NO_THREADS, ("qwen3-nvfp4", "qwen3_moe-bf16", "qwen3_next-w4a16"), {
            "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan_suppressions.txt"},
            targets=("ctworker", "client", "fake_worker", "ctw_fake_device", "unit_tests", "service_tests", "invariance")),
        sanitizer_stage("asan", "address and undefined-behaviour sanitizers", [], NOT_OURS, ("qwen3-", "qwen3_moe", "qwen3_next"), {
            "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1", "UBSAN_OPTIONS":
            "print_stacktrace=1:halt_on_error=1"}),
        Stage("wheel", "the wheels in an empty environment, outside the source tree, and in a bare root", [
            Step(["bash", "tests/python/check_wheel.sh"], "lines",
                 {"PYTHON": PY, "FAKE_DEVICE": BUILD / "ci/tests/libctw_fake_device.so"})], quick=False, limit_s=1800),
        Stage("adapter", "the Python package against real lm-eval", [
            Step([*PYTEST, "-n", "3", "--dist", "worksteal", "tests/python"], "pytest",
                 {"CTWORKER_BIN": WORKER})]),
        Stage("invariance", "equal bits regardless of batch, order, chunk, pass and thread count", [
            Step([PY, "tests/invariance/check_invariance.py", "--tiny", TINY, "--golden", *golden_folders(),
                  "--scratch", DATA, "--program", BUILD / "ci/tests/invariance"], "lines"),
            # The stage golden does the same with golden checkpoints, if there are any.
            *([] if golden_folders() else [Step([PY, "tests/invariance/check_sharing.py", TINY], "lines")])],
              needs=("tiny",), quick=False),
        Stage("smollm2", "a real model through lm_eval, unquantised and quantised", [
            Step([PY, "tests/e2e/check_smollm2.py", "--scratch", DATA / "smollm2"], "lines", {
                "PYTHONPATH": ROOT / "harness_adapter/src", "CTWORKER_BIN": WORKER})],
              quick=False),
        Stage("service", "protocol, faults, fake GPU, example client", [
            Step(E2E, "pytest", {"CTW_TEST_PATIENCE": "2"})]),
        Stage("variants", "correct scores with every CPU variant of this machine", [
            Step([PY, "tests/golden/check_scores.py", "--tiny", TINY, "--variants", "--only", f],
                 "lines") for f in ("llama-bf16", "qwen2-w4a16", "qwen3-nvfp4", "mistral_swa-w8a16",
                                    "llama_bias-w4a16", "llama-fp16")],
              needs=("tiny",), quick=False),
    ]


def checks_of(step, text, code):
    """(passed, failed) of one finished step."""
    found = None
    if step.kind == "ctest":
        found = re.search(r"tests passed, (\d+) tests? failed out of (\d+)", text)
        found = found and (int(found[2]) - int(found[1]), int(found[1]))
    elif step.kind == "pytest":
        tail = text[-2000:]
        n = {w: sum(int(x) for x in re.findall(rf"(\d+) {w}", tail))
             for w in ("passed", "failed", "error")}
        found = (n["passed"], n["failed"] + n["error"]) if any(n.values()) else None
    elif step.kind == "lines":
        found = re.findall(r"^(\d+) passed, (\d+) failed$", text, re.MULTILINE)
        found = found and (int(found[-1][0]), int(found[-1][1]))
    if not found:
        return (0, 1) if code or step.kind != "one" else (1, 0)
    passed, failed = found
    return passed, max(failed, 1) if code else failed


children = {}  # pid -> process, of the running steps
stopping = False


def kill(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wait_for(child, deadline):
    """(exit status, processor time in seconds, with that of its children that have ended). Raises TimeoutExpired."""
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(child.args, deadline)
        time.sleep(0.05)


def run_step(step, log, deadline):
    """(exit status, processor time); 124, 0 if the step ran past the deadline (the step and its children are then killed)."""
    env = os.environ | {"PYTHONUNBUFFERED": "1", "CTWORKER": str(WORKER)}
    env |= {k: str(v) for k, v in step.env.items()}
    log.write(f"$ {' '.join(map(str, step.argv))}\n".encode())
    log.flush()
    child = subprocess.Popen([str(a) for a in step.argv], cwd=ROOT, env=env, stdout=log,
                             stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             start_new_session=True)
    children[child.pid] = child
    if stopping:  # kill() has already run for the other children
        kill(child)
    try:
        return wait_for(child, deadline)
    except subprocess.TimeoutExpired:
        log.write(b"\ntests/run: the stage ran past its time limit\n")
        return 124, 0
    finally:
        kill(child)  # no process outlives its stage
        child.wait()
        del children[child.pid]


def run_stage(stage):
    start, passed, failed, text, cpu_s = time.monotonic(), 0, 0, "", 0
    path = LOGS / f"{stage.name}.log"
    with open(path, "wb") as log:
        for step in stage.steps:
            at = log.tell()
            code, used_s = run_step(step, log, start + stage.limit_s)
            cpu_s += used_s
            log.write(f"[{used_s:.1f} s of processor time]\n".encode())
            log.seek(0, os.SEEK_END)
            with open(path, "rb") as done:
                done.seek(at)
                text = done.read().decode(errors="replace")
            ok, bad = checks_of(step, text, code)
            passed, failed = passed + ok, failed + bad
            if bad:
                text += f"\nexit status {code}"
                break
    word = "FAIL" if failed else "ok"
    note = f"  ({stage.note})" if stage.note else ""
    told = [f"{word:4} {stage.name:12} {passed:5} checks {time.monotonic() - start:7.1f} s "
            f"({cpu_s:.0f} s of processor time){note}"]
    if failed:
        lines = text.splitlines()
        why = [x for x in lines if re.match(r"\s*(FAIL|E  |.*Test +#.*\*\*\*)", x)][:40]
        told += [f"     | {x[:400]}" for x in (why or lines[:-15][-45:]) + lines[-15:]]
    print("\n".join(told), flush=True)
    return passed, failed


class Idle:
    """How many processors were idle, on average: since() counts from the call before."""

    def __init__(self):
        self.at, self.idle_s = time.monotonic(), self.total()

    @staticmethod
    def total():
        idle, waiting = Path("/proc/stat").read_text().split()[4:6]
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")

    def since(self):
        before = self.at, self.idle_s
        self.at, self.idle_s = time.monotonic(), self.total()
        return (self.idle_s - before[1]) / max(self.at - before[0], 0.1)


def run_stages(chosen, at_once):
    """(passed, failed) of all stages. Assumes that needed stages that were not chosen have run before. One stage more than
    `at_once` runs if most of a processor was idle for a while: the other stages then wait for a network or for timeouts."""
    waiting, running, passed, failed, idle, more = list(chosen), {}, 0, 0, Idle(), 0
    with ThreadPoolExecutor(at_once + 1) as pool:
        try:
            while waiting or running:
                pending = {s.name for s in [*waiting, *running.values()]}
                ready = [s for s in waiting if not pending.intersection(s.needs)]
                for stage in ready[:max(0, at_once + more - len(running))]:
                    waiting.remove(stage)
                    running[pool.submit(run_stage, stage)] = stage
                ended = wait(running, timeout=IDLE_S if waiting else None, return_when=FIRST_COMPLETED).done
                more = 1 if idle.since() > 0.6 and not ended and at_once > 1 else 0
                for future in ended:
                    stage, (ok, bad) = running.pop(future), future.result()
                    passed, failed = passed + ok, failed + bad
                    if bad and stage.name == "build":
                        print("the build failed: the other stages cannot run")
                        waiting.clear()
        except BaseException:
            global stopping
            stopping = True
            for child in list(children.values()):
                kill(child)
            raise
    return passed, failed


def main():
    parser = argparse.ArgumentParser(prog="tests/run", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="leave out the slow stages")
    parser.add_argument("--all-architectures", action="store_true",
                        help="compile the CUDA backend for every GPU architecture, before a release")
    parser.add_argument("--only", action="append", metavar="STAGE", help="run only this stage; may be repeated",
                        choices=[s.name for s in stages()])
    parser.add_argument("--at-once", type=int, default=2, choices=range(1, 9), metavar="N",
                        help="number of stages that run at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="list the stages and exit")
    args = parser.parse_args()
    every = stages(args.all_architectures)
    if args.list:
        for s in every:
            print(f"{s.name:12} {s.about}{'' if s.quick else '  [not with --quick]'}")
        return 0
    chosen = [s for s in every if (s.name in args.only if args.only else s.quick or not args.quick)]
    if not WORKER.exists() and all(s.name != "build" for s in chosen) and any("build" in s.needs for s in chosen):
        parser.error(f"there is no {WORKER.relative_to(ROOT)}: add --only build")
    LOGS.mkdir(parents=True, exist_ok=True)
    # A shell starts a background job with SIGINT ignored, which the tests' processes would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    passed, failed = run_stages(chosen, args.at_once)
    print(f"total {time.monotonic() - start:.0f} s; logs in {LOGS.relative_to(ROOT)}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
