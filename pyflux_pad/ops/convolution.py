"""The four operators, for any number of spatial axes from one to three."""

from __future__ import annotations

from collections.abc import Sequence

from ..geometry import shape_of
from .call import Array, Call, Ints, Modes, PaddingLike, array_shape, bind_adjoint, bind_conv, bind_transpose, public


@public("x", "weight", "bias")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: Modes = "zeros",
    detach_padding: bool = False,
    flip_kernel: bool = False,
    backend: str | None = None,
    contiguous: bool = True,
    out: Array | None = None,
) -> Call:
    """Convolve `x` with `weight`, with a different amount of padding on every side.

    Per axis, with input n, kernel k, pads (lo, hi) and extent ke = dilation * (k - 1) + 1, there are
    ``out = (n + lo + hi - ke) // stride + 1`` outputs, and in one dimension::

        y[b, o, j] = bias[o] + sum over c, i of  x[b, c, j * stride + i * dilation - lo] * weight[o, c, i]

    where x is zero outside its borders and c runs over the channels of o's group.

    Parameters
    ----------
    x
        (N, C_in, *spatial), one to three spatial axes.
    weight
        (C_out, C_in / groups, *kernel).
    bias
        (C_out,), optional.
    stride, dilation
        An int, or one int per spatial axis; at least 1.
    padding
        An int, one int per axis, one ``(low, high)`` pair per axis, a `Padding`, or a rule: ``"valid"``; ``"same"``
        (TensorFlow's SAME, ONNX's SAME_UPPER: depends on input, stride and dilation, odd cell at the end);
        ``"same_lower"``; ``"causal"`` (the first axis gets ``(dilation * (k - 1), 0)``). Negative pads crop.
    groups
        Number of groups the channels are split into.
    padding_mode
        What the padded cells hold: "zeros", "reflect", "replicate", "circular" or "symmetric" (see `pad`), for all axes
        or one per axis, as for a panorama with a circular width and a replicated height.
    detach_padding
        Whether the padded cells of a mode other than zeros send no gradient back to the cells they show; see `pad`.
    flip_kernel
        False: cross-correlation, as in torch, ONNX and JAX. True: true convolution, as NNlib and Flux do by default.
    backend
        Name of the engine; by default the array's own.
    contiguous
        Whether a result that is a slice of a larger one is copied to be contiguous (in x's memory format).
    out
        NumPy engine only: an array of the result's shape and dtype to write into; returned.

    Returns
    -------
    array
        (N, C_out, *out), the library, dtype and device of `x`.

    Raises
    ------
    GeometryError
        If sizes do not fit together.
    TypeError
        For mixed libraries, dtypes or devices.
    BackendUnavailable
        If `backend` cannot run here.

    Notes
    -----
    Gradients of every order are exact for finite operands. With infinities or NaN in x, a plan that computes more
    outputs than it keeps can put NaN into the weight gradient; outputs are the same whatever the plan.
    """
    return bind_conv(
        "conv", ("x", "weight"), x, weight, bias, backend, contiguous, out,
        stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
        padding_mode=padding_mode, detach_padding=detach_padding,
    )  # fmt: skip


@public("x", "weight", "bias")
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: PaddingLike = 0,
    output_padding: Ints = 0,
    output_size: Ints | None = None,
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: Modes = "zeros",
    flip_kernel: bool = False,
    backend: str | None = None,
) -> Call:
    """Transpose a convolution by its input: what torch calls ``conv_transpose`` and Flux ``ConvTranspose``.

    The full result has ``full = (n - 1) * stride + dilation * (k - 1) + 1`` cells per axis; `padding` crops it, side by
    side (a negative entry appends zeros), `output_padding` adds cells at the high side, so that
    ``out = full - lo - hi + output_padding``.

    Parameters
    ----------
    x
        (N, C_in, *spatial).
    weight
        (C_in, C_out / groups, *kernel).
    bias
        (C_out,), optional.
    padding
        As in `conv`, but cropping. ``"same"``: the result has ``n * stride`` cells, or `output_size`; with
        ``t = max(full + output_padding - out, 0)`` the low side loses ``t // 2`` cells (``"same_lower"``:
        ``t - t // 2``) and the high side the rest, or gains zeros. As in TensorFlow and Keras.
    output_padding
        Cells added at the high side, smaller than stride or dilation, as in torch.
    output_size
        Spatial size of the result; the low crop is kept and the high side follows. Not with `output_padding`.
    padding_mode
        "zeros" or "circular", for all axes or one per axis. Circular: what is cropped is added at the opposite end, so
        that this is the exact adjoint of `conv` with circular padding.
    stride, dilation, groups, flip_kernel, backend
        As in `conv`.

    Returns
    -------
    array
        (N, C_out, *out).

    Raises
    ------
    GeometryError, TypeError, BackendUnavailable
        As `conv`.
    """
    return bind_transpose(
        "conv_transpose", ("x", "weight"), x, weight, bias, output_padding, output_size, backend,
        stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
        padding_mode=padding_mode,
    )  # fmt: skip


@public("weight", "grad_output")
def conv_input(
    input_shape: Sequence[int],
    weight: Array,
    grad_output: Array,
    *,
    stride: Ints = 1,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    groups: int = 1,
    flip_kernel: bool = False,
    backend: str | None = None,
) -> Call:
    """Apply the bilinear transpose of `conv` by its input: the gradient by x, without conjugation.

    ``sum(conv(x, weight) * grad_output) == sum(x * conv_input(x.shape, weight, grad_output))``

    Parameters
    ----------
    input_shape
        (N, C_in, *spatial), the shape of x and of the result.
    weight
        (C_out, C_in / groups, *kernel).
    grad_output
        (N, C_out, *out), the shape of the convolution's output.
    stride, padding, dilation, groups, flip_kernel, backend
        As in `conv`.
    """
    weight_shape = array_shape("conv_input", "weight", weight)
    return bind_adjoint(
        "conv_input", "conv_input", shape_of("conv_input", "input_shape", input_shape), weight_shape,
        ("grad_output", "weight"), grad_output, weight, backend,
        stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
    )  # fmt: skip


@public("x", "grad_output")
def conv_weight(
    x: Array,
    weight_shape: Sequence[int],
    grad_output: Array,
    *,
    stride: Ints = 1,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    groups: int = 1,
    flip_kernel: bool = False,
    backend: str | None = None,
) -> Call:
    """Apply the bilinear transpose of `conv` by its weight: the gradient by the weight, without conjugation.

    ``sum(conv(x, weight) * grad_output) == sum(weight * conv_weight(x, weight.shape, grad_output))``

    Parameters
    ----------
    x
        (N, C_in, *spatial).
    weight_shape
        (C_out, C_in / groups, *kernel), the shape of the result.
    grad_output
        (N, C_out, *out), the shape of the convolution's output.
    stride, padding, dilation, groups, flip_kernel, backend
        As in `conv`.
    """
    x_shape = array_shape("conv_weight", "x", x)
    return bind_adjoint(
        "conv_weight", "conv_weight", x_shape, shape_of("conv_weight", "weight_shape", weight_shape),
        ("x", "grad_output"), x, grad_output, backend,
        stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
    )  # fmt: skip
