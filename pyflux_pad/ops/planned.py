"""A convolution planned once: look at it, keep it, call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import Engine, default_name, get, known, resolve
from ..geometry import ConvPlan, Sizes, arguments, build_conv_plan, shape_of, spatial_ndim
from ..padding import GeometryError
from .call import Array, Ints, Modes, PaddingLike, check_bias, conv_modes, is_deterministic

_ITEMSIZES = {"bfloat16": 2}


class Plan:
    """A geometry with the strategy chosen for one engine: callable as ``p(x, weight, bias)``, printable as a table.

    Attributes
    ----------
    geometry
        The `ConvGeometry`: every integer of the convolution.
    backend, dtype
        The engine and the dtype it was planned for.
    strategy
        How the pads reach the engine, one name or one per axis; see the table that `print` shows.
    output_shape, output_size
        Shape of the result and its spatial part.
    slack
        Per axis the lowest and the highest high pad that give this very result.
    symmetric_equivalent
        One pad per axis which on both sides gives this very result, or None where there is none.
    copy_bytes
        Bytes written by copies beyond the result: a padded input, a slice of the output made contiguous, or a weight
        turned for PyTorch's own pairs.
    extra_work
        Multiply-adds beyond those of the result.
    """

    def __init__(self, plan: ConvPlan, x_shape: Sizes, backend: str, dtype: str, explicit: bool) -> None:
        self._plan, self._explicit = plan, explicit
        self._x_shape, self._weight_shape = x_shape, plan.geometry.weight_shape
        self._engines: dict[tuple[type, ...], Engine] = {}
        self.backend, self.dtype = backend, dtype
        self.geometry = plan.geometry
        self.strategy = plan.strategy
        self.output_shape = plan.geometry.output_shape
        self.output_size = plan.geometry.output_size
        self.slack = plan.geometry.slack
        self.symmetric_equivalent = plan.geometry.symmetric_equivalent
        self.copy_bytes = plan.copy_bytes
        self.extra_work = plan.extra_work

    def __call__(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """Run the convolution on arrays of the planned shapes."""
        engine = self._engine(x, weight, bias)
        geometry = self.geometry
        if x.shape != self._x_shape or weight.shape != self._weight_shape:
            raise GeometryError(
                f"plan: made for x {self._x_shape} and weight {geometry.weight_shape}, got {tuple(x.shape)} "
                f"and {tuple(weight.shape)}; make another one"
            )
        check_bias("plan", bias, geometry.out_channels)
        if self._plan.explicit is not None:
            x = engine.pad(self._plan.explicit, x, 0.0)
        return engine.conv(self._plan, x, weight, bias, True, None)

    def _engine(self, x: Array, weight: Array, bias: Array | None) -> Engine:
        """Return the engine for these arrays; their types are looked up once."""
        arrays = {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias}
        types = type(x), type(weight), type(bias)
        engine = self._engines.get(types)
        if engine is not None:
            engine.check("plan", arrays)
            return engine
        engine = resolve("plan", arrays, self.backend)
        if not self._explicit and engine.family != get(self.backend).family:
            raise TypeError(
                f"plan: made for the arrays of {self.backend}, but x is an array of {engine.family}; "
                f"make it with plan(..., backend={engine.family!r})"
            )
        self._engines[types] = engine
        return engine

    def __repr__(self) -> str:
        geometry = self.geometry
        rows: list[tuple[str, ...]] = [
            ("axis", "input", "kernel", "stride", "dilation", "padding", "output", "high pads alike", "strategy")
        ]
        sizes = (geometry.input_size, geometry.kernel_size, geometry.stride, geometry.dilation, geometry.padding)
        for axis, planned in enumerate(self._plan.axes):
            out, (lowest, highest) = self.output_size[axis], self.slack[axis]
            numbers = (axis, *(size[axis] for size in sizes), out)
            rows.append((*map(str, numbers), f"{lowest} .. {highest}", _explain(planned, out)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        work = geometry.batch * np.prod(self.output_size, dtype=object) * np.prod(geometry.weight_shape, dtype=object)
        symmetric = self.symmetric_equivalent
        return "\n".join(
            [
                *self._explicit_padding(),
                f"conv of x {geometry.input_shape} with weight {geometry.weight_shape} -> {self.output_shape}",
                f"on {self.backend}, {self.dtype}, groups {geometry.groups}, "
                f"{'true convolution' if geometry.flip_kernel else 'cross-correlation'}",
                *lines,
                f"equivalent symmetric padding: {'none' if symmetric is None else symmetric}",
                f"copies {_size(self.copy_bytes)}, extra work {100 * self.extra_work / max(work, 1):.2f} %",
            ]
        )

    def _explicit_padding(self) -> list[str]:
        explicit = self._plan.explicit
        if explicit is None:
            return []
        what = f"cut {explicit.cuts}, pad {explicit.pads} by {explicit.modes}{', detached' * explicit.detached}"
        return [f"x {self._x_shape} first: {what}"]


def plan(
    x_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: Ints = 1,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: Modes = "zeros",
    detach_padding: bool = False,
    flip_kernel: bool = False,
    dtype: Any = "float32",
    backend: str | None = None,
    training: bool = False,
    strategy: str | Sequence[str] | None = None,
) -> Plan:
    """Plan a convolution: check the sizes once and choose how its pads reach the engine.

    Parameters
    ----------
    x_shape, weight_shape
        (N, C_in, *spatial) and (C_out, C_in / groups, *kernel).
    stride, padding, dilation, groups, padding_mode, detach_padding, flip_kernel
        As in `conv`.
    dtype
        Name of the dtype, for the cost of copies; on PyTorch only float32 has pairs of its own.
    backend
        Engine to plan for; by default the default engine, else "numpy". Engines that take a pair of pads per axis need
        no strategy.
    training
        Whether a gradient will be taken: extra outputs, which cost more in the backward pass, are then avoided.
    strategy
        Force "symmetric", "native", "crop", "residual" or "full" on every axis, or one name per axis.

    Returns
    -------
    Plan

    Raises
    ------
    GeometryError
        If sizes do not fit together or a forced strategy cannot give this result.
    """
    name = known(backend, "plan: backend") if backend is not None else default_name() or "numpy"
    engine = get(name)
    x_shape, weight_shape = shape_of("plan", "x_shape", x_shape), shape_of("plan", "weight_shape", weight_shape)
    ndim = spatial_ndim("plan", "weight_shape", weight_shape)
    args = arguments("plan", ndim, stride, padding, dilation, groups, flip_kernel)
    label = str(dtype).rpartition(".")[2]
    try:
        itemsize = _ITEMSIZES.get(label) or np.dtype(label).itemsize
    except TypeError:
        raise TypeError(f"plan: dtype={dtype!r} is no dtype; write its name, 'float32'") from None
    training = training or is_deterministic()
    planned = build_conv_plan(
        "plan", x_shape, weight_shape, args, engine.native_padding, itemsize, training, True, False,
        conv_modes("plan", padding_mode, ndim), detach_padding,
        strategy if strategy is None or isinstance(strategy, str) else tuple(strategy),
        not (engine.native_padding or engine.traced()) and engine.takes_dense_pairs(label, "cpu"),
    )  # fmt: skip
    return Plan(planned, x_shape, name, label, backend is not None)


def _explain(planned: Any, kept: int) -> str:
    """Say in words what an axis asks of the engine."""
    parts = [planned.strategy]
    if planned.cut != (0, 0):
        parts.append(f"cut {planned.cut}")
    if planned.pad != (0, 0):
        parts.append(f"copy with {planned.pad} zeros")
    if planned.native != (0, 0):
        low, high = planned.native
        parts.append(f"engine pads {low if low == high else planned.native}")
    if planned.computed != kept:
        parts.append(f"keep {planned.skip} .. {planned.skip + kept - 1} of {planned.computed}")
    return ", ".join(parts)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
