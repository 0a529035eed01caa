#!/usr/bin/env bash
# check_variants.sh CC: checks that the variants `avx512` and `amx` do not multiply pairs of bf16 in vectors, as `avx512bf16`
# does, even if the compiler's options allow AVX512_BF16 (-march=native): the numerics id names the variant, not these options.
set -euo pipefail
cd "$(dirname "$0")/../.."
uses_pairs() {
  "$1" -std=c11 -D_GNU_SOURCE -I. -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -E "kernels/cpu/$2.c" |
    grep -c 'vf vf_dot_pairs(' || true
}
avx512=$(uses_pairs "$1" avx512) bf16=$(uses_pairs "$1" avx512bf16) amx=$(uses_pairs "$1" amx)
[ "$avx512 $bf16 $amx" = "0 1 0" ] && exit 0
echo "kernels/cpu: compiled for AVX512_BF16, files with products of pairs in vectors (avx512.c, avx512bf16.c, amx.c):" \
  "$avx512 $bf16 $amx, expected 0 1 0"
exit 1
