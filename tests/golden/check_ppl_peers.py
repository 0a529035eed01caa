#!/usr/bin/env python3
"""ctworker-ppl in float32 against the programs that its methods stand for, on the same weights. Not part of tests/run.

    check_ppl_peers.py --model DIR --wikitext wiki.test.raw --scratch DIR [--ppl COMMAND ..]
                       [--torch-python PY] [--llama-python PY --gguf FILE]

hf-sliding: the loop of transformers' page on perplexity. lm-eval: the program lm_eval with its hf backend on the shortest
articles. The loss is computed in float64 (lm_eval: the whole model), because torch's float32 cross-entropy over a vocabulary
of 49152 is 1.6e-5 too low on a CPU; the page's own loss is compared with that tolerance. llama.cpp-512 and llama.cpp-stride:
perplexity.cpp's sums over the logits of llama-cpp-python, whose tokens and logits are its own; FILE is the checkpoint as
tests/tools/gguf_to_bf16.py --f32 writes it. PY is a Python with torch, transformers and lm_eval, or with llama_cpp and numpy.
The texts are short: a model of 135M parameters takes minutes.
Ends with "N passed, N failed".
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SLIDING = """
import json, math, sys, torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
folder, text, max_length, stride = sys.argv[1], open(sys.argv[2], encoding="utf-8", newline="").read(), int(sys.argv[3]), int(sys.argv[4])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
ids = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")(text, return_tensors="pt").input_ids
total, plain, count, before, windows = 0.0, 0.0, 0, 0, 0
for begin in range(0, ids.size(1), stride):
    end = min(begin + max_length, ids.size(1))
    labels = ids[:, begin:end].clone()
    labels[:, : -(end - before)] = -100
    with torch.no_grad():
        out = model(ids[:, begin:end], labels=labels)
    loss = torch.nn.functional.cross_entropy(out.logits[0, :-1].double(), labels[0, 1:], ignore_index=-100)
    n = int((labels != -100).sum()) - 1
    total, plain = total + float(loss) * n, plain + float(out.loss) * n
    count, before, windows = count + n, end, windows + 1
    if end == ids.size(1):
        break
print(json.dumps({"perplexity": math.exp(total / count), "plain": math.exp(plain / count), "windows": windows,
                  "tokens": ids.size(1)}))
