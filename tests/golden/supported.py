"""The golden checkpoints that the worker must open. It is a failure if it opens a checkpoint that is not named
here, or refuses one that is: no checkpoint drops out, or comes in, unnoticed."""

from pathlib import Path

SUPPORTED = {
    "llama-dense",
    "llama-dense_fp16",
    "llama-nvfp4",
    "llama-nvfp4a16",
    "llama-w2a16_g32",
    "llama-w3a16_g128",
    "llama-w4a16_actorder",
    "llama-w4a16_channel",
    "llama-w4a16_g128",
    "llama-w4a16_g128_asym",
    "llama-w4a16_g128_fp16",
    "llama-w4a16_g32",
    "llama-w4a16_g32_asym",
    "llama-w6a16_g128",
    "llama-w8a16",
    "llama-w8a16_g64_asym",
    "llama3rope-dense",
    "llamabias-dense",
    "llamalinear-dense",
    "llamayarn-dense",
    "mistral_swa-dense",
    "bitnet-dense",
    "ernie4_5-dense",
    "exaone4-dense",
    "exaone4_full-dense",
    "cohere-dense",
    "cohere2-dense",
    "cohere_qknorm-dense",
    "falcon_7b-dense",
    "falcon_new-dense",
    "falcon_new_ln1-dense",
    "falcon_rw-dense",
    "gemma-dense",
    "gemma2-dense",
    "gemma3-dense",
    "gemma3-nvfp4a16",
    "gemma3_vl-dense",
    "gemma4-dense",
    "gemma4_e-dense",
    "gemma4_vl-dense",
    "glm4-dense",
    "gpt2-dense",
    "hunyuan_v1_dense-dense",
    "granite-dense",
    "gptneox-dense",
    "mistral3_vl-dense",
    "olmo-dense",
    "olmo2-dense",
    "olmo3-dense",
    "qwen2_5_vl-dense",
    "qwen3_vl-dense",
    "seed_oss-dense",
    "phi-dense",
    "phi_qknorm-dense",
    "phi3-dense",
    "phi3_longrope-dense",
    "phi3-w4a16_g128",
    "qwen2-dense",
    "qwen3-dense",
    "qwen3-w4a16_g128",
}

CONFIGS = ("config.json", "config.transformers4.json", "config.transformers5.json")


def configs_of(folder):
    """The spellings of the configuration that this checkpoint has."""
    return [c for c in CONFIGS if (Path(folder) / c).exists()]
