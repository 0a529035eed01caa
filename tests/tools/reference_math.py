"""Activations and softmax in float64, part of reference_model.py."""

import math

import numpy as np


def sigmoid(x):
    with np.errstate(over="ignore"):  # exp(-x) = inf correctly gives 0
        return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


def gelu(x):
    return x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": lambda x: np.maximum(x, 0),
               "relu2": lambda x: np.maximum(x, 0)**2, "sigmoid": sigmoid, "softplus": softplus}
