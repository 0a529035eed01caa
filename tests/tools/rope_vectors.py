#!/usr/bin/env python3
"""Makes tests/unit/rope_vectors.h: rotary frequencies, bit for bit, as transformers computes them.

Needs torch and transformers 5 (reference only; no test runs this program). torch's vectorised pow is
off by one unit in the last place for about one value in a hundred, and the machine decides for which;
for these bases and head sizes it is correct.
"""

import json
import struct
import sys

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [
    ("default", 64, 2048, {"rope_type": "default", "rope_theta": 10000.0}),
    ("linear", 128, 4096, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.7}),
    ("llama3", 128, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                             "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192}),
    ("llama3, odd factors", 64, 131072, {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.3, "low_freq_factor": 1.1,
        "high_freq_factor": 3.7, "original_max_position_embeddings": 5000}),
    ("yarn", 128, 8192, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                         "original_max_position_embeddings": 2048}),
    ("yarn, all parameters", 64, 8192, {
        "rope_type": "yarn", "rope_theta": 500000.0, "factor": 6.5, "beta_fast": 24,
        "beta_slow": 1.5, "mscale": 0.707, "mscale_all_dim": 0.5, "truncate": False,
        "original_max_position_embeddings": 1000}),
    ("yarn, attention factor", 32, 8192, {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "attention_factor": 1.25,
        "original_max_position_embeddings": 4096}),
    ("longrope", 128, 8192, {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 2048,
        "short_factor": [1 + i / 37 for i in range(64)], "long_factor": [1.0] * 64}),
    ("proportional", 128, 8192, {"rope_type": "proportional", "rope_theta": 1000000.0,
                                 "partial_rotary_factor": 0.25, "factor": 8.0}),
]


def bits(x):
    return f"0x{struct.unpack('<I', struct.pack('<f', x))[0]:08x}"


def main():
    print("/* Made by tests/tools/rope_vectors.py. */\n"
          "static const struct rope_case rope_cases[] = {")
    for name, head, length, parameters in CASES:
        config = LlamaConfig(hidden_size=head, num_attention_heads=1, head_dim=head,
                             max_position_embeddings=length, rope_parameters=dict(parameters))
        rope = LlamaRotaryEmbedding(config)
        text = json.dumps({"rope_parameters": parameters}).replace('"', '\\"')
        words = ", ".join(bits(f) for f in rope.inv_freq.tolist())
        print(f'    {{"{name}", {head}, {length}, "{text}", {bits(rope.attention_scaling)},\n'
              f"     {{{words}}}}},")
    print("};")
    return 0


if __name__ == "__main__":
    sys.exit(main())
