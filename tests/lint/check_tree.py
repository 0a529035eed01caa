#!/usr/bin/env python3
"""Checks the source tree: includes between rooms, circles of calls within a room, imports between rooms of the
Python package, the rooms of each library, names that stand twice, banned calls, sizes, headers that compile alone,
plain text, docs/FAMILIES.md. Prints "N passed, N failed" last; a check is one rule on one file. The tables below list the exceptions,
each with its reason."""

import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import python_rooms

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/tools"))
import family_docs  # pylint: disable=wrong-import-position

C_DIRS = ("base", "kernels", "ipc", "worker")
# Limits in lines; the aims are 400 per file and 40 per function.
MAX_FILE, MAX_TEST_FILE, MAX_FUNCTION, MAX_NUMERIC_FUNCTION = 500, 700, 70, 120
MAX_ROOM = 25  # source files
MAX_COLUMNS = {".c": 106, ".h": 106, ".cu": 106, ".py": 140, ".sh": 130}

# Room -> the rooms that its files may include in addition to the room itself; a header's name allows only
# that header. A source file belongs to the room that is its folder.
ROOMS = {
    "base": (),
    "ipc": ("base",),
    "ipc/messages": ("base", "ipc"),
    "kernels": ("base", "kernels/formats"),
    "kernels/formats": ("base", "kernels/dtype.h", "kernels/formats/*"),
    "kernels/formats/*": ("base", "kernels/dtype.h", "kernels/formats",
                          "kernels/formats/ggml/decode.h"),  # its blocks, for ggml_heads
    "kernels/cpu": ("base", "kernels", "kernels/formats"),
    "kernels/cuda": ("base", "kernels", "kernels/formats", "kernels/cuda/gemm", "kernels/cuda/attention",
                     "kernels/cuda/decode"),
    "kernels/cuda/recurrent": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/streams": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/products": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/gemm": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/attention": ("base", "kernels", "kernels/cuda"),
    "kernels/cuda/decode": ("base", "kernels", "kernels/formats", "kernels/formats/*", "kernels/cuda"),
    "worker/checkpoint": ("base", "kernels/formats/*", "worker/checkpoint/container"),
    "worker/checkpoint/container": ("base", "kernels/formats", "kernels/formats/*"),
    "worker/checkpoint/config": ("base", "worker/checkpoint/container", "worker/checkpoint/gguf"),
    "worker/checkpoint/gguf": ("base", "kernels/dtype.h", "kernels/math.h", "kernels/formats/*", "worker/checkpoint/container"),
    "worker/checkpoint/quant": ("base", "kernels/formats", "worker/checkpoint/container", "worker/checkpoint/config"),
    "worker/model": ("base", "kernels", "worker/checkpoint", "worker/checkpoint/*", "worker/model/*"),
    "worker/model/recipe": ("base", "kernels", "worker/checkpoint/container", "worker/model", "worker/model/families"),
    "worker/model/names": ("base", "kernels", "worker/checkpoint/container", "worker/model", "worker/model/recipe",
                           "worker/model/families"),
    "worker/model/rope": ("base", "kernels", "worker/checkpoint/config"),
    "worker/model/families": ("base", "kernels", "worker/checkpoint/container", "worker/model", "worker/model/recipe"),
    "worker/weights": ("base", "kernels", "worker/checkpoint", "worker/model", "worker/model/recipe"),
    "worker/engine": ("base", "kernels", "worker/checkpoint", "worker/model", "worker/weights", "worker/engine/*"),
    "worker/engine/open": ("base", "kernels", "worker/checkpoint", "worker/model", "worker/weights", "worker/engine",
                           "worker/engine/place"),
    "worker/engine/place": ("base", "kernels", "worker/checkpoint/container", "worker/model", "worker/weights",
                            "worker/engine", "worker/engine/pass"),
    "worker/engine/pass": ("base", "kernels", "worker/model", "worker/model/recipe", "worker/model/rope",
                           "worker/weights", "worker/engine/engine.h", "worker/engine/place/machine.h"),
    "worker/engine/mixers": ("base", "kernels", "worker/engine/pass"),
    "worker/engine/mlps": ("base", "kernels", "worker/engine/pass"),
    "worker/engine/residual": ("kernels", "worker/engine/pass"),
    "worker/engine/compare": ("base", "kernels", "worker/model", "worker/weights", "worker/engine",
                              "worker/engine/pass"),
    "worker/engine/score": ("base", "kernels", "worker/checkpoint", "worker/model", "worker/weights", "worker/engine",
                            "worker/engine/open", "worker/engine/pass", "worker/engine/compare"),
    "worker/store": ("base",),
    "worker/service/jobs": ("base", "kernels", "ipc", "worker/model", "worker/engine", "worker/engine/open", "worker/store"),
    "worker/service/scorer": ("base", "worker/engine", "worker/engine/open", "worker/store", "worker/service/jobs"),
    "worker/service/requests": ("base", "ipc", "worker/engine", "worker/engine/open", "worker/store", "worker/service/jobs"),
    "worker/service/life": ("base", "ipc", "worker/engine", "worker/engine/open", "worker/store", "worker/service/jobs",
                            "worker/service/requests", "worker/service/scorer"),
    "worker/cli": ("base", "kernels", "ipc", "worker/checkpoint", "worker/model", "worker/model/recipe",
                   "worker/weights", "worker/engine", "worker/engine/pass", "worker/engine/place",
                   "worker/service/requests", "worker/service/life", "worker/store"),
    "worker": ("base", "ipc", "worker/cli"),
}
# Room -> the only source files that the room's top folder may hold.
ONLY_FILES = {"worker": {"main.c"}}
# Room -> reason to have more than MAX_ROOM files.
LARGE_ROOMS = {
    "base": "small files, each of its own use",
    "kernels": "a header and a checked call for each operation",
    "worker/cli": "one file a command",
    "worker/model/families": "one file a family",
    "worker/model/recipe": "a header and a builder for each kind of branch",
    "kernels/cpu": "one file a variant of each operation",
}
# Room -> reason for files that use each other in a circle.
CIRCLES_ALLOWED = {}
# File name, or tag of a struct, enum or union -> reason to stand twice in C sources.
SAME_NAMES_ALLOWED = {
    "decode.h": "one in the folder of each weight format, whose name tells it apart",
    "streams.c": "a kind of residual stream, and the operations that it is made of",
    **dict.fromkeys(("all.h", "list.h"), "the table of weight formats, that of kinds, that of operations"),
    **dict.fromkeys(("attention.c", "dense.c", "kinds.c", "kinds.h", "latent.c", "mixture.c", "ngram.c", "own_input.c", "short_conv.c",
                     "state_space.c", "delta_rule.c", "lightning.c", "projection.c", "pooled.c", "recurrence.c"),
                    "a kind of branch: how the model describes it, and how the engine runs it (dense.c: a weight format, too)"),
}
# Header pattern -> files that may include the header.
LIBRARIES = [
    (re.compile(r"cjson/"), re.compile(r"base/json[^/]*$")),
    (re.compile(r"xxh"), re.compile(r"base/digest\.c$")),
    (re.compile(r"pcre2"), re.compile(r"base/regex\.c$")),
    (re.compile(r"nng/|msgpack"), re.compile(r"(ipc|examples|tests)/")),
    (re.compile(r"sqlite3"), re.compile(r"worker/store/|tests/")),
    (re.compile(r"cuda|cublas|nccl"), re.compile(r"kernels/cuda/")),
    (re.compile(r"(imm|x86)intrin\.h"), re.compile(r"kernels/cpu/|tests/")),
    (re.compile(r"(dnnl|oneapi)"), re.compile(r"tests/bench/")),
]
# Call -> (reason or replacement, files that may use the call).
BANNED = {
    "strcpy|strcat|stpcpy|gets|strtok|alloca": ("no bound", ""),
    "sprintf|vsprintf": ("snprintf", r"tests/.*"),
    "atoi|atol|atoll|atof": ("strtol", r"tests/.*"),
    "rand|srand|random": ("not reproducible", ""),
    "malloc|calloc|realloc|aligned_alloc|posix_memalign": ("base/mem.h", r"base/mem\.c"),
    "free": ("base/mem.h", r"base/mem\.c"),
    "exit|_exit|abort|quick_exit": ("return a status", r"worker/main\.c"),
}
# What only files of a room may name, in code, messages or includes -> where, and what they use instead.
NAMED_ONLY = {
    r"safetensors|shard_index|gguf": (re.compile(r"worker/checkpoint/|kernels/formats/formats\.c$"),
                                      "container.h, which is the same for all kinds of files"),
}
# (file, call) -> reason for the exception.
CALLS_ALLOWED = {
    ("worker/service/life/serve.c", "_exit"): "no destructors under a thread that uses a GPU",
    ("ipc/messages.c", "strcat"): "joins the names of our own table of operations",
}
# File -> reason to be longer than MAX_FILE.
LONG_FILES = {}
# Files whose functions may have MAX_NUMERIC_FUNCTION lines.
NUMERIC = re.compile(r"kernels/|tests/ops/")
# Pattern of headers that do not compile alone -> reason.
PARTIAL_HEADERS = {
    r"kernels/cpu/(fast_|simd_)": "one body, compiled once per CPU variant, after its simd_*.h",
    r"kernels/cuda/": "for nvcc: a machine without CUDA lacks the headers that they include",
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
    """Files that git tracks; without git, all files outside build folders."""
    try:
        out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                             capture_output=True).stdout.decode()
        names = [n for n in out.split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                 if not re.match(r"(build|dist|\.git)", p.relative_to(ROOT).parts[0])]
    return sorted(n for n in names if (ROOT / n).is_file())


