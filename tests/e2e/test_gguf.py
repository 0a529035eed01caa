"""GGUF files of every architecture score to the bits of the safetensors that they could be made from; what is refused."""

import json
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

import real_worker  # tests/tools on the path
import gguf_architectures
import gguf_file
import gguf_writer

RNG = random.Random(1)
LINE = json.dumps({"id": 0, "tokens": [RNG.randrange(256) for _ in range(50)]}) + "\n"


def run(*args, text=LINE):
    return subprocess.run([str(real_worker.WORKER), *map(str, args)], input=text, capture_output=True, text=True)


class Gguf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ctw-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def test_architectures(self):
        """Half of them with blocks of codes, half with BF16 matrices."""
        for i, name in enumerate(gguf_architectures.ARCHITECTURES):
            with self.subTest(name):
                rules = gguf_architectures.ARCHITECTURES[name]
                near = rules.get("near")
                file, folder = gguf_writer.write(name, str(self.dir / name), blocks=i % 2 == 0 and not rules.get("plain"))
                dtype = ("--dtype", "float32") if near else ()
                ours, theirs = run("score", "--model", file, *dtype), run("score", "--model", folder, *dtype)
                self.assertEqual(theirs.returncode, 0, theirs.stderr)
                self.assertEqual(ours.returncode, 0, ours.stderr)
                if near is None:
                    self.assertEqual(ours.stdout, theirs.stdout)
                    continue
                pairs = zip(*(json.loads(done.stdout)["logprobs"] for done in (ours, theirs)))  # -exp(A_log) was rounded
                self.assertLess(max(abs(a - b) for a, b in pairs), near)

    def test_report_of_latent_attention(self):
        """A matrix in two parts counts as quantised if one of them has codes."""
        for blocks, types, bits in ((False, "BF16, BF16", False), (True, "BF16, Q8_0", True)):
            with self.subTest(types):
                file, _ = gguf_writer.write("deepseek2", str(self.dir / types), blocks=blocks)
                text = run("inspect", file, text="").stdout
                self.assertIn(f"ggml-heads {types} ", text)
                self.assertEqual("bits per weight" in text, bits)

    def test_the_original_configuration(self):
        """It replaces the metadata's keys, and must agree with them."""
        file, folder = gguf_writer.write("gemma2", str(self.dir / "m"), blocks=False)
        config = json.loads((Path(folder) / "config.json").read_text())
        plain = run("score", "--model", file).stdout
        self.assertEqual(run("score", "--model", file, "--config", folder).stdout, plain)
        given = self.dir / "given.json"
        given.write_text(json.dumps(config | {"layer_types": ["full_attention"] * 2}))
        other = run("score", "--model", file, "--config", given)
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertNotEqual(other.stdout, plain)
        given.write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
        self.assertIn("given.json: rms_norm_eps: found the number 1e-05, but the metadata of the file say the number 1e-06",
                      run("score", "--model", file, "--config", given).stderr)

    def test_the_original_configurations(self):
        """They have lists, objects and nulls, which the metadata have in other words. A layer of another kind is refused."""
        refused = {
            "falcon-h1": "attention_in_multiplier: found the number 2.0, but the metadata of the file say the number 1: give the",
            "jamba": "attn_layer_period: found the number 3",  # of one layer's period any number would do
            "qwen4exp": "make_ngram_vocab_size_divisible_by: found the number 16",  # shards have been joined
            "chatglm": "the checkpoint has no tensor transformer.embedding",  # Hugging Face's model has other names
        }
        for arch, rules in gguf_architectures.ARCHITECTURES.items():
            with self.subTest(arch):
                file, folder = gguf_writer.write(arch, str(self.dir / arch), blocks=False)
                plain, given = run("score", "--model", file), run("score", "--model", file, "--config", folder)
                if arch in refused:
                    self.assertIn(refused[arch], given.stderr)
                    continue
                self.assertEqual((given.returncode, given.stdout), (0, plain.stdout), given.stderr)
                self.refuse_other_kinds(file, json.loads((Path(folder) / "config.json").read_text()))
        config, given = json.loads((self.dir / "minimax-01/hf/config.json").read_text()), self.dir / "given.json"
        given.write_text(json.dumps(config | {"attn_type_list": [1 - x for x in config["attn_type_list"]]}))
        self.assertIn("attn_type_list: found an array of", run("score", "--model", self.dir / "minimax-01/minimax-01.gguf",
                                                              "--config", given).stderr)

    def refuse_other_kinds(self, file, config):
        """The kinds of layers in another order; metadata of gemma2 and gpt-oss do not tell the kinds."""
        text = config.get("text_config", config)
        kinds = text.get("layer_types", [])
        if len(set(kinds)) < 2 or config["model_type"] in ("gemma2", "gpt_oss"):
            return
        given = self.dir / "given.json"
        text["layer_types"] = kinds[1:] + kinds[:1]
        given.write_text(json.dumps(config))
        done = run("score", "--model", file, "--config", given)
        self.assertEqual(done.returncode, 65, done.stderr)
        if config["model_type"] not in ("deepseek_v4", "mimo_v2_flash"):  # tensors tell first
            self.assertRegex(done.stderr, r'layer_types\[\d\]: found the string "\w+", but the metadata of the file say the string')

    def test_layers_for_drafts(self):
        """The configuration may have as many as the metadata; the file's other layers are the model's."""
        file, folder = gguf_writer.write("glm4moe", str(self.dir / "m"))
        config, given = json.loads((Path(folder) / "config.json").read_text()), self.dir / "given.json"
        given.write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
        done = run("score", "--model", file, "--config", given)
        self.assertEqual(done.stdout, run("score", "--model", file).stdout, done.stderr)
        given.write_text(json.dumps(config | {"num_nextn_predict_layers": 2}))
        self.assertIn("num_nextn_predict_layers: found the number 2, but the metadata of the file say the number 1",
                      run("score", "--model", file, "--config", given).stderr)

    def test_refused_in_newer_architectures(self):
        """Their keys, and numbers that do not fit."""
        embed = {"token_embd.weight": (0, (8, 32), bytes(1024))}
        sizes = {"embedding_length": 32, "block_count": 2, "context_length": 64, "attention.head_count": 2, "feed_forward_length": 256}
        mixture = dict.fromkeys(("expert_count", "expert_used_count", "expert_shared_count"), 1) | {
            "expert_feed_forward_length": 8, "expert_weights_scale": 1.0, "leading_dense_block_count": 0}
        mla = {"attention.kv_lora_rank": 8, "attention.key_length_mla": 16, "attention.value_length_mla": 16, "rope.dimension_count": 8}
        kda = mixture | mla | {"kda.head_dim": 16, "ssm.conv_kernel": 4, "attention.head_count_kv": [0, 1]}
        hc = {"hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 1, "hyper_connection.epsilon": 1e-6}
        indexer = {f"attention.indexer.{key}": 4 for key in ("head_count", "key_length", "top_k", "kpool")}
        four = mixture | hc | indexer | {
            "attention.key_length": 16, "rope.dimension_count": 8, "attention.q_lora_rank": 8, "attention.sliding_window": 8,
            "attention.output_group_count": 1, "attention.output_lora_rank": 8, "attention.compress_rope_freq_base": 1e4,
            "hash_layer_count": 0, "swiglu_clamp_exp": [1.0, 1.0], "attention.compress_ratios": [0, 4]}
        dbrx = {"attention.head_count_kv": 2, "rope.freq_base": 1e4, "attention.clamp_kqv": 8.0, "expert_count": 1, "expert_used_count": 1}
        heads = {"attention.key_length": 16, "attention.head_count": [2, 2], "attention.head_count_kv": [2, 2]}
        muse = {"logit_scale": 0.5, "final_logit_softcapping": 20.0, "attention.sliding_window": 8, "attention.key_length": 16}
        ling = kda | {"expert_group_count": 1, "expert_group_used_count": 1, "kda.gate_lower_bound": -5.0}
        glm = kda | hc | indexer | {"expert_weights_norm": True, "swiglu_clamp_exp": 1.0}
        less = {key: value for key, value in four.items() if key != "attention.compress_ratios"}
        for arch, keys, why in (
                ("deci", heads | {"attention.head_count_kv": [2, 0]}, "attention.head_count_kv: layer 1 has a linear layer in place of"),
                ("deci", heads | {"attention.head_count": [2, 3]}, "attention.head_count: layer 0 has 2 heads, another layer 3; heads"),
                ("deci", heads | {"attention.head_count": [3, 3]}, "attention.head_count_kv: layer 0 has 2 key heads of 3 heads"),
                ("deci", heads | {"attention.head_count": [2, 0]}, "attention.head_count_kv: layer 1 has 2 key heads of 0 heads"),
                ("deci", heads | {"attention.head_count": [2]}, "attention.head_count: found 1 elements, expected one for each layer"),
                ("deci", heads | {"feed_forward_length": [256, 100]}, "feed_forward_length: layer 1 has an MLP of 100 rows"),
                ("deci", heads | {"block_count": 2**32 - 1}, "deci.block_count: found 4294967295"),
                ("dbrx", dbrx | {"attention.layer_norm_epsilon": 1e-6}, "attention.layer_norm_epsilon: found 1e-06"),
                ("muse-glimmer", muse, "attn_q_norm.weight and attn_k_norm.weight are not the one factor"),
                ("kimi-k3", kda, "kimi-k3.activation.situ_beta: the key is missing"),
                ("bailingmoe3", ling | {"swiglu_clamp_exp": [0.0, 7.0]}, "swiglu_clamp_exp: an array of 2 different values"),
                ("bailingmoe3", ling | {"swiglu_clamp_shexp": 7.0}, "swiglu_clamp_shexp: clamped experts are not supported"),
                ("bailingmoe3", ling | {"expert_shared_count": 2**31, "expert_feed_forward_length": 2**31},
                 "expert_shared_feed_forward_length: found -1; shared experts of another width"),
                ("bailingmoe3", ling | {"rope.dimension_count": 16}, "rope.dimension_count: found 16 of the 16 elements of a head"),
                ("glm5-next", glm | {"swiglu_clamp_exp": 0.0}, "swiglu_clamp_exp: expected one number above 0 for all layers"),
                ("glm5-next", glm | {"swiglu_clamp_shexp": 2.0}, "swiglu_clamp_exp: expected one number above 0 for all layers"),
                ("glm5-next", glm | {"attention.head_count_kv": [0]}, "head_count_kv: found 1 elements, expected one for each of 2 layers"),
                ("deepseek4", less, "attention.compress_ratios: the key is missing"),
                ("deepseek4", four | {"attention.compress_ratios": [4]}, "compress_ratios: found 1 elements, expected one for each"),
                ("deepseek4", four | {"attention.compress_ratios": [0, 5]}, "compress_ratios: layer 1 is neither"),
                ("deepseek4", four | {"expert_shared_count": 2}, "expert_shared_count: only one shared expert is supported"),
                ("deepseek4", four | {"expert_gating_func": 2}, "expert_gating_func: found 2; this architecture is read with 4 ("),
                ("deepseek4", four | {"expert_weights_norm": False}, "expert_weights_norm: weights of chosen experts that do not add up"),
                ("minimax-01", mixture | {"rope.dimension_count": 8}, "minimax-01.residual_scale: the key is missing")):
            with self.subTest(arch, why=why):
                own = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in (sizes | keys).items()}
                self.refused(own, embed, why)

    def refused(self, keys, tensors, why):
        gguf_file.write_gguf(self.dir / "m.gguf", keys, tensors)
        done = run("inspect", self.dir / "m.gguf", text="")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(why, done.stderr)

    def test_refused(self):
        llama = {"general.architecture": "llama", "llama.embedding_length": 32, "llama.block_count": 1,
                 "llama.attention.head_count": 2, "llama.context_length": 64, "llama.feed_forward_length": 32}
        embed = {"token_embd.weight": (0, (8, 32), bytes(1024))}
        self.refused({}, embed, "m.gguf: general.architecture is missing")
        self.refused({"general.architecture": "rwkv7"}, embed,
                     'm.gguf: general.architecture "rwkv7" is not supported; score the model that the file was made from '
                     "(safetensors) in its place; supported: llama, arcee")
        self.refused(llama | {"general.type": "adapter"}, embed, 'general.type is "adapter"; only a model can be scored')
        self.refused(llama, {"a": (0, (1,), bytes(4))}, "there is no token_embd.weight")
        less = {k: v for k, v in llama.items() if k != "llama.context_length"}
        self.refused(less, embed, "m.gguf: llama.context_length: the key is missing")
        self.refused(llama | {"llama.rope.dimension_count": 8}, embed,
                     "llama.rope.dimension_count: found 8 of the 16 elements of a head")
        self.refused(llama | {"llama.rope.scaling.type": "longrope"}, embed, 'rope.scaling.type: "longrope" is not supported')
        self.refused(llama | {"llama.block_count": "x"}, embed, "llama.block_count: found x, expected an integer")
        self.refused(llama | {"llama.block_count": 2**31 - 1}, embed,
                     "llama.block_count: found 2147483647, of which 0 are layers for drafts; expected 0 to 4096 layers")
        self.refused(llama | {"llama.attention.key_length": 0}, embed, "llama.attention.key_length: found 0, expected 1 or more")
        divisors = {"rope_freqs.weight": (0, (8,), bytes(16) + b"\0\0\0\x41" * 4)}
        self.refused(llama, embed | divisors, "rope_freqs.weight[0] is 0; type llama3 with factor 8")
        self.refused(llama, embed, "the checkpoint has no tensor model.norm.weight")
        renamed = {key.replace("llama.", "apertus."): value for key, value in llama.items()} | {"general.architecture": "apertus"}
        self.refused(renamed | {"xielu.alpha_p": [0.5, 0.5]}, embed,
                     "xielu.alpha_p: expected an array of float32, one for each of 1 layers")
        keys = dict.fromkeys(("time_step_rank", "group_count", "state_size", "conv_kernel"), 4) | {"inner_size": 64}
        renamed = {key.replace("llama.", "falcon-h1."): value for key, value in llama.items()} | {"general.architecture": "falcon-h1"}
        self.refused(renamed | {f"falcon-h1.ssm.{key}": value for key, value in keys.items()}, embed,
                     "the file has no output.weight: a tied head, whose factor is not stored")
        keys = {"attention.sliding_window_pattern": [True, False], "attention.head_count_kv": [2, 1], "block_count": 2, "expert_count": 1,
                "expert_used_count": 1, "expert_feed_forward_length": 8, "expert_shared_feed_forward_length": 8,
                "attention.sliding_window": 8, "attention.key_length": 16, "rope.freq_base": 1e4}
        renamed = {key.replace("llama.", "step35."): value for key, value in llama.items()} | {"general.architecture": "step35"}
        renamed |= {f"step35.{key}": value for key, value in keys.items()}
        self.refused(renamed, embed, "step35.attention.head_count_kv: layers with a window have other numbers of key heads than full")
        self.refused(renamed | {"step35.attention.head_count_kv": 2, "step35.expert_weights_norm": False}, embed,
                     "step35.expert_weights_norm: weights of chosen experts that do not add up to 1 are not supported")
        self.refused(renamed | {"step35.attention.head_count_kv": 2, "step35.swiglu_clamp_exp": [1.0]}, embed,
                     "step35.swiglu_clamp_exp: expected a number for each of 2 layers")
        mimo = {key.replace("step35.", "mimo2."): value for key, value in renamed.items()} | {"general.architecture": "mimo2"}
        keys = {"attention.value_length": 16, "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window_pattern": True,
                "attention.head_count_kv": 2, "block_count": 2**31 - 1}
        self.refused(mimo | {f"mimo2.{key}": value for key, value in keys.items()}, embed, "mimo2.block_count: found 2147483647")
        keys = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 8, "expert_shared_count": 1,
                "expert_shared_feed_forward_length": 24}
        renamed = {key.replace("llama.", "bailingmoe2."): value for key, value in llama.items()}
        renamed |= {"general.architecture": "bailingmoe2"} | {f"bailingmoe2.{key}": value for key, value in keys.items()}
        self.refused(renamed, embed,
                     "bailingmoe2.expert_shared_feed_forward_length: found 24; shared experts of another width")
        renamed = {key.replace("llama.", "llama4."): value for key, value in llama.items()} | {"general.architecture": "llama4"}
        keys = dict.fromkeys(("expert_feed_forward_length", "expert_count", "expert_used_count", "interleave_moe_layer_step"), 1)
        self.refused(renamed | {f"llama4.{key}": value for key, value in keys.items()} | {"llama4.attention.sliding_window": 0}, embed,
                     "llama4.attention.sliding_window: layers that see all positions, with RoPE, are not supported")


if __name__ == "__main__":
    unittest.main()
