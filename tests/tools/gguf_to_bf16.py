#!/usr/bin/env python3
"""Rewrites a GGUF file with every matrix in BF16: the file for llama.cpp in benchmarks.

    gguf_to_bf16.py IN.gguf OUT.gguf [--f32 | --exact]

Metadata and one-dimensional tensors stay; matrices are dequantised and rounded once. --f32: the same values, stored as
F32, for comparisons in which activations are not rounded either. --exact: F32 without rounding.
"""

import sys

import gguf
import numpy as np

import checkpoint_io as cio

SKIP = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture",
        "general.file_type", "general.quantization_version"}


def main():
    exact = sys.argv[3:] == ["--exact"]
    as_f32 = exact or sys.argv[3:] == ["--f32"]
    if len(sys.argv) != 3 + as_f32:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 64
    reader = gguf.GGUFReader(sys.argv[1])
    writer = gguf.GGUFWriter(sys.argv[2], reader.get_field("general.architecture").contents())
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if as_f32 else gguf.LlamaFileType.MOSTLY_BF16)
    for name, field in reader.fields.items():
        if name not in SKIP:
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    for t in reader.tensors:
        shape = [int(d) for d in reversed(t.shape)]
        values = gguf.quants.dequantize(t.data, t.tensor_type).reshape(shape)
        if len(shape) > 1 and not exact:
            stored = cio.bf16_from_f32(values)
            if as_f32:
                writer.add_tensor(t.name, (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32))
            else:
                writer.add_tensor(t.name, stored.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(t.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