def code_only(text):
    """C source with comments and the contents of strings blanked; line numbers stay the same."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(m):
        kept = "".join(c if c == "\n" else " " for c in m[0])
        return f'"{kept[1:-1]}"' if m[0][0] == '"' else kept

    return re.sub(pattern, blank, text, flags=re.DOTALL)


def room_of(name):
    """The room of a file, or None. "kernels/formats/*" is every folder in kernels/formats."""
    folder = os.path.dirname(name)
    every = f"{os.path.dirname(folder)}/*"
    return folder if folder in ROOMS else every if every in ROOMS else None


def check_room(name):
    room = room_of(name)
    check(room is not None, f"{name}: the file is in no room; add its folder to ROOMS")
    folder, file = os.path.split(name)
    check(folder not in ONLY_FILES or file in ONLY_FILES[folder], f"{name}: move the file into a room of {folder}/")


def check_includes(name, text):
    room = room_of(name)
    layer = name.split("/")[0]
    for m in re.finditer(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.MULTILINE):
        target = m[2]
        head = target.split("/")[0]
        if layer in C_DIRS and m[1] == '"':
            check(head in C_DIRS, f"{name}: includes {target}; expected a path from the root, into {', '.join(C_DIRS)}")
        if layer in C_DIRS and head in C_DIRS:
            there = room_of(target)
            same = there == room and (room != "kernels/formats/*" or
                                      os.path.dirname(target) == os.path.dirname(name))
            may = ROOMS.get(room, ())
            every = f"{os.path.dirname(there)}/*" if there else None
            check(same or there in may or target in may or every in may,
                  f"{name}: files in {room} must not include {target}")
        if layer in C_DIRS:
            check(head not in ("tests", "examples"), f"{name}: must not include {target}")
        for library, where in LIBRARIES:
            if library.match(target):
                check(where.match(name), f"{name}: only files matching {where.pattern} may include {target}")


def check_calls(name, code):
    ours = name.split("/")[0] in C_DIRS
    for calls, (why, where) in BANNED.items():
        if not ours and why in ("base/mem.h", "return a status", "not reproducible"):
            continue
        found = {m[1] for m in re.finditer(rf"(?<![\w.>])({calls})\s*\(", code)}
        found = {c for c in found if (name, c) not in CALLS_ALLOWED}
        check(not found or (where and re.fullmatch(where, name)),
              f"{name}: calls {', '.join(sorted(found))}, which is banned here ({why})")
    check(not re.search(r"\btypedef\s+(struct|enum|union)\b[^;(]*[;{]", code),
          f"{name}: found a typedef of a struct, enum or union; use the tag")


def check_named(name, text):
    """Comments may name what code must not know."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    for pattern, (where, instead) in NAMED_ONLY.items():
        found = re.search(pattern, code, re.IGNORECASE)
        check(where.match(name) or not found,
              f"{name}: names {found and found[0]}, which only files matching {where.pattern} may; use {instead}")


