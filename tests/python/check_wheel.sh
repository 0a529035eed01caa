#!/usr/bin/env bash
# Builds the published wheels, installs them with lm-eval in an empty virtual environment outside the tree, and
# runs plain `lm_eval` and the package's commands there; then in a bare root, if this machine can make it.
# Usage: check_wheel.sh [WORK_FOLDER]; prints "N passed, N failed" last. PYTHON: the interpreter (default
# python3). FAKE_DEVICE: the tests' fake GPU backend, which is packed as the GPU backend's wheel. KEEP=1 keeps
# the folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=${1:-$(mktemp -d "${TMPDIR:-/tmp}/ctworker-wheel.XXXXXX")}
mkdir -p "$work"
work=$(cd "$work" && pwd)
[ "${KEEP:-}" = 1 ] || trap 'rm -rf "$work"' EXIT
passed=0

step() { # step NAME COMMAND...: one check; its output is shown when it fails
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "ok   $name"
  else
    echo "FAIL $name: $*"
    tail -n 40 "$work/log"
    echo "$passed passed, 1 failed"
    exit 1
  fi
}

unset PYTHONPATH CTWORKER_BIN CTWORKER
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
step "empty environment" "${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
step "archive of the sources, and the wheel from it" "$root/tests/tools/wheel" "$work/dist"
wheel=$(ls "$work"/dist/ctworker-*.whl)
step "its tag: $(basename "$wheel")" sh -c "case '$wheel' in *-py3-none-manylinux*_x86_64.whl) ;; *) exit 1 ;; esac"
size=$(stat -c %s "$wheel")
step "its size: $((size / 1024)) KiB of 5 MiB" test "$size" -le $((5 << 20))
step "install" "$bin/pip" install -q "$wheel"
size=$(du -sk "$work"/venv/lib/python3*/site-packages/ctworker | cut -f1)
step "installed: $size KiB of 15 MiB" test "$size" -le $((15 << 10))
golden=${CTWORKER_GOLDEN:-$root/../shared/data/golden}
if [ -d "$golden" ]; then
  golden=$(cd "$golden" && pwd)
  model=$golden/llama-w4a16_g128 original=$golden/llama-dense
else
  model=$work/llama-w4a16 original=$work/llama
  step "tiny checkpoint" "${PYTHON:-python3}" "$root/tests/tools/tiny_checkpoint.py" llama dense "$original"
  step "quantised" "${PYTHON:-python3}" "$root/tests/tools/quantize.py" "$original" "$model" --group 32
fi
step "the Python API, without lm-eval" "$bin/python" - "$model" <<'PY'
import importlib.util, sys
assert all(importlib.util.find_spec(name) is None for name in ("lm_eval", "torch", "numpy"))
from ctworker import Worker
with Worker(sys.argv[1]) as worker:
    (score,) = worker.score([[1, 5, 9]])
    assert score.count == 2 and score.identity
PY
export PIP_NO_COMPILE=1 # most modules of the packages that follow are never imported
step "install with lm-eval" "$bin/pip" install -q "${wheel}[lm-eval]" "lm-eval==0.4.13"
step "the sweep's files" "$bin/python" -c "
import importlib.resources as r
from ctworker.sweep.results import schema
assert schema()['title'] and r.files('ctworker.sweep').joinpath('web/report.html.j2').is_file()"
step "the sweep says what it needs" sh -c "'$bin/ctworker-sweep' x.yaml 2>&1 | grep -q \"pip install 'ctworker\[sweep\]'\""
step "no torch" sh -c "! '$bin/python' -c 'import torch'"

cd "$work"
program=$("$bin/python" -c 'import ctworker.client.launcher as l; print(l.find_binary())')
step "the program is the package's" sh -c "case '$program' in $work/venv/*) ;; *) exit 1 ;; esac"
step "runs" "$program" --version
step "console script" "$bin/ctworker" --version
# Only the C library may come from the system; libcjson comes from the package.
step "carries its libraries" sh -c "
  needed=\$(objdump -p '$program' | sed -n 's/ *NEEDED *//p')
  for lib in \$needed; do
    case \$lib in
      libc.so.* | libm.so.* | libpthread.so.* | ld-linux* | libgcc_s.so.* | libdl.so.* | librt.so.*) ;;
      *) ldd '$program' | grep -F \"\$lib => $work/venv/\" || { echo \"not carried: \$lib\"; exit 1; } ;;
    esac
  done"
