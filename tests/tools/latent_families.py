"""As families.py: models with latent attention."""

import math

from family_keys import act_of, build, rms, rope_settings
from mixture_families import STACKED, experts_of, mixed, sigmoid_router, sparse_from
from recipe import Latent, Rope, Router


def latent(c, head_v=None, **rope):
    """Changes of all layers."""
    turning, settings = c["qk_rope_head_dim"], rope_settings(c)
    head, bias = c["qk_nope_head_dim"] + turning, c.get("attention_bias", False)
    scale, weight = head ** -0.5, settings.get("mscale_all_dim")
    if settings["rope_type"] != "default" and weight:
        scale *= (0.1 * weight * math.log(settings["factor"]) + 1) ** 2 if settings["factor"] > 1 else 1
    return {"latent": Latent(c["kv_lora_rank"], c["q_lora_rank"], turning, bias=bias), "head_v": c["v_head_dim"],
            "rope": Rope(turning, settings, c.get("rope_interleave", True)), "scale": scale, "o_bias": bias}


def with_mixture(c, norm, router, layer=None, stacked=False, **more):
    e = experts_of(c, router, **(STACKED if stacked else {}))
    beside = mixed(e, c["moe_intermediate_size"] * c["n_shared_experts"], "mlp.shared_experts")
    sparse, head = sparse_from(c), c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    return build(c | {"num_key_value_heads": None}, norm, head_dim=head, layer=latent(c) | (layer or {}),
                 own=lambda i: beside if sparse[i] else {}, **more)


def deepseek_v2(c):
    limited = c.get("topk_method", "greedy") == "group_limited_greedy"
    router = Router(normalised=False, groups=c["n_group"] if limited else 1, kept=c["topk_group"] if limited else 1,
                    group_best=1, outside=0.0, scale=c.get("routed_scaling_factor", 1.0), exact=True)
    return with_mixture(c, rms(c), router, {"mlp_bias": c.get("mlp_bias", False)})


def deepseek_v3(c):
    return with_mixture(c, rms(c), sigmoid_router(c))


def glm4_moe_lite(c):
    return with_mixture(c, rms(c, 1e-5), sigmoid_router(c))


def mistral4(c, **more):
    s = rope_settings(c)
    router = Router(normalised=c.get("norm_topk_prob", True), groups=c.get("n_group", 1), kept=c.get("topk_group", 1),
                    outside=0.0, added=1e-20, scale=c.get("routed_scaling_factor", 1.0))
    factor = (s["llama_4_scaling_beta"], s["original_max_position_embeddings"])
    return with_mixture(c, rms(c), router, {"query_factor": factor}, stacked=True, **more)


FAMILIES = {f.__name__: f for f in (deepseek_v2, deepseek_v3, glm4_moe_lite, mistral4)}
