#!/usr/bin/env python3
"""Checks of the source tree: who may include what, where each library stays, banned calls, sizes,
headers that stand alone, plain text. Ends with "N passed, N failed"; a check is one file and one
rule. Exceptions are the tables below, each with its reason."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
C_DIRS = ("base", "kernels", "ipc", "worker")
# Lines. The aims are 400 and 40; past these it fails.
MAX_FILE, MAX_TEST_FILE, MAX_FUNCTION, MAX_NUMERIC_FUNCTION = 500, 700, 70, 120
MAX_COLUMNS = {".c": 106, ".h": 106, ".cu": 106, ".py": 140, ".sh": 130}

# Room -> the rooms that its files may include beside itself; a file name allows that header alone. Every
# source file belongs to the longest room that its path starts with.
ROOMS = {
    "base": (),
    "ipc": ("base",),
    "ipc/messages": ("base", "ipc"),
    "kernels": ("base", "kernels/formats"),
    "kernels/formats": ("base", "kernels/dtype.h", "kernels/formats/*"),
    "kernels/formats/*": ("base", "kernels/dtype.h", "kernels/formats"),
    "kernels/cpu": ("base", "kernels", "kernels/formats"),
    "kernels/cuda": ("base", "kernels", "kernels/formats", "kernels/cuda/gemm", "kernels/cuda/attention",
                     "kernels/cuda/decode"),
    "kernels/cuda/gemm": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/attention": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/decode": ("base", "kernels", "kernels/formats", "kernels/formats/*", "kernels/cuda"),
    "worker/checkpoint": ("base", "kernels", "kernels/formats"),
    "worker/model": ("base", "kernels", "worker/checkpoint", "worker/model/families"),
    "worker/model/families": ("base", "kernels", "worker/checkpoint", "worker/model"),
    "worker/weights": ("base", "kernels", "worker/checkpoint", "worker/model"),
    "worker/engine": ("base", "kernels", "worker/checkpoint", "worker/model", "worker/weights"),
    "worker/service": ("base", "kernels", "ipc", "worker/model", "worker/engine"),
    "worker/cli": ("base", "kernels", "ipc", "worker/checkpoint", "worker/model", "worker/weights",
                   "worker/engine", "worker/service"),
    "worker": ("base", "ipc", "worker/cli"),
}
# Source files that a room's top folder may hold, if it may hold only these.
ONLY_FILES = {"worker": {"main.c"}}
# Header pattern -> where it may be included.
LIBRARIES = [
    (re.compile(r"cjson/"), re.compile(r"base/json[^/]*$")),
    (re.compile(r"xxh"), re.compile(r"base/digest\.c$")),
    (re.compile(r"nng/|msgpack"), re.compile(r"(ipc|examples|tests)/")),
    (re.compile(r"cuda|cublas|nccl"), re.compile(r"kernels/cuda/")),
    (re.compile(r"(imm|x86)intrin\.h"), re.compile(r"kernels/cpu/|tests/")),
    (re.compile(r"(dnnl|oneapi)"), re.compile(r"tests/bench/")),
]
# Call -> (why not, files where it may stand).
BANNED = {
    "strcpy|strcat|stpcpy|gets|strtok|alloca": ("no bound", ""),
    "sprintf|vsprintf": ("snprintf", r"tests/.*"),
    "atoi|atol|atoll|atof": ("strtol", r"tests/.*"),
    "rand|srand|random": ("not ours to repeat", ""),
    "malloc|calloc|realloc|aligned_alloc|posix_memalign": ("base/mem.h", r"base/mem\.c"),
    "free": ("base/mem.h", r"base/mem\.c"),
    "exit|_exit|abort|quick_exit": ("return a status", r"worker/main\.c"),
}
# (file, call) -> why it may.
CALLS_ALLOWED = {
    ("worker/cli/cmd_score.c", "free"): "getline's buffer",
    ("worker/service/serve.c", "_exit"): "no destructors under a thread that uses a GPU",
    ("ipc/messages.c", "strcat"): "joins the names of our own table of operations",
}
# File -> why it may be longer than MAX_FILE.
LONG_FILES = {}
# Where functions may be as long as MAX_NUMERIC_FUNCTION.
NUMERIC = re.compile(r"kernels/|tests/ops/")
# Headers that are parts of a bigger unit -> why.
PARTIAL_HEADERS = {
    r"kernels/cpu/(fast_|simd_)": "one body, compiled once a CPU variant, after its simd_*.h",
    r"kernels/cuda/": "nvcc's: a machine without CUDA has none of what they include",
}

passed = 0
failures = []


def check(ok, what):
    global passed
    if ok:
        passed += 1
    else:
        failures.append(what)


def tracked_files():
    """Files that git knows; without git, all that is not a build."""
    try:
        out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                             capture_output=True).stdout.decode()
        names = [n for n in out.split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                 if not re.match(r"(build|dist|\.git)", p.relative_to(ROOT).parts[0])]
    return sorted(n for n in names if (ROOT / n).is_file())


def code_only(text):
    """C source with comments and the content of strings blanked, lines kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(m):
        kept = "".join(c if c == "\n" else " " for c in m[0])
        return f'"{kept[1:-1]}"' if m[0][0] == '"' else kept

    return re.sub(pattern, blank, text, flags=re.DOTALL)


