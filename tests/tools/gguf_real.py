#!/usr/bin/env python3
"""Proves the worker's tables of GGUF architectures with llama.cpp's own converter, and with llama.cpp itself.

    gguf_real.py LLAMA_CPP WORKER OUT CHECKPOINT ... [--library LIBRARY] [--option fuse_qkv]

LLAMA_CPP is a folder with conversion/ and gguf-py/ (the source distribution of llama-cpp-python has them under
vendor/llama.cpp). Each checkpoint (dense golden ones) is converted to OUT/NAME.bf16.gguf and .f32.gguf, without
a vocabulary, because llama.cpp knows none of their tokenizers. For families without a golden checkpoint, one of
tiny_checkpoint.py does, with a golden.json of sequences alone. A line says whether the worker finds the checkpoint's matrices
in the GGUF file (`inspect --hashes`) and gives the same scores in float32, bit by bit. With --library, as
llama_cpp_scores.py takes it, also how much llama.cpp's scores of the F32 file differ. Needs torch and transformers.
"""

import argparse
import json
import logging
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

MAX_TOKENS = 300  # of the golden sequences

#: Keys that published configurations have and transformers 5 does not write, by the golden checkpoint's name.
PUBLISHED = {
    "deepseekv3-dense": {"scoring_func": "sigmoid"}, "cohere2-dense": {"rotary_pct": 1.0}, "gptneox-dense": {"rotary_pct": 0.25},
    "gpt2-dense": {"n_ctx": 1152}, "glm4_moe_lite-dense": {"first_k_dense_replace": 1, "scoring_func": "sigmoid"},
    "falcon_7b-dense": {"num_kv_heads": 1}, "mpt-dense": {"architectures": ["MPTForCausalLM"]},
    "minimax_m2-dense": {"rotary_dim": 16, "scoring_func": "sigmoid"},
    "exaone_moe-dense": {"scoring_func": "sigmoid"}, "dots1-dense": {"scoring_func": "sigmoid"},
    "afmoe-dense": {"route_norm": True, "score_func": "sigmoid"},
    "exaone-dense": {"activation_function": "silu"}, "kimi_linear-dense": {"moe_router_activation_func": "sigmoid"},
    **{f"{name}-dense": {"scoring_func": "sigmoid"} for name in ("deepseek_v32", "glm_moe_dsa")},
    **{f"nemotron_h{kind}-dense": {"rms_norm_eps": 1e-5} for kind in ("", "_moe", "_latent")},
    "hunyuan_v1_dense-dense": {"max_position_embeddings": 32768},
    "hunyuan_v1_moe-dense": {"rope_parameters": {"rope_type": "default"}, "max_position_embeddings": 32768,
                             "moe_intermediate_size": [48] * 2, "num_shared_expert": [1] * 2, "moe_topk": [3] * 2},
}

MINIMAX_M3 = {"sparse_attention_config": {
    "sparse_num_index_heads": 2, "sparse_index_dim": 24, "sparse_topk_blocks": 4, "sparse_block_size": 32, "sparse_local_block": 1},
    "moe_layer_freq": [0, 1, 1], "n_shared_experts": 1, "rotary_dim": 16, "scoring_func": "sigmoid"}
STEP = {"num_attention_groups": 2, "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5], "moe_num_experts": 8, "moe_top_k": 3,
        "moe_layers_enum": "1,2,3", "rope_theta": [5000000.0, 10000.0, 10000.0, 5000000.0], "num_nextn_predict_layers": 0,
        "norm_expert_weight": True, "attention_other_setting": {"num_attention_groups": 2, "num_attention_heads": 6}}
MIMO = {"swa_head_dim": 24, "swa_num_attention_heads": 8, "swa_v_head_dim": 16, "swa_num_key_value_heads": 4,
        "topk_method": "noaux_tc", "hybrid_layer_pattern": [0, 1, 1, 0], "layernorm_epsilon": 1e-5, "scoring_func": "sigmoid",
        "swa_rope_theta": 10000.0, "partial_rotary_factor": 0.334}
PUBLISHED |= {"phimoe-dense": {"architectures": ["PhiMoEForCausalLM"]}, "minimax_m3_vl-dense": MINIMAX_M3, "step3p7-dense": STEP,
              "mimo_v2_flash-dense": MIMO}

ONE_ALPHA = {f"layernorm_{branch}_{name}": value for branch in ("full_attention", "linear_attention", "mlp")
             for name, value in (("alpha", 3.5), ("beta", 1.0))}
