"""Several residual streams with alternating updates (Gemma 3n), part of reference_model.py."""

from statistics import NormalDist

import numpy as np

from reference_math import ACTIVATIONS


def above_cutoff(model, gate, share):
    """What of each row's numbers lies above the quantile `share` of the normal distribution with their mean and deviation."""
    r, deviations = model.r, NormalDist().inv_cdf(float(np.float32(share)))
    mean, deviation = r(gate.mean(axis=1, keepdims=True)), r(gate.std(axis=1, keepdims=True))
    cutoff = r(mean + r(deviation * float(r(np.asarray(deviations)))))
    return np.maximum(r(gate - cutoff), 0)


def levelled(model, x, first):
    """x at the magnitude of the first stream."""
    r = model.r
    target = r(np.sqrt(r(np.mean(r(first * first), axis=1, keepdims=True))))
    own = r(np.sqrt(np.maximum(r(np.mean(r(x * x), axis=1, keepdims=True)), 1e-5)))
    return r(r(x * target) / own)


def spread(model, x, name, inputs):
    """The first stream, and the products of the others' inputs at its magnitude."""
    n, stem = model.family.altup.n, model.family.extra_stem
    others = [levelled(model, model.linear(inputs(i), f"{stem}{name}.{i - 1}"), x) for i in range(1, n)]
    return np.stack([x, *others])


def modalities(model, x, a):
    r, stem = model.r, a.stem + "altup."
    normed = r(model.norm(x, stem + "router_norm", a.norm) / model.family.hidden)
    return r(np.tanh(model.linear(normed, stem + "modality_router")))


def laurel(model, x, a):
    low = model.linear(x, a.stem + "laurel.linear_left")
    return model.r(x + model.norm(model.linear(low, a.stem + "laurel.linear_right"), a.stem + "laurel.post_laurel_norm", a.norm))


def layer(model, x, a, kept, extra):
    """x [streams, n_tok, hidden]."""
    u, r, stem = model.family.altup, model.r, a.stem

    def norm(y, name):
        return model.norm(y, stem + name, a.norm)

    coefs = model.linear(modalities(model, x[u.active], a), stem + "altup.prediction_coefs").reshape(-1, u.n, u.n)
    x = r(r(np.einsum("tij,jth->ith", coefs, x)) + x)
    n = norm(x[u.active], a.attention_in)
    made = r(x[u.active] + norm(model.attention(n, a, kept), a.attention_out))
    made = r(r(made + laurel(model, n, a)) / np.sqrt(2))
    made = r(made + norm(model.mlp(norm(made, a.mlp_in), a), a.mlp_out))
    coefs = r(model.linear(modalities(model, made, a), stem + "altup.correction_coefs") + 1)
    x = r(r(r(made - x[u.active])[None] * coefs.T[:, :, None]) + x)
    first = r(x[u.active] * model.weight(stem + "altup.correct_output_scale")) if u.scales else x[u.active]
    gate = r(ACTIVATIONS[a.act](model.linear(first, stem + "per_layer_input_gate")))
    added = norm(model.linear(r(gate * extra), stem + "per_layer_projection"), "post_per_layer_input_norm")
    return np.concatenate([x[:1], r(x[1:] + added)])


def layers(model, x, kept, extra):
    """What the final norm reads, of the embedding x [n_tok, hidden]."""
    x = spread(model, x, "altup_projections", lambda i: x)
    for i, a in enumerate(model.family.layers):
        x = layer(model, x, a, kept, extra[:, i])
    return model.r(spread(model, x[0], "altup_unembed_projections", lambda i: x[i]).mean(axis=0))
