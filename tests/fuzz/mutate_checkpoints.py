#!/usr/bin/env python3
"""Mutates config.json and safetensors headers of tiny checkpoints and scores each mutant, by hand for minutes or hours.

    mutate_checkpoints.py --worker build/asan/worker/ctworker --seconds 3600 FOLDER_OF_CHECKPOINTS...

A mutant must be refused with one sentence, or scored without a NaN. A signal, a sanitizer's report, a run past the time
limit or a NaN is a failure: the program prints the number of the mutant, and --first N --count 1 repeats it. Mutant number
N depends on --seed, N and the list of checkpoints alone.

The table at the end is for a reader, without the keys that `inspect` lists as not read. A mutant that scores like the
original, although its key should matter, may be a key that the worker reads and then forgets. A mutant that scores
differently may be a wrong number without a word.
"""

import argparse
import collections
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NUMBERS = [0, 1, -1, 2, 3, 7, 64, 1 << 20, 1 << 31, 1 << 53, 1 << 63, -(1 << 63), 0.0, 0.5, -0.5, 1e-45, 1e308, 1e400]
WORDS = ["", "auto", "none", "default", "linear", "silu", "relu", "gelu", "float32", "bfloat16", "int", "group", "channel", "tensor",
         "block", "dense", "pack-quantized", "nvfp4-pack-quantized", "float-quantized", "Linear", "re:.*", "re:(", "lm_head", "\ud800"]
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0",
          "U16", "U32", "U64", "F4", "X"]
TOKENS = [[4, 4], [i * i % 251 for i in range(150)]]  # beyond the windows of most tiny checkpoints
SANITIZED = ("AddressSanitizer", "LeakSanitizer", "runtime error:", "UndefinedBehavior", "ThreadSanitizer")


# ---- a tree of JSON ----

def places(node, path=()):
    """(container, key, path) of every value below `node`."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield node, key, (*path, key)
        yield from places(value, (*path, key))


def changed_number(rng, value):
    near = [value + 1, value - 1, value * 2, value // 2 if isinstance(value, int) else value / 2, -value, float(value)]
    return rng.choice(near if rng.random() < 0.6 else NUMBERS)


def changed_value(rng, value, tree):
    """Another value in place of `value`: near it mostly, of another type now and then."""
    if rng.random() < 0.15:
        return rng.choice([None, True, [], {}, [value], {"a": value}, "x", 1, -1.5, float("nan"), float("inf")])
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return changed_number(rng, value)
    if isinstance(value, str):
        others = [c[k] for c, k, _ in places(tree) if isinstance(c[k], str)]
        return rng.choice(WORDS + others + [value + "x", value[:-1]])
    if isinstance(value, list) and value:
        longer, shuffled = value + [value[0]], list(value)
        rng.shuffle(shuffled)
        return rng.choice([value[:-1], longer, shuffled, []])
    if value is None:
        return rng.choice([*NUMBERS, *WORDS, True, {}])
    return rng.choice([None, {}, [], 3])


def mutate_config(rng, config):
    """(text of config.json, what was changed). The text may hold a key twice or a bare NaN, as files do."""
    found = list(places(config))
    container, key, path = rng.choice(found)
    name = ".".join("*" if isinstance(p, int) else p for p in path)
    way = rng.choice(["change"] * 6 + ["remove", "rename", "twice", "bytes"])
    if way == "change" or (isinstance(container, list) and way != "bytes"):
        was = container[key]
        container[key] = changed_value(rng, was, config)
        return json.dumps(config), ("change", name, f"{was!r} -> {container[key]!r}"[:160])
    if way == "remove":
        return (container.pop(key), json.dumps(config))[1], ("remove", name, "")
    if way == "rename":
        container[key + "x"] = container.pop(key)
        return json.dumps(config), ("rename", name, "")
    text = json.dumps(config)
    if way == "twice":
        again = json.dumps({key: changed_value(rng, container[key], config)})[1:-1]
        text = text.replace(json.dumps({key: container[key]})[1:-1], json.dumps({key: container[key]})[1:-1] + ", " + again, 1)
        return text, ("twice", name, again[:160])
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(['"', "}", "0", "\x00", "[", "9" * 40]) + text[at + rng.randint(0, 2):], ("bytes", "config.json", str(at))


# ---- a header of safetensors ----

def mutate_entry(rng, header, name):
    entry, others = header[name], [n for n in header if n not in (name, "__metadata__")]
    way = rng.choice(["dtype", "shape", "shape", "offsets", "remove", "rename", "swap", "unknown"])
    if way == "dtype":
        entry["dtype"] = rng.choice(DTYPES)
    elif way == "shape":
        shape = entry["shape"]
        choices = [shape[::-1], [*shape, 1], [1, *shape], shape[:-1], [], [-1], [1 << 62, 4], [0]]
        if shape:
            at = rng.randrange(len(shape))
            choices += [[*shape[:at], changed_number(rng, shape[at]), *shape[at + 1:]]] * 4
        entry["shape"] = rng.choice(choices)
    elif way == "offsets":
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = rng.choice([[begin + 1, end + 1], [begin, end - 1], [end, begin], [0, end - begin],
                                            [begin, 1 << 63], [-1, end]])
    elif way == "remove":
        del header[name]
    elif way == "rename":
        header[name + rng.choice(["x", "_packed", ".weight", "_scale"])] = header.pop(name)
    elif way == "swap" and others:
        other = rng.choice(others)
        header[name], header[other] = header[other], header[name]
    else:
        entry[rng.choice(["strides", "shape", "dtype"])] = rng.choice([None, 3, "x", [None], {}])
    return way


def mutate_file(rng, data):
    """(bytes of the file, what was changed)."""
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    if rng.random() < 0.1:
        way = rng.choice(["length", "truncated", "byte"])
        raw = bytearray(data)
        if way == "length":
            raw[:8] = struct.pack("<Q", rng.choice([0, 1, n - 1, n + 1, len(data), 1 << 40, (1 << 64) - 1]))
        elif way == "truncated":
            raw = raw[:rng.randrange(len(raw))]
        else:
            raw[8 + rng.randrange(n)] ^= 1 << rng.randrange(8)
        return bytes(raw), ("file", way, "")
    name = rng.choice([x for x in header if x != "__metadata__"])
    way = mutate_entry(rng, header, name)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body, ("tensor", way, name)


# ---- one mutant ----

def write_mutant(rng, source, folder):
    """Fills `folder` with links to the source's files, one of them changed. Returns what was changed."""
    for path in source.iterdir():
        if path.suffix in (".json", ".safetensors") and not path.name.startswith(("golden", "config.transformers")):
            (folder / path.name).symlink_to(path)
    files = sorted(source.glob("*.safetensors"))
    if rng.random() < 0.65 or not files:
        text, change = mutate_config(rng, json.loads((source / "config.json").read_text(encoding="utf-8")))
        target, content = folder / "config.json", text.encode("utf-8", errors="surrogatepass")
    else:
        path = rng.choice(files)
        content, change = mutate_file(rng, path.read_bytes())
        target = folder / path.name
    target.unlink()
    target.write_bytes(content)
    return change


