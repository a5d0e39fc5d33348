"""The four convolutions as nested loops: the definition the package is measured against.

It shares no code with the package. Every output pixel meets every kernel tap in plain Python; NumPy only multiplies the
channels of the groups for one pixel and one tap. Arithmetic is float64, complex128 or int64 (which wraps modulo
2**64, so a cast gives the exact result modulo 2**bits of any integer type). A tap that falls into the padding is
multiplied by zero, never skipped, so ``0 * inf`` is NaN here too.

Geometry is always spelled out: `stride` and `dilation` one int per axis, `padding` one ``(low, high)`` per axis.
"""

import itertools

import numpy as np


def conv(x, weight, bias=None, *, stride, padding, dilation, groups=1, flip_kernel=False):
    """Cross-correlate `x (N, C_in, *size)` with `weight (C_out, C_in/groups, *kernel)`."""
    dtype, size, kernel = _wide(x, weight), x.shape[2:], weight.shape[2:]
    out = [(n + lo + hi - d * (k - 1) - 1) // s + 1
           for n, k, (lo, hi), s, d in zip(size, kernel, padding, stride, dilation, strict=True)]
    xs = _pixels_first(x.astype(dtype), groups)
    ws = _taps_first(weight.astype(dtype), groups).swapaxes(-1, -2)  # taps, groups, in, out
    ys = np.zeros((*out, groups, len(x), ws.shape[-1]), dtype)
    outside = np.zeros(xs.shape[len(size):], dtype)
    for pixel, tap, source in _windows(out, kernel, stride, dilation, padding, flip_kernel):
        ys[pixel] += (xs[source] if _inside(source, size) else outside) @ ws[tap]
    return _finish(ys, bias)


def conv_input(input_shape, weight, grad_output, *, stride, padding, dilation, groups=1, flip_kernel=False):
    """Scatter `grad_output` back to `input_shape`: the transpose of `conv` by its first argument, no conjugate."""
    dtype, size, kernel, out = _wide(weight, grad_output), input_shape[2:], weight.shape[2:], grad_output.shape[2:]
    gs = _pixels_first(grad_output.astype(dtype), groups)
    ws = _taps_first(weight.astype(dtype), groups)  # taps, groups, out, in
    xs = np.zeros((*size, groups, input_shape[0], ws.shape[-1]), dtype)
    for pixel, tap, source in _windows(out, kernel, stride, dilation, padding, flip_kernel):
        if _inside(source, size):
            xs[source] += gs[pixel] @ ws[tap]
    return _finish(xs)


def conv_weight(x, weight_shape, grad_output, *, stride, padding, dilation, groups=1, flip_kernel=False):
    """Correlate `x` with `grad_output`: the transpose of `conv` by its second argument, no conjugate."""
    dtype, size, kernel, out = _wide(x, grad_output), x.shape[2:], weight_shape[2:], grad_output.shape[2:]
    xs = _pixels_first(x.astype(dtype), groups)
    gs = _pixels_first(grad_output.astype(dtype), groups).swapaxes(-1, -2)  # pixels, groups, out, batch
    ws = np.zeros((*kernel, groups, weight_shape[0] // groups, weight_shape[1]), dtype)
    outside = np.zeros(xs.shape[len(size):], dtype)
    for pixel, tap, source in _windows(out, kernel, stride, dilation, padding, flip_kernel):
        ws[tap] += gs[pixel] @ (xs[source] if _inside(source, size) else outside)
    return np.moveaxis(ws, (-3, -2, -1), (0, 1, 2)).reshape(weight_shape[0], weight_shape[1], *kernel)


def conv_transpose(
    x, weight, bias=None, *, stride, padding, dilation, output_padding=None, groups=1, flip_kernel=False
):
    """Spread each pixel of `x` over the full output with `weight (C_in, C_out/groups, *kernel)`, then crop.

    `padding` crops the full output side by side (a negative crop adds zeros), `output_padding` adds at the high side.
    """
    dtype, size, kernel = _wide(x, weight), x.shape[2:], weight.shape[2:]
    extra = output_padding or (0,) * len(size)
    full = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)]
    out = [f - lo - hi + e for f, (lo, hi), e in zip(full, padding, extra, strict=True)]
    xs = _pixels_first(x.astype(dtype), groups)
    ws = _taps_first(weight.astype(dtype), groups)  # taps, groups, in, out
    ys = np.zeros((*out, groups, len(x), ws.shape[-1]), dtype)
    for pixel, tap, target in _windows(size, kernel, stride, dilation, padding, flip_kernel):
        if _inside(target, out):
            ys[target] += xs[pixel] @ ws[tap]
    return _finish(ys, bias)


def _windows(pixels, kernel, stride, dilation, padding, flip_kernel):
    """Yield every (pixel, tap of the stored kernel, place it meets), the place counted from the unpadded border."""
    for pixel in itertools.product(*map(range, pixels)):
        for tap in itertools.product(*map(range, kernel)):
            place = tuple(p * s + t * d - lo
                          for p, s, t, d, (lo, _) in zip(pixel, stride, tap, dilation, padding, strict=True))
            yield pixel, tuple(k - 1 - t for k, t in zip(kernel, tap, strict=True)) if flip_kernel else tap, place


def _inside(place, size):
    return all(0 <= p < n for p, n in zip(place, size, strict=True))


def _wide(*arrays):
    """Return the type to compute in: complex128, float64 or int64."""
    kind = np.result_type(*arrays).kind
    return np.dtype({"c": np.complex128, "f": np.float64}.get(kind, np.int64))


def _pixels_first(x, groups):
    """Turn (N, C, *size) into (*size, groups, N, C/groups)."""
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return np.moveaxis(parts, (1, 0, 2), (-3, -2, -1))


def _taps_first(weight, groups):
    """Turn (groups * A, B, *kernel) into (*kernel, groups, A, B)."""
    parts = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return np.moveaxis(parts, (0, 1, 2), (-3, -2, -1))


def _finish(pixels, bias=None):
    """Turn (*size, groups, N, C/groups) back into (N, C, *size) and add the bias."""
    parts = np.moveaxis(pixels, (-2, -3, -1), (0, 1, 2))
    y = parts.reshape(parts.shape[0], parts.shape[1] * parts.shape[2], *parts.shape[3:])
    return y if bias is None else y + bias.astype(y.dtype).reshape(-1, *(1,) * (y.ndim - 2))
