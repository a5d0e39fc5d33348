"""Random pools, their reference, and maxima with their places."""

import dataclasses
from typing import Any

import cases
import numpy as np
import oracle_pools as oracle

import pyflux_pad as pp


@dataclasses.dataclass(frozen=True)
class PoolCase:
    """One pool: sizes and settings, one entry per spatial axis, and the kind with its own options."""

    kind: str
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    options: tuple[tuple[str, Any], ...] = ()
    nans: bool = False
    seed: int = 0

    @property
    def extent(self):
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def leftover(self):
        """Whether ceil mode adds a window on some axis."""
        rows = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return self.ceil_mode and any(
            oracle.output_size(*row, True) > oracle.output_size(*row, False) for row in rows)

    @property
    def windows(self):
        return oracle.windows(self.size, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)

    @property
    def function(self):
        return {"max": pp.max_pool, "avg": pp.avg_pool, "lp": pp.lp_pool}[self.kind]

    @property
    def arguments(self):
        return {"kernel_size": self.kernel, "stride": self.stride, "padding": self.padding, "dilation": self.dilation,
                "ceil_mode": self.ceil_mode, **dict(self.options)}

    def x(self, dtype="float64"):
        """Small integers, so that ties and all-zero windows happen, and some NaN where asked."""
        generator = np.random.default_rng(self.seed)
        x = cases.fill(generator, (1, 2, *self.size), dtype, integers=True)
        if self.nans:
            x[generator.random(x.shape) < 0.3] = np.nan
        return x

    def grad(self, shape):
        return cases.fill(np.random.default_rng(self.seed + 1), shape, "float64", integers=True)

    def expected(self, x):
        """Return the oracle's result and its gradient as a function of grad_output."""
        boxes = self.windows
        if self.kind == "max":
            return oracle.max_pool(x, boxes)[0], lambda grad: oracle.max_pool_input(x, boxes, grad)
        options = dict(self.options)
        if self.kind == "lp":
            power = options["norm_type"]
            return oracle.lp_pool(x, boxes, power), lambda grad: oracle.lp_pool_input(x, boxes, grad, power)
        divisor = options["count_include_pad"], options["divisor_override"]
        return oracle.avg_pool(x, boxes, *divisor), lambda grad: oracle.avg_pool_input(x, boxes, grad, *divisor)


KINDS = ("max", "avg", "max", "avg", "lp")


def pool_cases(seed, count, kinds=KINDS, *, negative=True, beyond=True, symmetric=False):
    """Return `count` legal random pools, the same ones for the same arguments."""
    generator = np.random.default_rng(seed)

    def integer(low, high):
        return int(generator.integers(low, high, endpoint=True))

    def axis(most):
        while True:
            n, k, s, d = integer(1, most), integer(1, 3), integer(1, 4), (1, 1, 2, 3)[integer(0, 3)]
            extent = d * (k - 1) + 1
            pair = [integer(0, k // 2 if symmetric else k - 1) for _ in range(2)]
            if symmetric:
                pair[1] = pair[0]
            if beyond and integer(0, 5) == 0:
                pair[integer(0, 1)] = integer(extent, extent + 2)
            if negative and integer(0, 5) == 0:
                pair[integer(0, 1)] = -integer(1, 2)
            pair = tuple(pair)
            left = n + min(pair[0], 0) + min(pair[1], 0)
            if left >= 1 and oracle.output_size(n, k, s, pair, d, False) >= 1:
                return n, k, s, pair, d

    drawn = []
    for index in range(count):
        axes = (1, 2, 2, 3)[integer(0, 3)]
        size, kernel, stride, padding, dilation = zip(*(axis(7 - axes) for _ in range(axes)), strict=True)
        kind = kinds[index % len(kinds)]
        options = ()
        if kind == "avg":
            options = (("count_include_pad", bool(integer(0, 1))),
                       ("divisor_override", (None, None, None, 3, -2)[integer(0, 4)]))
        elif kind == "lp":
            options = (("norm_type", (1, 1.5, 2, 2.0, 3, 4.5)[integer(0, 5)]),)
        drawn.append(PoolCase(kind, size, kernel, stride, padding, dilation, integer(0, 3) > 0, options,
                              kind == "max" and integer(0, 3) == 0, seed * 10_000 + index))
    return drawn


def with_indices(engine, x, function=pp.max_pool, **arguments):
    """Return the maxima and their indices as NumPy arrays."""
    given = x
    if engine.tensors:
        import torch

        given = torch.tensor(x)
    backend = {} if engine.backend is None else {"backend": engine.backend}
    results = function(given, return_indices=True, **arguments, **backend)
    y, where = (result.numpy() if engine.tensors else result for result in results)
    assert where.dtype == np.int64
    return y, where