step "no package file outside" "$bin/python" - <<'PY'
import importlib.metadata as m
files = [str(f) for f in m.files("ctworker")]
ours = ("ctworker/", "ctworker-", "_ctworker_hook", "__pycache__/_ctworker_hook", "ctworker.pth",
        "../../../bin/ctworker")
odd = [f for f in files if not f.startswith(ours)]
assert not odd, odd
assert {"ctworker.pth", "ctworker/py.typed", "ctworker/bin/ctworker"} <= set(files), files
PY

sum=$(sha256sum <"$program")
if [ -e "${FAKE_DEVICE:-}" ]; then
  cp "$FAKE_DEVICE" "$work/libctworker_cuda.so"
  step "the GPU backend's wheel" env CUDA_LIBRARY="$work/libctworker_cuda.so" "$root/tests/tools/wheel" --cuda "$work/dist"
  step "without the wheel, a remedy" sh -c "! '$program' score --backend cuda --model '$model' </dev/null 2>said &&
    grep 'install the wheel ctworker-cuda13' said"
  step "installs" "$bin/pip" install -q --no-deps "$work"/dist/ctworker_cuda13-*.whl
  echo '{"id": 0, "tokens": [1, 5, 9]}' >tokens
  step "the program finds it" sh -c "'$bin/ctworker' score --backend cuda --model '$model' <tokens 2>said && grep 'fake GPU' said"
  step "uninstalls" "$bin/pip" uninstall -q -y ctworker-cuda13
fi
step "tasks" "$bin/python" - "$root/tests/python" <<'PY'
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import data_tasks
data_tasks.write(Path("tasks"))
PY
step "plain lm_eval" sh -c "'$bin/lm_eval' --model ctworker --model_args 'pretrained=$model' \
  --include_path tasks --tasks toy_rolling,toy_choices --output_path out >table &&
  grep -q word_perplexity table && grep -q acc_norm table"

seq -s " " 1 700 >numbers.txt
method="--method gptq-2048 --window 64 --stride 64 --max-windows 5 --text numbers.txt --quiet"
step "ctworker-ppl" "$bin/ctworker-ppl" "$model" $method --json ppl.json
step "ctworker-compare asks for numpy only" "$bin/ctworker-compare" "$original" "$model" $method --json compare.json
step "install for sweeps" "$bin/pip" install -q "${wheel}[sweep]"
cat >sweep.yaml <<YAML
models: [{path: $original, label: original, original: true}, {path: $model, label: model}]
include_path: tasks
tasks: [toy_choices]
methods: [&method {method: gptq-2048, window: 64, stride: 64, max_windows: 5, text: numbers.txt}]
comparisons: [*method]
YAML
step "ctworker-sweep" "$bin/ctworker-sweep" sweep.yaml
step "with the same numbers, and a report" "$bin/python" - <<'PY'
import json
from pathlib import Path
cells = json.loads(Path("sweep-results/results.json").read_text())["cells"]
found = {(cell["model"], cell["kind"]): cell["metrics"][0]["value"] for cell in cells}
assert found["model", "perplexity"] == json.loads(Path("ppl.json").read_text())["texts"][0]["perplexity"], found
(compared,) = json.loads(Path("compare.json").read_text())["models"]
assert found["model", "comparison"] == compared["statistics"]["kl"]["value"] > 0, found
assert len(found) == 5 and Path("sweep-results/report.html").read_text().rstrip().endswith("</html>")
PY
step "extras do not change the program" test "$(sha256sum <"$program")" = "$sum"
step "lm_eval ls knows the others" "$bin/python" -c "
import lm_eval.models
from lm_eval.api.registry import get_model, model_registry
assert 'hf' in model_registry and get_model('ctworker').__module__ == 'ctworker.lm'"
step "uninstall leaves nothing" sh -c "'$bin/pip' uninstall -q -y ctworker &&
  '$bin/python' -c 'import lm_eval' &&
  ! ls '$work'/venv/lib/python3*/site-packages | grep -i ctworker"

# The whole of README's first lines, in a root of this machine's distribution that has Python alone.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
"$root/tests/tools/bare_root" "$suite" "$wheel" "$original" >"$work/bare" && code=0 || code=$?
cat "$work/bare"
read -r bare_passed _ bare_failed _ <<<"$(tail -n 1 "$work/bare")"
echo "$((passed + bare_passed)) passed, ${bare_failed:-1} failed"
exit "$code"
