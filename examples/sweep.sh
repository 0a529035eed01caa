#!/usr/bin/env bash
# Five checkpoints of SmolLM2-135M, and a report of what each quantisation cost, from a bare Debian or Ubuntu:
#
#   examples/sweep.sh [--wheel FILE] [options of ctworker-sweep, such as --dry-run]
#
# Builds the worker, or installs the wheel, gets the model as examples/quickstart.sh does, quantises it by rounding to nearest
# (W8, W4, W3, NVFP4), and runs examples/sweep.yaml on Alice in Wonderland; stopped at any time, it goes on where it was.
# What examples/quickstart.sh has made is used again.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
wheel=""
case ${1:-} in
  -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$self" && exit 0 ;;
  --wheel)
    [ -e "${2:-}" ] || { echo "sweep: --wheel ${2:-}: no such file" >&2 && exit 64; }
    wheel=$(realpath "$2") && shift 2
    ;;
esac
cd "$(dirname "$self")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh
if [ "${1:-}" = --version ]; then ctw_show_version sweep && exit 0; fi
# shellcheck source=examples/progress.sh
. examples/progress.sh
# shellcheck source=examples/model.sh
. examples/model.sh
DIR=build/quickstart
BIN=$DIR/venv/bin

ctw_prepare_sweep $DIR "$wheel"
for scheme in w8a16 w4a16 w3a16 nvfp4; do
  ctw_run "quantising to $scheme" $DIR/logs/quantize.log ctw_quantise "$BIN/python" $DIR/smollm2 "$scheme" "$DIR/smollm2-$scheme"
done
exec "$BIN/ctworker-sweep" examples/sweep.yaml "$@"
