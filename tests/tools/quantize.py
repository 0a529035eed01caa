#!/usr/bin/env python3
"""Quantises a Hugging Face checkpoint by rounding to nearest.

    quantize.py IN OUT --scheme w4a16 [--group N|channel] [--asymmetric] [--actorder group]
    quantize.py IN OUT --scheme nvfp4|fp8|fp8_block|int8|mxfp4|mxfp6|mxfp8|mixed
    quantize.py IN OUT --scheme awq|gptq|nf4|mlx3|mlx4|mlx6

Writes compressed-tensors files, or those of AWQ, GPTQ (4 bits, groups of 64), bitsandbytes and MLX. Every linear layer of the
decoder is quantised; embedding and head are not, but for MLX. There is no calibration: the result shows the cost of a format
without calibration, and serves as a test file. To make good quantised models, use the tools of the format.
"""

import argparse
import json
import os
import re
import shutil
import sys

import numpy as np

import checkpoint_io as cio
import encoders
from native_encoders import AwqScheme, GptqScheme
from tool_encoders import Bnb4Scheme, MlxScheme

#: Schemes with groups of their own: compressed-tensors' and those of other tools
NAMED = encoders.NAMED | {"awq": AwqScheme(), "gptq": GptqScheme(), "nf4": Bnb4Scheme(),
                          **{f"mlx{bits}": MlxScheme(bits) for bits in (3, 4, 6)}}
FUSED = [{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}]  # merged by serving engines
GROUPS = (128, 64, 32, 16)


class Refused(Exception):
    pass


def is_quantised(name, shape, scheme):
    embedding = name.endswith("embed_tokens.weight") and "embed" in getattr(scheme, "kinds", ())
    return len(shape) == 2 and (name.endswith("_proj.weight") or embedding)


def fused_with(name, names):
    """The weights of `names` that a fused kernel would merge with `name`, including `name`."""
    head, proj, tail = re.fullmatch(r"(.*\.)?(\w+)(\.weight)", name).groups()
    for members in FUSED:
        if proj in members:
            return [f"{head}{m}{tail}" for m in sorted(members) if f"{head}{m}{tail}" in names]
    return [name]


def choose_scheme(args, widths):
    """The scheme; without --group, the group size is one that divides every width."""
    name = "nvfp4" if args.scheme == "nvfp4a16" else args.scheme
    if name in NAMED:
        if args.group or args.asymmetric or args.actorder:
            raise Refused(f"{name} has its own symmetric groups in order; leave out --group, --asymmetric and --actorder")
        return NAMED[name]
    found = re.fullmatch(r"w([2-8])a16", args.scheme)
    if not found:
        raise Refused(f"scheme {args.scheme} is unknown; known: w2a16 .. w8a16, {', '.join(NAMED)}")
    if args.group == "channel":
        group = 0
    elif args.group:
        group = int(args.group)
        odd = [k for k in widths if k % group]
        if odd:
            raise Refused(f"groups of {group} do not divide rows of {odd[0]} weights")
    else:
        group = next((g for g in GROUPS if all(k % g == 0 for k in widths)), None)
        if group is None:
            raise Refused(f"no group size of {GROUPS} divides all of {sorted(widths)}; "
                          "try --group channel")
    return encoders.IntScheme(int(found[1]), group, not args.asymmetric, args.actorder)


def batches_of(source, scheme, scale_dtype, progress):
    """One batch per quantised matrix (its tensors are made together), one per unchanged tensor."""
    linears = {n for n in source.names() if is_quantised(n, source.shape(n), scheme)}
    amax = {}

    def shared_amax(name):
        group = tuple(fused_with(name, linears))
        if group not in amax:
            amax[group] = max(np.abs(source.f32(n)).max() for n in group)
        return amax[group]

    def encoded(name, specs):
        progress(name)
        own = encoders.part_of(scheme, name.removesuffix(".weight"))
        shared = shared_amax(name) if own.name.startswith("nvfp4") else None
        stored = own.encode(source.f32(name), scale_dtype, shared)
        return [stored[suffix] for suffix in specs]

    out = []
    for name in source.names():
        if name in linears:
            specs = encoders.part_of(scheme, name.removesuffix(".weight")).specs(*source.shape(name), scale_dtype)
            stem = name.removesuffix("weight")
            out.append(cio.Batch([(stem + s, *spec) for s, spec in specs.items()],
                                 lambda n=name, s=tuple(specs): encoded(n, s)))
        else:
            out.append(cio.Batch([(name, source.dtype(name), source.shape(name))],
                                 lambda n=name: [source.carrier(n)]))
    return out, linears


def quantize(args):
    with open(os.path.join(args.source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if "quantization_config" in config:
        raise Refused("config.json has a quantization_config: the checkpoint is already quantised; expected an unquantised one")
    source = cio.Checkpoint(args.source)
    linears = [n for n in source.names() if is_quantised(n, source.shape(n), None)]
    if not linears:
        raise Refused("the checkpoint has no linear layer (no tensor *_proj.weight)")
    scheme = choose_scheme(args, {source.shape(n)[1] for n in linears})
    scale_dtype = source.dtype(linears[0])
    done = [0]

    def progress(name):
        done[0] += 1
        if sys.stderr.isatty():
            print(f"\r{done[0]}/{len(linears)} {name:60.60}", end="", file=sys.stderr)

    os.makedirs(args.out, exist_ok=True)
    batches, linears = batches_of(source, scheme, scale_dtype, progress)
    size = cio.write_sharded(args.out, batches, 1)
    if sys.stderr.isatty():
        print("\r" + " " * 80 + "\r", end="", file=sys.stderr)
    config[getattr(scheme, "key", "quantization_config")] = encoders.quantization_config(scheme, ["lm_head"])
    cio.write_json(os.path.join(args.out, "config.json"), config)
    for name in os.listdir(args.source):
        if name.startswith(("tokenizer", "special_tokens", "vocab", "merges", "generation_config",
                            "chat_template", "added_tokens")):
            shutil.copyfile(os.path.join(args.source, name), os.path.join(args.out, name))
    groups = ""
    if args.scheme not in NAMED:
        groups = f", groups of {scheme.group_size}" if scheme.group_size else ", one scale a row"
    print(f"{args.out}: {len(linears)} matrices as {scheme.name}{groups}, {size / 1e6:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", metavar="IN", help="folder with config.json and safetensors")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    parser.add_argument("--scheme", default="w4a16", help=f"w2a16 .. w8a16, {', '.join(NAMED)} (default: w4a16)")
    parser.add_argument("--group", help="columns that share a scale, or 'channel' (default: the "
                        "largest of 128, 64, 32, 16 that divides every row)")
    parser.add_argument("--asymmetric", action="store_true", help="with zero points")
    parser.add_argument("--actorder", default="", choices=["weight", "group"],
                        help="group: columns sorted into groups by their size (weight_g_idx)")
    args = parser.parse_args()
    if args.group and args.group != "channel" and not (args.group.isdigit() and int(args.group)):
        parser.error(f"--group {args.group}: expected a positive number or 'channel'")
    try:
        quantize(args)
    except (Refused, OSError, ValueError) as e:
        print(f"quantize: {args.source}: {e}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
