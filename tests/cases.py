"""The geometries every test draws from: one table of named cases and one generator of random ones.

The generator asks for integers only, so the same code serves a seeded NumPy generator (`random_cases`) and hypothesis
(`conv_cases`, `transposed_cases`). Kernels are hardly ever square and pads hardly ever equal: a swapped axis or a
swapped side must not go unseen.
"""

import dataclasses
import itertools
import zlib

import numpy as np
from hypothesis import strategies as st

Pairs = tuple[tuple[int, int], ...]
Ints = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ConvCase:
    """A convolution: sizes and settings, one entry per spatial axis, first axis first."""

    name: str
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    padding: Pairs
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    channels: tuple[int, int] = (2, 3)
    """Input and output channels of one group."""
    batch: int = 2
    flip_kernel: bool = False

    def __str__(self):
        return self.name

    @property
    def effective(self):
        """The kernel's extent once dilated."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def _span(self):
        """How far the first tap of the last window may be from the first tap of the first, before the stride."""
        return tuple(n + lo + hi - ke for n, ke, (lo, hi) in zip(self.size, self.effective, self.padding, strict=True))

    @property
    def out(self):
        return tuple(span // s + 1 for span, s in zip(self._span, self.stride, strict=True))

    @property
    def leftover(self):
        """The cells at the high end that no window reaches."""
        return tuple(span % s for span, s in zip(self._span, self.stride, strict=True))

    @property
    def x_shape(self):
        return (self.batch, self.groups * self.channels[0], *self.size)

    @property
    def weight_shape(self):
        return (self.groups * self.channels[1], self.channels[0], *self.kernel)

    @property
    def y_shape(self):
        return (self.batch, self.groups * self.channels[1], *self.out)

    @property
    def arguments(self):
        """The keyword arguments of the package's functions and of the oracle's."""
        names = ("stride", "padding", "dilation", "groups", "flip_kernel")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class TransposedCase(ConvCase):
    """A transposed convolution: `padding` crops the full output, `output_padding` adds at its high side."""

    output_padding: tuple[int, ...] = (0,)

    @property
    def _full(self):
        return tuple((n - 1) * s + ke for n, s, ke in zip(self.size, self.stride, self.effective, strict=True))

    @property
    def out(self):
        rows = zip(self._full, self.padding, self.output_padding, strict=True)
        return tuple(full - lo - hi + extra for full, (lo, hi), extra in rows)

    @property
    def leftover(self):
        """The cells of the output past the last window of the convolution it transposes."""
        return self.output_padding

    @property
    def weight_shape(self):
        return (self.groups * self.channels[0], self.channels[1], *self.kernel)

    @property
    def arguments(self):
        return {**super().arguments, "output_padding": self.output_padding}


def _case(
    name, size, kernel, padding, stride: Ints = 1, dilation: Ints = 1, *, output_padding=None, flip=False, **rest
):
    """Build a case from ints (for every axis) or tuples; `output_padding` makes it a transposed one."""

    def spread(value):
        return (value,) * len(size) if isinstance(value, int) else value

    settings = (name, size, kernel, padding, spread(stride), spread(dilation))
    if output_padding is None:
        return ConvCase(*settings, flip_kernel=flip, **rest)
    return TransposedCase(*settings, flip_kernel=flip, output_padding=spread(output_padding), **rest)


CONV_CASES = (
    # One axis.
    _case("1d_plain", (7,), (3,), ((0, 0),)),
    _case("1d_high_only", (6,), (3,), ((0, 2),)),
    _case("1d_low_only", (6,), (4,), ((3, 0),), 2),
    _case("1d_causal_dilated", (9,), (3,), ((4, 0),), dilation=2),
    _case("1d_leftover", (10,), (3,), ((1, 0),), 3),
    _case("1d_stride_above_kernel", (11,), (2,), ((1, 2),), 4),
    _case("1d_kernel_above_input", (3,), (5,), ((1, 3),)),
    _case("1d_pad_above_kernel", (4,), (2,), ((3, 5),), 2),
    _case("1d_crop_both", (9,), (3,), ((-1, -2),)),
    _case("1d_crop_low_pad_high", (8,), (3,), ((-2, 3),), 2, 2),
    _case("1d_flip", (7,), (4,), ((2, 1),), flip=True),
    _case("1d_groups", (8,), (3,), ((0, 1),), 2, groups=3),
    _case("1d_one_pixel", (1,), (1,), ((3, 0),), 3, channels=(1, 1), batch=1),
    # Two axes.
    _case("2d_plain", (5, 6), (3, 2), ((0, 0), (0, 0))),
    _case("2d_symmetric", (5, 6), (3, 5), ((1, 1), (2, 2))),
    _case("2d_four_sides", (5, 7), (3, 4), ((1, 2), (3, 0))),
    _case("2d_corner", (6, 5), (4, 5), ((3, 0), (4, 0))),
    _case("2d_slack", (6, 8), (3, 2), ((1, 0), (0, 1)), (2, 3)),
    _case("2d_leftover", (7, 9), (2, 3), ((0, 1), (2, 0)), (3, 4)),
    _case("2d_stride_above_kernel", (7, 8), (1, 2), ((1, 0), (0, 3)), (3, 5)),
    _case("2d_dilated", (8, 9), (3, 2), ((2, 1), (0, 3)), dilation=(2, 3)),
    _case("2d_dilated_strided", (9, 7), (2, 3), ((1, 3), (2, 0)), (2, 1), (3, 2)),
    _case("2d_kernel_above_input", (2, 3), (4, 5), ((1, 2), (3, 1))),
    _case("2d_pad_above_kernel", (3, 2), (2, 1), ((4, 0), (1, 3)), (1, 2)),
    _case("2d_crop", (8, 7), (3, 2), ((-1, 0), (-2, -1))),
    _case("2d_crop_one_pad_other", (8, 6), (2, 3), ((-3, 2), (1, -1)), (2, 1), flip=True),
    _case("2d_groups", (5, 6), (3, 2), ((2, 0), (0, 1)), (1, 2), groups=2, channels=(3, 2)),
    _case("2d_depthwise", (6, 5), (2, 3), ((0, 1), (2, 1)), (2, 1), groups=4, channels=(1, 2)),
    _case("2d_flip_groups_dilated", (7, 8), (3, 2), ((3, 1), (0, 2)), (2, 3), (1, 2), groups=2, flip=True),
    # Three axes.
    _case("3d_plain", (3, 4, 5), (2, 3, 2), ((0, 0), (0, 0), (0, 0)), channels=(1, 2)),
    _case("3d_six_sides", (3, 4, 2), (2, 3, 2), ((1, 0), (0, 2), (1, 2)), channels=(2, 2)),
    _case("3d_strided", (5, 4, 6), (3, 2, 1), ((0, 2), (1, 0), (0, 1)), (2, 3, 4), channels=(2, 1)),
    _case("3d_dilated_groups", (5, 4, 3), (2, 1, 2), ((1, 2), (0, 0), (3, 0)), 1, (3, 1, 2), groups=2, channels=(2, 2)),
    _case("3d_crop_flip", (5, 3, 4), (2, 2, 3), ((-1, 0), (2, -1), (1, 2)), (1, 2, 1), flip=True, channels=(2, 2)),
)

TRANSPOSED_CASES = (
    # One axis.
    _case("1d_plain_t", (5,), (3,), ((0, 0),), output_padding=0),
    _case("1d_strided_t", (4,), (3,), ((0, 0),), 2, output_padding=1),
    _case("1d_crop_low_t", (5,), (4,), ((2, 0),), 2, output_padding=0),
    _case("1d_crop_high_t", (5,), (4,), ((0, 3),), 2, output_padding=1),
    _case("1d_stride_above_kernel_t", (4,), (2,), ((1, 0),), 4, output_padding=3),
    _case("1d_dilated_t", (5,), (3,), ((1, 3),), 1, 3, output_padding=2),
    _case("1d_crop_above_kernel_t", (6,), (2,), ((3, 1),), 2, output_padding=1),
    _case("1d_zeros_both_sides_t", (3,), (2,), ((-2, -1),), 2, output_padding=0),
    _case("1d_zeros_high_crop_low_t", (4,), (3,), ((2, -3),), 3, output_padding=2),
    _case("1d_flip_t", (5,), (4,), ((1, 0),), 3, output_padding=2, flip=True),
    _case("1d_groups_t", (4,), (3,), ((0, 1),), 2, groups=3, output_padding=1),
    _case("1d_one_pixel_t", (1,), (1,), ((0, 0),), 3, output_padding=2, channels=(1, 1), batch=1),
    # Two axes.
    _case("2d_plain_t", (3, 4), (3, 2), ((0, 0), (0, 0)), output_padding=0),
    _case("2d_symmetric_t", (3, 4), (3, 4), ((1, 1), (2, 2)), 2, output_padding=(1, 0)),
    _case("2d_four_sides_t", (4, 3), (4, 3), ((1, 2), (0, 1)), (2, 3), output_padding=(0, 2)),
    _case("2d_same_upper_t", (3, 4), (4, 3), ((1, 1), (0, 1)), 2, output_padding=0),
    _case("2d_corner_t", (3, 3), (4, 5), ((3, 0), (4, 0)), (1, 2), output_padding=(0, 1)),
    _case("2d_stride_above_kernel_t", (3, 4), (1, 2), ((0, 1), (2, 0)), (3, 4), output_padding=(2, 1)),
    _case("2d_dilated_t", (4, 3), (2, 3), ((1, 0), (0, 3)), 1, (3, 2), output_padding=(2, 1)),
    _case("2d_dilated_strided_t", (3, 4), (3, 2), ((2, 1), (0, 2)), (2, 1), (1, 3), output_padding=(1, 2)),
    _case("2d_crop_above_kernel_t", (4, 5), (2, 1), ((3, 0), (1, 2)), (2, 2), output_padding=(1, 1)),
    _case("2d_zeros_t", (3, 2), (2, 3), ((-1, 0), (2, -2)), (2, 2), output_padding=(0, 1)),
    _case("2d_groups_t", (4, 3), (3, 2), ((1, 0), (0, 1)), (1, 2), groups=2, channels=(3, 2), output_padding=(0, 1)),
    _case("2d_depthwise_t", (3, 4), (2, 3), ((0, 1), (2, 1)), (2, 1), groups=4, channels=(1, 2), output_padding=(1, 0)),
    _case("2d_flip_groups_t", (3, 4), (3, 2), ((0, 2), (1, 0)), (2, 3), groups=2, output_padding=(1, 2), flip=True),
    _case("2d_flip_dilated_t", (4, 3), (2, 3), ((2, 0), (0, 1)), (3, 1), (1, 2), output_padding=(2, 1), flip=True),
    # Three axes.
    _case("3d_plain_t", (2, 3, 2), (2, 3, 2), ((0, 0), (0, 0), (0, 0)), output_padding=0, channels=(2, 1)),
    _case("3d_six_sides_t", (3, 2, 3), (2, 3, 4), ((1, 0), (0, 2), (2, 1)), (2, 1, 3), output_padding=(1, 0, 2),
          channels=(1, 2)),
    _case("3d_dilated_groups_t", (2, 3, 3), (2, 1, 2), ((0, 1), (1, 0), (2, 0)), (1, 2, 1), (3, 1, 2), groups=2,
          channels=(2, 2), output_padding=(2, 1, 1)),
    _case("3d_zeros_flip_t", (2, 2, 3), (3, 2, 1), ((1, -1), (-2, 1), (0, -1)), (2, 1, 3), output_padding=(1, 0, 2),
          flip=True, channels=(2, 2)),
)


def _draw(integer, transposed, name=""):
    """Build a legal random case out of `integer(low, high)`, both ends included."""

    def chance(percent):
        return integer(1, 100) <= percent

    def pad(ke):
        if chance(12):
            return -integer(1, 2)
        return integer(ke, ke + 2) if chance(15) else integer(0, ke - 1)

    def axis():
        kernel = integer(1, 5 if axes == 1 else 4 if axes == 2 else 3)
        dilation = integer(2, 3) if chance(25) else 1
        stride = integer(1, 4)
        ke = dilation * (kernel - 1) + 1
        lo, hi = pad(ke), pad(ke)
        extra = integer(0, max(stride, dilation) - 1)
        # The smallest legal input, plus some: a convolution needs one window, and something left after a crop; of the
        # full output of a transposed one something must be left too.
        if transposed:
            least = max(1, 1 - (ke - 1 - max(lo, 0) - max(hi - extra, 0)) // stride)
        else:
            least = max(1, ke - lo - hi, 1 - min(lo, 0) - min(hi, 0))
        return least + integer(0, 4 if axes == 1 else 3 - axes), kernel, (lo, hi), stride, dilation, extra

    axes = (1, 1, 2, 2, 3)[integer(0, 4)]
    size, kernel, padding, stride, dilation, extra = zip(*(axis() for _ in range(axes)), strict=True)
    several = chance(35)
    case = _case(
        name, size, kernel, padding, stride, dilation,
        output_padding=extra if transposed else None,
        groups=integer(2, 3) if several else 1,
        channels=(integer(2, 3), integer(2, 3)) if several else (integer(1, 3), integer(1, 3)),
        batch=integer(1, 2),
        flip=chance(30),
    )
    assert min(case.out) >= 1, case
    return case


def random_cases(seed, count, *, transposed=False):
    """Return `count` legal random cases, the same ones for the same seed."""
    generator = np.random.default_rng(seed)

    def integer(low, high):
        return int(generator.integers(low, high, endpoint=True))

    return [_draw(integer, transposed, f"random_{seed}_{index}") for index in range(count)]


@st.composite
def conv_cases(draw, transposed=False):
    """Draw legal convolutions (hypothesis)."""
    return _draw(lambda low, high: draw(st.integers(low, high)), transposed)


def transposed_cases():
    """Draw legal transposed convolutions (hypothesis)."""
    return conv_cases(transposed=True)


LEAST_COVERAGE = 0.15


def coverage(cases):
    """Return the share of the cases that has each of the properties that have hidden bugs before."""
    checks = {
        "lo != hi": lambda c: any(lo != hi for lo, hi in c.padding),
        "leftover > 0": lambda c: any(c.leftover),
        "a negative pad": lambda c: any(pad < 0 for pair in c.padding for pad in pair),
        "a pad >= the dilated kernel": lambda c: any(
            max(pair) >= ke for pair, ke in zip(c.padding, c.effective, strict=True)),
        "dilation > 1": lambda c: any(
            d > 1 and k > 1 for k, d in zip(c.kernel, c.dilation, strict=True)),
        "groups of several channels": lambda c: c.groups > 1 and min(c.channels) > 1,
        "2-D": lambda c: len(c.size) == 2,
        "3-D": lambda c: len(c.size) == 3,
    }
    return {name: sum(map(check, cases)) / len(cases) for name, check in checks.items()}


FLOATS = ("float32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int32", "int64")

_TOLERANCE = {
    # float16 is computed in float32 and rounded once: half a unit of its 11 bits, and float32's own error.
    "float16": (2.0**-11, 1e-4),
    "float32": (2e-5, 2e-5),
    "complex64": (2e-5, 2e-5),
    "float64": (1e-12, 1e-12),
    "complex128": (1e-12, 1e-12),
}


def tolerance(dtype):
    """Return the `rtol` and `atol` a result of `dtype` is held to; none for integers."""
    return _TOLERANCE.get(np.dtype(dtype).name, (0, 0))


def arrays(case, dtype, *, integers=False):
    """Return x, weight, bias and grad_output for a case, the same ones for the same name and type.

    Parameters
    ----------
    case : ConvCase
        Gives the shapes.
    dtype : str
        Any NumPy type; integer types cover their whole range, so that sums wrap around.
    integers : bool
        Draw from -3..3: every sum is exact, whatever the type.
    """
    generator = np.random.default_rng(zlib.crc32(repr(case).encode()))
    shapes = (case.x_shape, case.weight_shape, case.y_shape[1:2], case.y_shape)
    return [fill(generator, shape, dtype, integers=integers) for shape in shapes]


def fill(generator, shape, dtype, *, integers=False):
    """Return one array of small integers, normal numbers or, for an integer type, numbers of its whole range."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        parts = [fill(generator, shape, "float64", integers=integers) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if integers:
        return generator.integers(-3, 3, shape, endpoint=True).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return generator.standard_normal(shape).astype(dtype)


def check_table():
    """Refuse two cases of one name."""
    names = [case.name for case in itertools.chain(CONV_CASES, TRANSPOSED_CASES)]
    assert len(set(names)) == len(names), sorted(names)


check_table()