def check_assertions(name, code):
    """An assertion of `a && b` that fails does not say which half is wrong."""
    for m in re.finditer(r"\bassert_(true|false)\(([^;]*)\);", code):
        top, inner = m[2], ""
        while top != inner:  # without what is in brackets
            top, inner = re.sub(r"\([^(){}[\]]*\)|\{[^(){}[\]]*\}|\[[^(){}[\]]*\]", "", top), top
        joined = "&&" in top and "||" not in top if m[1] == "true" else "||" in top
        check(not joined or "?" in top, f"{name}:{code.count(chr(10), 0, m.start()) + 1}: an assertion of several conditions; "
              "assert each by itself, so that a failure names it")


def check_sizes(name, text):
    lines = text.split("\n")
    most = MAX_TEST_FILE if name.startswith("tests/") else MAX_FILE
    check(len(lines) <= most or name in LONG_FILES, f"{name}: {len(lines)} lines, at most {most} are allowed")
    limit = MAX_NUMERIC_FUNCTION if NUMERIC.match(name) else MAX_FUNCTION
    start = None
    for i, line in enumerate(lines, 1):
        if line == "{":
            start = i
        elif line == "}" and start:
            # A table of numbers is data, and not a part of the function to read.
            n = sum(not re.fullmatch(r" +(0x[0-9a-f]+,[ ]?)+", line) for line in lines[start:i])
            check(n < limit, f"{name}:{start}: a function of {n} lines, at most {limit} are allowed")
            start = None


