"""What format_vectors.py and native_vectors.py share: contents that the C tests repeat. Needs torch."""

import hashlib

import torch


class Bytes:
    """x <- 1664525 x + 1013904223; returns the top byte of each step."""

    def __init__(self):
        self.x = 1

    def byte(self):
        self.x = (self.x * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.x >> 24

    def codes(self, n, bits):
        return [self.byte() & ((1 << bits) - 1) for _ in range(n)]


def scales(gen, n, dtype):
    """Both signs, many magnitudes (fp16: also subnormal results); the C test makes the same bits."""
    words = [gen.byte() | gen.byte() << 8 for _ in range(n)]
    if dtype == "BF16":
        bits = [(w & 0x83FF) | 0x3800 for w in words]
        return torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    if dtype == "F16":
        bits = [w & 0x97FF for w in words]
        return torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    return torch.tensor([(w - 32768) / 8388608 for w in words], dtype=torch.float32)


def digest(w):
    raw = w.contiguous().clone().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()