def room_of(name):
    """The room of a file, or None. "kernels/formats/*" stands for every folder in kernels/formats."""
    folders = name.split("/")[:-1]
    for n in range(len(folders), 0, -1):
        for room in ("/".join(folders[:n]), "/".join([*folders[:n - 1], "*"])):
            if room in ROOMS:
                return room
    return None


def check_room(name):
    room = room_of(name)
    check(room is not None, f"{name}: no room of ROOMS holds it")
    folder, file = os.path.split(name)
    check(folder not in ONLY_FILES or file in ONLY_FILES[folder], f"{name}: belongs into a room of {folder}/")


def check_includes(name, text):
    room = room_of(name)
    layer = name.split("/")[0]
    for m in re.finditer(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE):
        target = m[1]
        head = target.split("/")[0]
        if layer in C_DIRS and head in C_DIRS:
            there = room_of(target)
            same = there == room and (room != "kernels/formats/*" or
                                      os.path.dirname(target) == os.path.dirname(name))
            check(same or there in ROOMS[room] or target in ROOMS[room],
                  f"{name}: {room} must not include {target}")
        if layer in C_DIRS:
            check(head not in ("tests", "examples"), f"{name}: includes {target}")
        for library, where in LIBRARIES:
            if library.match(target):
                check(where.match(name), f"{name}: {target} stays in {where.pattern}")


def check_calls(name, code):
    ours = name.split("/")[0] in C_DIRS
    for calls, (why, where) in BANNED.items():
        if not ours and why in ("base/mem.h", "return a status", "not ours to repeat"):
            continue
        found = {m[1] for m in re.finditer(rf"(?<![\w.>])({calls})\s*\(", code)}
        found = {c for c in found if (name, c) not in CALLS_ALLOWED}
        check(not found or (where and re.fullmatch(where, name)),
              f"{name}: calls {', '.join(sorted(found))} ({why})")
    check(not re.search(r"\btypedef\s+(struct|enum|union)\b[^;(]*[;{]", code),
          f"{name}: typedef of a struct, enum or union")


def check_sizes(name, text):
    lines = text.split("\n")
    most = MAX_TEST_FILE if name.startswith("tests/") else MAX_FILE
    check(len(lines) <= most or name in LONG_FILES, f"{name}: {len(lines)} lines, at most {most}")
    limit = MAX_NUMERIC_FUNCTION if NUMERIC.match(name) else MAX_FUNCTION
    start = None
    for i, line in enumerate(lines, 1):
        if line == "{":
            start = i
        elif line == "}" and start:
            check(i - start < limit, f"{name}:{start}: a function of {i - start} lines, "
                  f"at most {limit}")
            start = None


def check_text(name, data):
    try:
        text = data.decode()
    except UnicodeDecodeError:
        check(False, f"{name}: not UTF-8")
        return
    columns = MAX_COLUMNS.get(Path(name).suffix, 10**6)
    for i, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip() or "\t" in line:
            check(False, f"{name}:{i}: tab or blank at the end of the line")
        if len(line) > columns:
            check(False, f"{name}:{i}: {len(line)} columns, at most {columns}")
        if re.search(r"(?<![\w.}])/(home|root|Users|opt|work|mnt)/\w", line):
            check(False, f"{name}:{i}: a path of one machine")
    check(not text or (text.endswith("\n") and not text.endswith("\n\n")),
          f"{name}: must end with one newline")
    if name.endswith(".py"):
        try:
            compile(text, name, "exec")
            check(True, "")
        except SyntaxError as e:
            check(False, f"{name}: {e}")


def check_header(name):
    compiler = os.environ.get("CC", "cc")
    done = subprocess.run(
        [compiler, "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Wextra",
         "-Wno-unused-function", "-Wno-unused-const-variable", "-Werror", "-I.", "-include", name,
         "-x", "c", "/dev/null"], cwd=ROOT, capture_output=True, text=True, check=False)
    return name, done.returncode == 0, done.stderr.split("\n")[0]


def main():
    names = tracked_files()
    for name in names:
        data = (ROOT / name).read_bytes()
        if name == "LICENSE" or b"\0" in data:
            continue
        check_text(name, data)
        if name.endswith((".c", ".h", ".cu", ".cuh")):
            text = data.decode(errors="replace")
            if name.split("/")[0] in C_DIRS:
                check_room(name)
            check_includes(name, text)
            check_calls(name, code_only(text))
            check_sizes(name, text)
        elif name.endswith(".sh") or name in ("tests/run", ".ci/run"):
            ok = subprocess.run(["bash", "-n", name], cwd=ROOT, check=False).returncode == 0
            check(ok, f"{name}: bash cannot read it")
    headers = [n for n in names if n.endswith(".h") and n.split("/")[0] in C_DIRS and
               not any(re.match(p, n) for p in PARTIAL_HEADERS)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, ok, message in pool.map(check_header, headers):
            check(ok, f"{name}: does not compile alone: {message}")
    for file in [*LONG_FILES, *(file for file, _ in CALLS_ALLOWED)]:
        check(file in names, f"check_tree.py: an exception for {file}, which is not there")
    for failure in failures:
        print(failure)
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