def check_text(name, data):
    try:
        text = data.decode()
    except UnicodeDecodeError:
        check(False, f"{name}: the file is not UTF-8")
        return
    columns = MAX_COLUMNS.get(Path(name).suffix, 10**6)
    for i, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip() or "\t" in line:
            check(False, f"{name}:{i}: found a tab, or blanks at the end of the line")
        if len(line) > columns:
            check(False, f"{name}:{i}: {len(line)} columns, at most {columns} are allowed")
        if re.search(r"(?<![\w.}])/(home|root|Users|opt|work|mnt)/\w", line):
            check(False, f"{name}:{i}: found a path that exists on one machine only")
    check(not text or (text.endswith("\n") and not text.endswith("\n\n")),
          f"{name}: the file must end with exactly one newline")
    if name.endswith(".py"):
        try:
            check_definitions(name, ast.parse(text, name))
        except SyntaxError as e:
            check(False, f"{name}: {e}")


def check_definitions(name, tree):
    """A second function or class of one name in one body replaces the first without a word. (A property's
    setter, or one of several overloads, has a decorator.)"""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef)):
            continue
        found = [d.name for d in node.body if isinstance(d, kinds) and not d.decorator_list]
        twice = sorted({each for each in found if found.count(each) > 1})
        check(not twice, f"{name}: defined twice in one body: {', '.join(twice)}")


# A function with linkage, or an inline function of a header: its name, at the start of its definition.
FUNCTION = re.compile(r"^(?!static (?!inline))[a-z_][\w\s*]*?[\s*](\w+)\([^;{}]*?\)\s*\{", re.MULTILINE)
# Whatever uses a function outside of a declaration: a call, or a value.
USE = re.compile(r"(?<!struct )(?<!enum )\b(ctw_\w+)\b")
DECLARATION = re.compile(r"^[a-z_][^{}=;]*\([^{}=;]*\)[^{}=;]*;", re.MULTILINE)