def score(worker, folder, limit_s):
    """(outcome, detail): scored, refused, crash, hang, nan or noise."""
    text = "".join(json.dumps({"tokens": t}) + "\n" for t in TOKENS)
    argv = [str(worker), "score", "--backend", "cpu", "--dtype", "float32", "--threads", "2", "--model", str(folder)]
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=limit_s, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return "hang", ""
    if done.returncode < 0 or any(word in done.stderr for word in SANITIZED):
        return "crash", done.stderr[-3000:]
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    if done.returncode:
        return ("refused", errors[0]) if len(errors) == 1 else ("noise", done.stderr[-2000:])
    if any(word in done.stdout for word in ("NaN", "nan", "inf", "null")):
        return "nan", done.stdout[:300]
    return "scored", done.stdout


def unread_keys(worker, folder):
    """Keys of config.json that the worker lists as not read. (The lists of a nested configuration begin with its name.)"""
    done = subprocess.run([str(worker), "inspect", str(folder)], capture_output=True, text=True, check=True)
    listed = done.stdout.partition("cannot change a score:")[2].partition("\n\n")[0]
    return set(listed.replace(",", " ").split())


def is_unread(key, unread):
    parts = key.split(".")
    return any(".".join(parts[:n]) in unread for n in range(1, len(parts) + 1))


def print_table(scored):
    """Keys of mutants that were scored: times with the original's scores, times with others, an example of each."""
    rows = collections.defaultdict(lambda: [0, 0, "", ""])
    for same, change in scored:
        row = rows[change[:2]]
        row[0 if same else 1] += 1
        row[2 if same else 3] = change[2]
    for (way, key), (n_same, n_other, same, other) in sorted(rows.items(), key=lambda r: -r[1][0]):
        print(f"{n_same:5} {n_other:5}  {way:7} {key:60} {same[:50]:50} | {other[:50]}")


def main():
    parser = argparse.ArgumentParser(prog="mutate_checkpoints.py", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders with checkpoints below them")
    parser.add_argument("--worker", default=os.environ.get("CTWORKER", "build/asan/worker/ctworker"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--count", type=int, default=1 << 60)
    parser.add_argument("--checkpoints", type=int, default=30, help="so many, drawn from all that open")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one mutant")
    parser.add_argument("--out", type=Path, help="one JSON line a mutant")
    args = parser.parse_args()
    found = sorted(p.parent.resolve() for f in args.folders for p in f.glob("*/config.json"))
    random.Random(args.seed).shuffle(found)
    originals, unread = {}, {}
    for path in found:
        outcome, text = score(args.worker, path, args.limit)
        if outcome == "scored":
            originals[path], unread[path] = text, unread_keys(args.worker, path)
        if len(originals) == args.checkpoints:
            break
    print(f"{len(originals)} checkpoints: {' '.join(p.name for p in originals)}", flush=True)
    counts, scored, end, number = collections.Counter(), [], time.monotonic() + args.seconds, args.first
    out = args.out.open("w", encoding="utf-8") if args.out else None
    while time.monotonic() < end and number < args.first + args.count:
        rng = random.Random(f"{args.seed} {number}")
        source = rng.choice(list(originals))
        folder = Path(tempfile.mkdtemp(prefix="ctw-mutant-"))
        try:
            change = write_mutant(rng, source, folder)
            outcome, detail = score(args.worker, folder, args.limit)
        finally:
            shutil.rmtree(folder)
        same = outcome == "scored" and detail == originals[source]
        counts[outcome] += 1
        if outcome == "scored" and not is_unread(change[1], unread[source]):
            scored.append((same, change))
        elif outcome not in ("scored", "refused"):
            print(f"FAIL mutant {number} of {source.name}: {outcome}: {change}\n{detail}", flush=True)
        if out:
            out.write(json.dumps({"n": number, "of": source.name, "change": change, "outcome": outcome, "same": same,
                                  "message": detail if outcome != "scored" else ""}) + "\n")
        number += 1
    print("\nscored: as the original, otherwise; change; key; an example of each")
    print_table(scored)
    print("\n" + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    bad = sum(n for outcome, n in counts.items() if outcome not in ("scored", "refused"))
    print(f"{sum(counts.values()) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
