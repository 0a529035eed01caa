#!/usr/bin/env bash
# Five checkpoints of SmolLM2-135M, and a report of what each quantisation cost, from a bare Debian or Ubuntu:
#
#   examples/sweep.sh [options of ctworker-sweep, such as --dry-run]
#
# Builds the worker, gets the model as examples/quickstart.sh does, quantises it by rounding to nearest
# (W8, W4, W3, NVFP4), and runs examples/sweep.yaml; stopped at any time, it goes on where it was. The text
# is WikiText-2's test set: from the file that CTWORKER_WIKITEXT names, or from the hub, or, if neither
# can be had, Python's own manual (its numbers compare with nothing else).
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
case ${1:-} in -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$self" && exit 0 ;; esac
[ -n "${CTWORKER_WIKITEXT:-}" ] && CTWORKER_WIKITEXT=$(realpath "$CTWORKER_WIKITEXT") && export CTWORKER_WIKITEXT
cd "$(dirname "$self")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh
# shellcheck source=examples/model.sh
. examples/model.sh
DIR=build/sweep
PY=$DIR/venv/bin/python

ctw_setup_system
mapfile -t requirements < <(grep -E '^(lm-eval|gguf|numpy|tokenizers|huggingface-hub)' tests/requirements.txt)
ctw_setup_python "$DIR/venv" "${requirements[@]}"
ctw_gpu_options
"$PY" -m pip install -q --disable-pip-version-check "${gpu_options[@]}" '.[sweep]' >&2

hub=0
if ctw_hub_answers "$PY"; then hub=1; fi
ctw_get_model "$PY" "$hub" "$DIR/bf16"
ctw_say "model: $model_from"
for scheme in w8a16 w4a16 w3a16 nvfp4; do
  [ -e "$DIR/$scheme/config.json" ] || "$PY" tests/tools/quantize.py "$DIR/bf16" "$DIR/$scheme" --scheme "$scheme" >&2
done
if [ -z "${CTWORKER_WIKITEXT:-}" ] && [ "$hub" = 0 ]; then
  export CTWORKER_WIKITEXT=$PWD/$DIR/pydoc_topics.jsonl
  [ -e "$CTWORKER_WIKITEXT" ] || "$PY" examples/quickstart_report.py pydoc "$CTWORKER_WIKITEXT"
  ctw_say "text:  Python's own manual, since the hub does not answer and CTWORKER_WIKITEXT is not set"
fi
exec "$DIR/venv/bin/ctworker-sweep" examples/sweep.yaml "$@"