def uses_within_rooms(sources):
    """{file: {file of the same folder: a function of it that the first one uses}}"""
    where = {}
    for name, code in sources.items():
        for m in FUNCTION.finditer(code):
            where.setdefault((os.path.dirname(name), m[1]), name)
    uses = {}
    for name, code in sources.items():
        for m in USE.finditer(DECLARATION.sub("", code)):
            there = where.get((os.path.dirname(name), m[1]), name)
            if there != name:
                uses.setdefault(name, {}).setdefault(there, m[1])
    return uses


def check_circles(sources):
    uses = uses_within_rooms(sources)
    for room in {os.path.dirname(name) for name in sources} - set(CIRCLES_ALLOWED):
        steps = []
        try:
            TopologicalSorter({name: to for name, to in uses.items() if os.path.dirname(name) == room}).prepare()
        except CycleError as e:
            circle = e.args[1]  # each is used by the next
            steps = [f"{b} uses {uses[b][a]}() of {a}" for a, b in zip(circle, circle[1:])]
        check(not steps, f"{room}: files use each other in a circle: {'; '.join(steps)}")


def check_names(sources):
    """Each file name and each ctw_ tag stands once in the C sources."""
    places = {}
    for name, code in sources.items():
        places.setdefault(os.path.basename(name), []).append(name)
        for m in re.finditer(r"^\s*(?:struct|union|enum) (ctw_\w+)\s*\{", code, re.MULTILINE):
            places.setdefault(m[1], []).append(name)
    for what, found in places.items():
        check(len(found) == 1 or what in SAME_NAMES_ALLOWED, f"{what} stands twice: {', '.join(found)}")


def check_room_sizes(sources):
    sizes = {}
    for name in sources:
        sizes[os.path.dirname(name)] = sizes.get(os.path.dirname(name), 0) + 1
    for room, n in sizes.items():
        check(n <= MAX_ROOM or room in LARGE_ROOMS, f"{room}: {n} files, at most {MAX_ROOM} are allowed")


def check_header(name):
    compiler = os.environ.get("CC", "cc")
    done = subprocess.run(
        [compiler, "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Wextra",
         "-Wno-unused-function", "-Wno-unused-const-variable", "-Werror", "-I.", "-include", name,
         "-x", "c", "/dev/null"], cwd=ROOT, capture_output=True, text=True, check=False)
    return name, done.returncode == 0, done.stderr.split("\n")[0]


def main():
    names = tracked_files()
    sources = {}
    for name in names:
        data = (ROOT / name).read_bytes()
        if name == "LICENSE" or b"\0" in data:
            continue
        check_text(name, data)
        if name.endswith((".c", ".h", ".cu", ".cuh")):
            text = data.decode(errors="replace")
            if name.split("/")[0] in C_DIRS:
                sources[name] = code_only(text)
                check_room(name)
            check_includes(name, text)
            check_calls(name, code_only(text))
            if name.split("/")[0] in C_DIRS:
                check_named(name, text)
            check_assertions(name, code_only(text))
            check_sizes(name, text)
        elif name.endswith(".sh") or name in ("tests/run", ".ci/run"):
            ok = subprocess.run(["bash", "-n", name], cwd=ROOT, check=False).returncode == 0
            check(ok, f"{name}: bash -n finds a syntax error")
    check_circles(sources)
    check_names(sources)
    check_room_sizes(sources)
    headers = [n for n in names if n.endswith(".h") and n.split("/")[0] in C_DIRS and
               not any(re.match(p, n) for p in PARTIAL_HEADERS)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, ok, message in pool.map(check_header, headers):
            check(ok, f"{name}: the header does not compile alone: {message}")
    python_rooms.check(ROOT, check)
    check(family_docs.PAGE.read_text(encoding="utf-8") == family_docs.page(),
          "docs/FAMILIES.md: differs from the code; run tests/tools/family_docs.py")
    for file in [*LONG_FILES, *(file for file, _ in CALLS_ALLOWED)]:
        check(file in names, f"check_tree.py: an exception names {file}, which does not exist")
    for failure in failures:
        print(failure)
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