PUBLISHED |= {
    "kimi_k3-dense": {"moe_router_activation_func": "sigmoid"}, "minimax_text_01-dense": ONE_ALPHA,
    "deepseek_v4_128-fp8native_fp4": {"compress_ratios": [0, 4, 128]},
    "glm5_next-dense": {"mla_use_nope": True, "scoring_func": "sigmoid", "first_k_dense_replace": 1, "linear_attn_config": {
        "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}},
    # Types that transformers does not know, because its classes change head_dim and layer_types.
    "qwen4_exp_one-dense": {"model_type": "qwen4_exp_published"},
    "ling-dense": {"architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_moe_v3", "no_kda_lora": True,
                   "gated_attention_proj_granularity_type": "head_wise",
                   "moe_shared_expert_intermediate_size": 32, "norm_topk_prob": True, "n_group": 2, "num_experts_per_tok": 3,
                   "score_function": "sigmoid"}}

LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "attn_temperature_tuning": True, "use_qk_norm": True,
          "no_rope_layers": None, "no_rope_layer_interval": 4, "layer_types": None, "moe_layers": None}

#: What llama.cpp assumes of a model and no metadata say, where the golden checkpoint differs from the published models.
ASSUMED = {
    "gemma2-dense": {"query_pre_attn_scalar": 32}, "gemma3-dense": {"query_pre_attn_scalar": 32},
    "gemma3_vl-dense": {"text_config": {"query_pre_attn_scalar": 32}}, "mistral_swa-dense": {"sliding_window": None},
    "smollm3-dense": {"no_rope_layers": None, "no_rope_layer_interval": 4}, "olmoe-dense": {"clip_qkv": None},
    "hunyuan_v1_moe-dense": {"rope_parameters": {"rope_type": "default"}},
    "mistral4_vl-dense": {"text_config": {"rope_parameters": {"llama_4_scaling_beta": 0.0}}},
    "minicpm3-dense": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "phimoe-dense": {"rope_parameters": {"short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122}},
    "minimax_m3_vl-dense": {"text_config": {"swiglu_limit": 7.0}},
    "gpt_bigcode-dense": {"activation_function": "gelu"}, "laguna-dense": {"layer_types": ["full_attention"] + ["sliding_attention"] * 3},
    "llama4-dense": LLAMA4, "llama4_vl-dense": {"text_config": LLAMA4},
    "minimax_text_01-dense": ONE_ALPHA,
    "starcoder2-dense": {"sliding_window": None}, "granitehybrid-dense": {"position_embedding_type": None},
}


def no_vocabulary(model):
    model.gguf_writer.add_tokenizer_model("no_vocab")
    model.gguf_writer.add_vocab_size(model.hparams.get("vocab_size") or model.hparams["text_config"]["vocab_size"])


def convert(folder, out, outtype, options):
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    types = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16, "f16": gguf.LlamaFileType.MOSTLY_F16,
             "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    made = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    for inner in (made, getattr(made, "Ministral3Model", made), getattr(made, "Mistral4Model", made)):
        inner.set_vocab = no_vocabulary
        inner._get_suppress_tokens = lambda self: []  # MiniMax 01's, of a tokenizer
    made.no_mtp = made.no_mtp or getattr(made, "supports_mtp_export", False)
    with torch.inference_mode():
        model = made(folder, types[outtype], out, eager=True, **options)
        known = PUBLISHED.get(folder.name, {})
        model.hparams = known | model.hparams  # transformers drops keys that it does not know
        model.rope_parameters = {key: known[key] for key in ("partial_rotary_factor",) if key in known} | model.rope_parameters
        model._dsv4_fp8_dequantized = Never()  # DeepSeek V4's: it rounds them to Q8_0
        model.write()


class Never(set):
    def add(self, item):
        pass


def why(error):
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:160]} ({Path(where.filename).name}:{where.lineno})"


def linked(folder, config, keys):
    """A folder of links to the checkpoint's files, under another configuration."""
    place = Path(tempfile.mkdtemp(prefix="ctw-")) / folder.name
    place.mkdir()
    for file in folder.iterdir():
        if not file.name.startswith(("config.", "tokenizer", "golden")):
            (place / file.name).symlink_to(file.resolve())
    keys = merged(json.loads((folder / config).read_text()), keys)
    (place / "config.json").write_text(json.dumps(keys))
    size = keys.get("vocab_size") or keys["text_config"]["vocab_size"]  # of a tokenizer: Gemma's embedding is cut to it
    vocabulary = {"model": {"vocab": {str(i): i for i in range(size)}}, "added_tokens": []}
    (place / "tokenizer.json").write_text(json.dumps(vocabulary))
    return place


def merged(old, new):
    """`new` in `old`, objects within objects; None leaves a key out."""
    out = old | {k: merged(old[k], v) if isinstance(v, dict) and isinstance(old.get(k), dict) else v for k, v in new.items()}
    return {k: v for k, v in out.items() if v is not None or k not in new}


def convert_any(folder, out, outtype, options):
    """With the configuration that most published files have, or as transformers 5 writes it; raises the first's error."""
    first = None
    for config in ("config.transformers4.json", "config.json"):
        if not (folder / config).exists():
            continue
        try:
            convert(linked(folder, config, PUBLISHED.get(folder.name, {})), out, outtype, options)
            return
        except BaseException as error:  # the converter's classes end in many ways, sys.exit among them
            first = first or error
    raise first or FileNotFoundError(folder)


def sequences(folder):
    tokens = [s["tokens"] for s in json.loads((folder / "golden.json").read_text())["sequences"]]
    return [t for t in tokens if len(t) <= MAX_TOKENS]


def run(command, text=""):
    done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
    return done.stdout if done.returncode == 0 else None, (errors or [f"ended with {done.returncode}"])[0]


def hashes(worker, path):
    out, error = run([worker, "inspect", "--hashes", "--dtype", "float32", path])
    lines = [line for line in (out or "").splitlines() if "vision" not in line]
    plain = re.compile(r"^(language_model\.)?((model|backbone)\.)?(language_model\.)?")
    return out and dict(plain.sub("", line).split(None, 1) for line in lines), error


def difference(first, second):
    pairs = zip(*[[json.loads(line)["logprobs"] for line in out.splitlines()] for out in (first, second)])
    return max(abs(x - y) for a, b in pairs for x, y in zip(a, b, strict=True))


def compare(args, folder, files, text):
    """files: with matrices in the checkpoint's dtype, and in F32."""
    theirs, error = hashes(args.worker, folder)
    ours, error = hashes(args.worker, files[0]) if theirs else (None, error)
    if not ours:
        return "REFUSED " + error
    same = sum(ours.get(name) == line for name, line in theirs.items())
    matrices = f"{same} of {len(theirs)} matrices equal" + (f", {len(ours)} here" if len(ours) != len(theirs) else "")
    score = [args.worker, "score", "--dtype", "float32", "--model"]
    (expected, error), (found, other) = run([*score, folder], text), run([*score, files[0]], text)
    if expected is None or found is None:
        return f"{matrices}; SCORES {error if expected is None else other}"
    result = "scores equal" if expected == found else f"SCORES DIFFER by up to {difference(expected, found):.2g}"
    if args.library is None:
        return f"{matrices}, {result}"
    script = Path(__file__).with_name("llama_cpp_scores.py")
    out, error = run([args.python or sys.executable, script, args.library, files[1]], text)
    theirs = error if out is None else f"up to {difference(out, found):.2g} from {'these' if expected == found else 'ours'}"
    return f"{matrices}, {result}; llama.cpp: {theirs}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("worker", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--library", help="of llama.cpp's C interface")
    parser.add_argument("--python", help="the interpreter for --library")
    parser.add_argument("--only", action="append", help="name of a checkpoint")
    parser.add_argument("--option", action="append", default=[], help="an argument of the converter's class, such as fuse_qkv")
    parser.add_argument("--keep", action="store_true", help="take files that are in OUT")
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    logging.basicConfig(level=logging.CRITICAL)
    args.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for folder in args.checkpoints:
        name = folder.name
        if args.only and name not in args.only:
            continue
        text = "".join(json.dumps({"id": i, "tokens": tokens}) + "\n" for i, tokens in enumerate(sequences(folder)))
        files = [args.out / f"{name}.{outtype}.gguf" for outtype in ("bf16", "f32")]
        try:
            for file, outtype in zip(files, ("bf16", "f32")):
                if not (args.keep and file.exists()):
                    convert_any(folder, file, outtype, {option: True for option in args.option})
        except BaseException as error:
            print(f"{name}: NOT CONVERTED {why(error)}", flush=True)
            continue
        result = compare(args, linked(folder, "config.json", ASSUMED.get(name, {})), files, text)
        failed += ", scores equal" not in result
        print(f"{name}: {result}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
