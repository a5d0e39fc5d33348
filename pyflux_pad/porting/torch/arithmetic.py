"""Torch's arithmetic, activations and reductions in the neutral vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .builder import Builder, Handler, Ref, dtype_of, handles

# ---------------------------------------------------------------------- one operator for one

_PLAIN = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "hardswish": "HardSwish", "mish": "Mish", "selu": "Selu",
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "neg": "Neg", "erf": "Erf", "clone": "Identity",
    "alias": "Identity", "detach": "Identity", "lift_fresh_copy": "Identity", "contiguous": "Identity",
}  # fmt: skip


def _plain(op: str) -> Handler:
    def handler(b: Builder, result: Any, x: Ref, **_: Any) -> Ref:
        return x if op == "Identity" else b.unary(op, b.cast(x, dtype_of(result)))

    return handler


for _name, _op in _PLAIN.items():
    handles(_name)(_plain(_op))


@handles("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def _dropout(b: Builder, result: Any, x: Ref, p: float, train: bool) -> Ref:
    if train and p:
        raise b.refuse("it drops at random; call module.eval()")
    return x


# ---------------------------------------------------------------------- operators with numbers


@handles("leaky_relu")
def _leaky_relu(b: Builder, result: Any, x: Ref, negative_slope: float) -> Ref:
    return b.unary("LeakyRelu", x, alpha=float(negative_slope))


@handles("elu")
def _elu(b: Builder, result: Any, x: Ref, alpha: float, scale: float, input_scale: float) -> Ref:
    if scale != 1 or input_scale != 1:
        raise b.refuse(f"scale={scale}, input_scale={input_scale} have no counterpart")
    return b.unary("Elu", x, alpha=float(alpha))


@handles("hardsigmoid")
def _hardsigmoid(b: Builder, result: Any, x: Ref) -> Ref:
    return b.unary("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@handles("gelu")
def _gelu(b: Builder, result: Any, x: Ref, approximate: str) -> Ref:
    return b.unary("Gelu", x, approximate=approximate)


@handles("softplus")
def _softplus(b: Builder, result: Any, x: Ref, beta: float, threshold: float) -> Ref:
    if threshold < 15:  # beyond 15 the line and the curve are the same float32
        raise b.refuse(f"threshold={threshold} bends the curve; ONNX's Softplus has none")
    if beta == 1:
        return b.unary("Softplus", x)
    return b.binary("Div", b.unary("Softplus", b.binary("Mul", x, beta, x.dtype)), beta, x.dtype)


@handles("silu")
def _silu(b: Builder, result: Any, x: Ref) -> Ref:
    return b.binary("Mul", x, b.unary("Sigmoid", x), x.dtype)


@handles("log_sigmoid")
def _log_sigmoid(b: Builder, result: Any, x: Ref) -> Ref:
    return b.unary("Neg", b.unary("Softplus", b.unary("Neg", x)))


@handles("glu")
def _glu(b: Builder, result: Any, x: Ref, dim: int) -> Ref:
    value, gate = b.many("Split", [x], [tuple(result.shape)] * 2, axis=dim, num_outputs=2)
    return b.binary("Mul", value, b.unary("Sigmoid", gate), x.dtype)


@handles("prelu")
def _prelu(b: Builder, result: Any, x: Ref, weight: Ref) -> Ref:
    if weight.shape != (1,) and x.ndim > 2:  # a slope per channel
        axes = b.constant(range(1, x.ndim - 1))
        weight = b.node("Unsqueeze", [weight, axes], (*weight.shape, *(1,) * (x.ndim - 2)))
    return b.node("PRelu", [x, weight], x.shape)


@handles("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(
    b: Builder, result: Any, x: Ref, min: Any = None, max: Any = None, min_val: Any = None, max_val: Any = None
) -> Ref:
    low, high = (min, max) if min_val is None else (min_val, max_val)
    dtype = dtype_of(result)
    limits = [None if limit is None else b.operand(limit, dtype) for limit in (low, high)]
    if any(limit is not None and limit.shape for limit in limits):
        raise b.refuse("limits that are arrays have no counterpart; use maximum and minimum")
    return b.node("Clip", [b.cast(x, dtype), *limits], x.shape)


@handles("relu6")
def _relu6(b: Builder, result: Any, x: Ref) -> Ref:
    return _clamp(b, result, x, 0.0, 6.0)


@handles("rsqrt")
def _rsqrt(b: Builder, result: Any, x: Ref) -> Ref:
    return b.binary("Div", 1.0, b.unary("Sqrt", x), x.dtype)


@handles("reciprocal")
def _reciprocal(b: Builder, result: Any, x: Ref) -> Ref:
    return b.binary("Div", 1.0, x, dtype_of(result))


@handles("sign")
def _sign(b: Builder, result: Any, x: Ref) -> Ref:
    zero = b.constant(0, x.dtype)
    is_zero = b.node("Equal", [x, zero], x.shape, "bool")
    return b.node("Where", [is_zero, zero, b.binary("Div", x, b.unary("Abs", x), x.dtype)], x.shape, x.dtype)


# ---------------------------------------------------------------------- two operands


def _arithmetic(op: str) -> Handler:
    def handler(b: Builder, result: Any, x: Any, other: Any, alpha: Any = 1) -> Ref:
        dtype = dtype_of(result)
        if alpha != 1:
            other = b.binary("Mul", other, alpha, dtype)
        return b.binary(op, x, other, dtype)

    return handler


for _name, _op in {"add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min"}.items():
    handles(_name)(_arithmetic(_op))


@handles("rsub")
def _rsub(b: Builder, result: Any, x: Ref, other: Any, alpha: Any = 1) -> Ref:
    return _arithmetic("Sub")(b, result, other, x, alpha)


@handles("div.Tensor", "div.Scalar")
def _div(b: Builder, result: Any, x: Any, other: Any) -> Ref:
    return b.binary("Div", x, other, dtype_of(result))


@handles("pow")
def _power(b: Builder, result: Any, x: Any, exponent: Any) -> Ref:
    return b.binary("Pow", x, exponent, dtype_of(result))


@handles("eq")
def _equal(b: Builder, result: Any, x: Ref, other: Any) -> Ref:
    other = b.operand(other, x.dtype)
    return b.node("Equal", [x, other], result.shape, "bool")


@handles("where.self")
def _where(b: Builder, result: Any, condition: Ref, x: Any, other: Any) -> Ref:
    dtype = dtype_of(result)
    return b.node("Where", [condition, b.operand(x, dtype), b.operand(other, dtype)], result.shape, dtype)


# ---------------------------------------------------------------------- reductions


@handles("softmax", "_softmax")
def _softmax(b: Builder, result: Any, x: Ref, dim: int, **_: Any) -> Ref:
    return b.unary("Softmax", b.cast(x, dtype_of(result)), axis=dim)


@handles("log_softmax", "_log_softmax")
def _log_softmax(b: Builder, result: Any, x: Ref, dim: int, **_: Any) -> Ref:
    return b.unary("LogSoftmax", b.cast(x, dtype_of(result)), axis=dim)


def _reduction(op: str) -> Handler:
    def handler(
        b: Builder, result: Any, x: Ref, dim: Sequence[int] | int | None = None, keepdim: bool = False, **_: Any
    ) -> Ref:
        axes = [dim] if isinstance(dim, int) else dim
        inputs = [b.cast(x, dtype_of(result)), b.constant(axes) if axes else None]
        return b.node(op, inputs, result.shape, keepdims=int(keepdim))

    return handler


for _name, _op in {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin"}.items():
    handles(_name)(_reduction(_op))


@handles("linalg_vector_norm")
def _vector_norm(b: Builder, result: Any, x: Ref, ord: float, dim: Any, keepdim: bool, dtype: Any) -> Ref:
    if ord != 2:
        raise b.refuse(f"ord={ord}; only the Euclidean norm is read")
    axes = b.constant([dim] if isinstance(dim, int) else dim) if dim is not None else None
    squares = b.node("ReduceSum", [b.binary("Mul", x, x, x.dtype), axes], result.shape, keepdims=int(keepdim))
    return b.unary("Sqrt", squares)
