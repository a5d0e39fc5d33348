"""Pools as nested loops over the cells of every window in float64; nothing here comes from the package.

All functions take `x (N, C, *spatial)` and, with one entry per spatial axis, first axis first, kernel_size, stride,
dilation and padding ``((low, high), ...)``; negative pads cut. A window is a list of cells; a cell outside the (cut)
input is padding if the declared pads reach it, else the overhang of ceil mode.
"""

import functools
import itertools
import math

import numpy as np


def output_size(n, kernel, stride, padding, dilation, ceil_mode):
    """Return the number of windows of one axis, by walking: a rest gets one more window if it starts before the pad."""
    low, high = padding
    extent = dilation * (kernel - 1) + 1
    starts = list(range(-low, n + high - extent + 1, stride))
    following = len(starts) * stride - low
    if ceil_mode and following - stride + extent < n + high and following < n + min(high, 0):
        starts.append(following)
    return len(starts)


@functools.lru_cache(maxsize=4096)
def windows(size, kernel, stride, padding, dilation, ceil_mode):
    """Return per window (output index, cells inside the input, number of declared cells).

    Cells are indices into the whole input, in ascending order.
    """
    axes = []
    for n, k, s, (low, high), d in zip(size, kernel, stride, padding, dilation, strict=True):
        first, stop = max(-low, 0), n - max(-high, 0)
        axis = []
        for j in range(output_size(n, k, s, (low, high), d, ceil_mode)):
            cells = [j * s - low + tap * d for tap in range(k)]
            declared = [cell for cell in cells if cell < n + high]
            axis.append(([cell for cell in declared if first <= cell < stop], len(declared)))
        axes.append(axis)
    return tuple(
        (index,
         tuple(itertools.product(*(axis[j][0] for axis, j in zip(axes, index, strict=True)))),
         math.prod(axis[j][1] for axis, j in zip(axes, index, strict=True)))
        for index in itertools.product(*(range(len(axis)) for axis in axes)))


@functools.lru_cache(maxsize=1024)
def adaptive_windows(size, output):
    """Return torch's adaptive windows in the form of `windows`; every cell of one lies in the input."""
    axes = [[range(math.floor(j * n / out), math.ceil((j + 1) * n / out)) for j in range(out)]
            for n, out in zip(size, output, strict=True)]
    found = []
    for index in itertools.product(*map(range, output)):
        cells = tuple(itertools.product(*(axis[j] for axis, j in zip(axes, index, strict=True))))
        found.append((index, cells, len(cells)))
    return tuple(found)


def _planes(x):
    for batch, channel in itertools.product(range(x.shape[0]), range(x.shape[1])):
        yield (batch, channel), x[batch, channel]


def _shape(x, boxes):
    return (*x.shape[:2], *(last + 1 for last in boxes[-1][0]))


def max_pool(x, boxes):
    """Return the maxima and torch's indices: the first on ties, the last NaN, -1 (and -inf) where no cell is."""
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    y, where = np.empty(_shape(x, boxes), x.dtype), np.empty(_shape(x, boxes), np.int64)
    for place, plane in _planes(x):
        for index, cells, _ in boxes:
            best, at = lowest, -1
            for cell in cells:
                if at < 0 or plane[cell] > best or plane[cell] != plane[cell]:
                    best, at = plane[cell], int(np.ravel_multi_index(cell, plane.shape))
            y[place + index], where[place + index] = best, at
    return y, where


def max_pool_input(x, boxes, grad):
    """Return the gradient by x: every window's share goes to the one cell that won."""
    _, where = max_pool(x, boxes)
    dx = np.zeros(x.shape)
    for place, plane in _planes(dx):
        for index, _, _ in boxes:
            if where[place + index] >= 0:
                plane[np.unravel_index(where[place + index], plane.shape)] += grad[place + index]
    return dx


def _divisor(cells, declared, include_pad, override):
    if override is not None:
        return override
    return declared if include_pad else len(cells)


def avg_pool(x, boxes, include_pad=True, override=None):
    """Return the sums over the divisors; 0 where no cell is."""
    y = np.zeros(_shape(x, boxes))
    for place, plane in _planes(x):
        for index, cells, declared in boxes:
            if cells:
                total = sum(float(plane[cell]) for cell in cells)
                y[place + index] = total / _divisor(cells, declared, include_pad, override)
    return y


def avg_pool_input(x, boxes, grad, include_pad=True, override=None):
    """Return the gradient by x."""
    dx = np.zeros(x.shape)
    for place, plane in _planes(dx):
        for index, cells, declared in boxes:
            for cell in cells:
                plane[cell] += grad[place + index] / _divisor(cells, declared, include_pad, override)
    return dx


def lp_pool(x, boxes, power):
    """Return ``(sum |x|^p)^(1/p)``."""
    y = np.zeros(_shape(x, boxes))
    for place, plane in _planes(x):
        for index, cells, _ in boxes:
            y[place + index] = sum(abs(float(plane[cell])) ** power for cell in cells) ** (1 / power)
    return y


def lp_pool_input(x, boxes, grad, power):
    """Return the gradient by x, ``sign(x) (|x| / y)^(p - 1)``; 0 where a window is all zero."""
    y, dx = lp_pool(x, boxes, power), np.zeros(x.shape)
    for place, plane in _planes(dx):
        for index, cells, _ in boxes:
            norm = y[place + index]
            for cell in cells if norm else ():
                value = float(x[place + cell])
                if value:
                    plane[cell] += grad[place + index] * math.copysign((abs(value) / norm) ** (power - 1), value)
    return dx


def unfold(x, boxes, kernel, stride, padding, dilation):
    """Return torch's columns ``(N, C * prod(kernel), L)`` of the padded input, taps in the order of the kernel."""
    outputs = [index for index, _, _ in boxes]
    taps = list(itertools.product(*map(range, kernel)))
    columns = np.zeros((x.shape[0], x.shape[1] * len(taps), len(outputs)), x.dtype)
    for (batch, channel), plane in _planes(x):
        for row, tap in enumerate(taps):
            for column, index in enumerate(outputs):
                cell = tuple(j * s + t * d - low for j, s, t, d, (low, _)
                             in zip(index, stride, tap, dilation, padding, strict=True))
                inside = all(max(-low, 0) <= c < n - max(-high, 0)
                             for c, n, (low, high) in zip(cell, x.shape[2:], padding, strict=True))
                if inside:
                    columns[batch, channel * len(taps) + row, column] = plane[cell]
    return columns


def fold(columns, shape, boxes, kernel, stride, padding, dilation):
    """Return the transpose of `unfold`: every column entry is added to the cell it was read from."""
    numbers = np.arange(1, math.prod(shape[1:]) + 1).reshape(1, *shape[1:])
    source = unfold(numbers, boxes, kernel, stride, padding, dilation)[0]
    flat = np.zeros((shape[0], math.prod(shape[1:]) + 1), columns.dtype)
    for batch in range(shape[0]):
        for place, entry in zip(source.ravel(), columns[batch].ravel(), strict=True):
            flat[batch, place] += entry
    return flat[:, 1:].reshape(shape)
