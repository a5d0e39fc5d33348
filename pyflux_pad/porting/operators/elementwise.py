"""Arithmetic and activations, element by element, with NumPy's broadcasting."""

from __future__ import annotations

import functools
import math
from typing import Any

from ..arrays import Array, Arrays
from .table import operator

# The constants of the paper on self-normalising networks, as ONNX writes them.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@operator("Identity")
def identity(ns: Arrays, x: Array) -> Array:
    """Return x."""
    return x


@operator("Exp")
def exp(ns: Arrays, x: Array) -> Array:
    """e^x."""
    return ns.exp(x)


@operator("Log")
def log(ns: Arrays, x: Array) -> Array:
    """Natural logarithm."""
    return ns.log(x)


@operator("Sqrt")
def sqrt(ns: Arrays, x: Array) -> Array:
    """Square root."""
    return ns.sqrt(x)


@operator("Abs")
def absolute(ns: Arrays, x: Array) -> Array:
    """Absolute value."""
    return ns.abs(x)


@operator("Neg")
def negative(ns: Arrays, x: Array) -> Array:
    """-x."""
    return -x


@operator("Erf")
def erf(ns: Arrays, x: Array) -> Array:
    """Error function."""
    return ns.erf(x)


@operator("Tanh")
def tanh(ns: Arrays, x: Array) -> Array:
    """Hyperbolic tangent."""
    return ns.tanh(x)


@operator("Sigmoid")
def sigmoid(ns: Arrays, x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return ns.sigmoid(x)


@operator("Relu")
def relu(ns: Arrays, x: Array) -> Array:
    """max(x, 0)."""
    return ns.maximum(x, ns.zeros((), x))


@operator("LeakyRelu")
def leaky_relu(ns: Arrays, x: Array, *, alpha: float = 0.01) -> Array:
    """x, or alpha x where x is negative."""
    return ns.where(x < 0, x * alpha, x)


@operator("PRelu", parameters=(1,))
def prelu(ns: Arrays, x: Array, slope: Array) -> Array:
    """x, or slope x where x is negative."""
    return ns.where(x < 0, x * slope, x)


@operator("Elu")
def elu(ns: Arrays, x: Array, *, alpha: float = 1.0) -> Array:
    """x, or alpha (e^x - 1) where x is negative."""
    return ns.where(x < 0, ns.expm1(_negative_part(ns, x)) * alpha, x)


@operator("Selu")
def selu(ns: Arrays, x: Array, *, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> Array:
    """Gamma times Elu."""
    return elu(ns, x, alpha=alpha) * gamma


def _negative_part(ns: Arrays, x: Array) -> Array:
    """min(x, 0): what is not used must not overflow, in the result or in its gradient."""
    return ns.minimum(x, ns.zeros((), x))


@operator("HardSigmoid")
def hard_sigmoid(ns: Arrays, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """Alpha x + beta, between 0 and 1."""
    return between(ns, x * alpha + beta, 0.0, 1.0)


@operator("HardSwish")
def hard_swish(ns: Arrays, x: Array) -> Array:
    """X times HardSigmoid of slope 1/6."""
    return x * hard_sigmoid(ns, x, alpha=1 / 6, beta=0.5)


@operator("Softplus")
def softplus(ns: Arrays, x: Array) -> Array:
    """log(1 + e^x), without overflow."""
    return relu(ns, x) + ns.log1p(ns.exp(-ns.abs(x)))


@operator("Mish")
def mish(ns: Arrays, x: Array) -> Array:
    """X tanh(Softplus(x))."""
    return x * ns.tanh(softplus(ns, x))


@operator("Gelu")
def gelu(ns: Arrays, x: Array, *, approximate: str = "none") -> Array:
    """X times the normal distribution's integral up to x, or its approximation by tanh."""
    if approximate == "tanh":
        return x * 0.5 * (ns.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1)
    return x * 0.5 * (ns.erf(x * math.sqrt(0.5)) + 1)


@operator("Clip")
def clip(ns: Arrays, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """At least `low`, then at most `high`."""
    if low is not None:
        x = ns.maximum(x, low)
    return x if high is None else ns.minimum(x, high)


def between(ns: Arrays, x: Array, low: float, high: float) -> Array:
    """Clip to two numbers."""
    zero = ns.zeros((), x)
    return clip(ns, x, zero + low, zero + high)


@operator("Add", parameters=(0, 1))
def add(ns: Arrays, x: Array, y: Array) -> Array:
    """X + y."""
    return x + y


@operator("Sub", parameters=(0, 1))
def subtract(ns: Arrays, x: Array, y: Array) -> Array:
    """X - y."""
    return x - y


@operator("Mul", parameters=(0, 1))
def multiply(ns: Arrays, x: Array, y: Array) -> Array:
    """X y."""
    return x * y


@operator("Div", parameters=(0, 1))
def divide(ns: Arrays, x: Array, y: Array) -> Array:
    """X / y; of integers towards zero."""
    return ns.divide(x, y)


@operator("Pow")
def power(ns: Arrays, x: Array, y: Array) -> Array:
    """x^y in the dtype of x."""
    return ns.power(x, y)


@operator("Equal")
def equal(ns: Arrays, x: Array, y: Array) -> Array:
    """Whether x equals y."""
    return x == y


@operator("Where")
def where(ns: Arrays, condition: Array, x: Array, y: Array) -> Array:
    """X where the condition holds, else y."""
    return ns.where(condition, x, y)


@operator("Sum")
def total(ns: Arrays, *arrays: Array) -> Array:
    """Sum of all inputs."""
    return functools.reduce(lambda x, y: x + y, arrays)


@operator("Mean")
def mean(ns: Arrays, *arrays: Array) -> Array:
    """Mean of all inputs."""
    return total(ns, *arrays) / len(arrays)


@operator("Max")
def maximum(ns: Arrays, *arrays: Array) -> Array:
    """Largest of all inputs."""
    return functools.reduce(ns.maximum, arrays)


@operator("Min")
def minimum(ns: Arrays, *arrays: Array) -> Array:
    """Smallest of all inputs."""
    return functools.reduce(ns.minimum, arrays)


@operator("Cast", check=lambda given: "" if given["to"] in DTYPES else f"Cast to {given['to']} is not carried")
def cast(ns: Arrays, x: Array, *, to: str) -> Array:
    """Convert to the dtype that `to` names."""
    return ns.astype(x, to)


DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
"""The dtypes that graphs carry."""


@operator("Dropout", host=(1, 2))
def dropout(ns: Arrays, x: Array, ratio: Any = None, training_mode: Any = None) -> tuple[Array, Array]:
    """Return x as it is, and a mask that keeps everything: a graph is run to predict, not to train."""
    if training_mode is not None and bool(training_mode) and (ratio is None or float(ratio) != 0):
        raise ValueError("training_mode is true, but what is dropped is random; set training_mode to false")
    return x, ns.zeros(x.shape, x) == 0