"""

LLAMA = """
import json, sys, llama_cpp, numpy as np
path, text, stride, forced = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3]), sys.argv[4] == "bos"
n_ctx = 512 + stride // 2
model = llama_cpp.Llama(path, n_ctx=n_ctx, n_batch=n_ctx, logits_all=True, type_k=0, type_v=0, verbose=False)
vocab = llama_cpp.llama_model_get_vocab(model._model.model)
adds = bool(llama_cpp.llama_vocab_get_add_bos(vocab)) or forced
tokens = model.tokenize(text.removesuffix(b"\\n"), add_bos=True, special=False)
values, windows = [], 0
if stride:
    starts = [i * stride for i in range((len(tokens) - n_ctx + stride - 1) // stride)]
    first = n_ctx - stride - 1
else:
    starts = [i * n_ctx for i in range(len(tokens) // n_ctx)]
    first = n_ctx // 2
for start in starts:
    chunk = tokens[start : start + n_ctx]
    model.reset()
    model.eval([model.token_bos(), *chunk[1:]] if adds else chunk)
    for j in range(first, n_ctx - 1):
        logits = model.scores[j].astype(np.float64)
        values.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[chunk[j + 1]])
    windows += 1
nll, nll2 = np.mean(values), np.mean(np.square(values))
print(json.dumps({"perplexity": float(np.exp(nll)), "windows": windows, "tokens": len(tokens), "bos": adds,
                  "se": float(np.sqrt((nll2 - nll * nll) / (len(values) - 1)) * np.exp(nll))}))
"""


class Checks:
    passed = failed = 0

    def close(self, what, ours, theirs, bound):
        off = abs(ours / theirs - 1)
        ok = off <= bound
        self.passed, self.failed = self.passed + ok, self.failed + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {what}: {ours:.7f}, peer {theirs:.7f}, relative difference {off:.1e} (bound {bound:g})")

    def same(self, what, ours, theirs):
        ok = ours == theirs
        self.passed, self.failed = self.passed + ok, self.failed + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {what}: {ours}, peer {theirs}")


def output(*argv, **env):
    print("$", *[str(a) if len(str(a)) < 200 else "..." for a in argv], flush=True)
    done = subprocess.run([str(a) for a in argv], check=True, cwd=ROOT, env=os.environ | env, stdout=subprocess.PIPE, text=True)
    return done.stdout


class Peers:
    def __init__(self, args):
        self.args, self.checks = args, Checks()
        text = args.wikitext.read_text(encoding="utf-8")
        self.text = args.scratch / "text.txt"
        self.text.write_text(text[: args.characters], encoding="utf-8")

    def ours(self, method, *more, text=None):
        report = json.loads(output(*self.args.ppl, self.args.model, "--method", method, "--dtype", "float32", "--json", "-",
                                   "--quiet", *more, *(["--text", self.text] if text is None else text)))
        return report["texts"][0]

    def sliding(self, python):
        """A window of 512 and a stride of 200: the last window is shorter."""
        ours = self.ours("hf-sliding", "--window", 512, "--stride", 200)
        peer = json.loads(output(python, "-c", SLIDING, self.args.model, self.text, 512, 200))
        self.checks.same("hf-sliding: tokens", ours["tokens"], peer["tokens"])
        self.checks.same("hf-sliding: windows", ours["windows"], peer["windows"])
        self.checks.close("hf-sliding", ours["perplexity"], peer["perplexity"], 2e-6)
        self.checks.close("hf-sliding with the model's own loss", ours["perplexity"], peer["plain"], 5e-5)
        plain = self.ours("hf-sliding", "--window", 512, "--stride", 200, "--mean", "token")
        self.checks.same("the mean over tokens is another number", plain["perplexity"] != ours["perplexity"], True)

    def lm_eval(self, python):
        """The program lm_eval on the shortest articles."""
        sys.path.insert(0, str(ROOT / "harness_adapter/src"))
        from ctworker.perplexity import texts

        pages = sorted(texts.load(f"wikitext2={self.args.wikitext}", "pages", join_given=True).originals, key=len)[:2]
        raw = self.args.scratch / "pages.raw"
        raw.write_text(" \n" + "\n".join(pages), encoding="utf-8")
        out = self.args.scratch / "lm_eval"
        subprocess.run(["rm", "-rf", str(out)], check=True)
        output(python, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--batch_size", 1, "--tasks", "wikitext",
               "--model_args", f"pretrained={self.args.model},dtype=float64,max_length=512", "--include_path", ROOT / "tasks",
               "--output_path", out, CTWORKER_WIKITEXT=str(raw))
        (path,) = out.rglob("results_*.json")
        peer = json.loads(path.read_text())["results"]["wikitext"]
        ours = self.ours("lm-eval", "--window", 512, text=["--dataset", f"wikitext2={raw}"])
        for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
            self.checks.close(f"lm-eval {name}", ours[name], peer[f"{name},none"], 2e-6)
        self.checks.same("lm-eval: documents", ours["documents"], len(pages))

    def llama(self, python, gguf):
        for method, stride in (("llama.cpp-512", 0), ("llama.cpp-stride", 512)):
            for bos in ("as it is", "bos"):
                peer = json.loads(output(python, "-c", LLAMA, gguf, self.text, stride, bos))
                more = [] if bos != "bos" else ["--bos-token", 1]
                ours = self.ours(method, *more)
                name = f"{method}, {'BOS replaced' if peer['bos'] else 'no BOS'}"
                self.checks.same(f"{name}: tokens", ours["tokens"], peer["tokens"])
                self.checks.same(f"{name}: windows", ours["windows"], peer["windows"])
                self.checks.close(name, ours["perplexity"], peer["perplexity"], 2e-6)
                if not stride:
                    self.checks.close(f"{name}: standard error", ours["perplexity_se"], peer["se"], 2e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--wikitext", type=Path, required=True, help="wiki.test.raw")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--ppl", nargs="+", default=[sys.executable, "-m", "ctworker.perplexity.main"], help="the command")
    parser.add_argument("--torch-python", help="a Python with torch, transformers and lm_eval")
    parser.add_argument("--llama-python", help="a Python with llama_cpp and numpy")
    parser.add_argument("--gguf", type=Path, help="the model for llama.cpp, in F32")
    parser.add_argument("--characters", type=int, default=14000, help="length of the text")
    args = parser.parse_args()
    args.scratch = args.scratch.resolve()
    args.scratch.mkdir(parents=True, exist_ok=True)
    peers = Peers(args)
    if args.torch_python:
        peers.sliding(args.torch_python)
        peers.lm_eval(args.torch_python)
    if args.llama_python:
        peers.llama(args.llama_python, args.gguf)
    print(f"{peers.checks.passed} passed, {peers.checks.failed} failed")
    return 1 if peers.checks.failed or not peers.checks.passed else 0


if __name__ == "__main__":
    sys.exit(main())
