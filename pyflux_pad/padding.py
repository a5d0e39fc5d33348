"""Padding: how much is added on every side, in every framework's dialect, and the rules that compute it.

Integers only. A padding is a tuple of ``(low, high)`` pairs, one per spatial axis, first spatial axis first; a
negative entry crops. What other frameworks write as a flat list is read by a named constructor, never guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Pairs = tuple[tuple[int, int], ...]

RULES = ("valid", "same", "same_lower", "causal")
SAME_RULES = ("tf", "onnx_upper", "onnx_lower", "torch", "jax", "flux")
CEIL_RULES = ("torch", "caffe", "caffe2", "mxnet")
MODES = ("constant", "reflect", "replicate", "circular", "symmetric")
MODES_ELSEWHERE = {
    "zeros": "constant",
    "edge": "replicate",
    "repeat": "replicate",
    "wrap": "circular",
    "periodic": "circular",
    "border": "replicate",
    "nearest": "replicate",
    "mirror": "reflect",
}
"""What other frameworks call the modes; named in the error, never taken."""


_LARGEST = 2**62


class GeometryError(ValueError):
    """Sizes that do not fit together; the message names the operation, the rule, the values and a remedy."""


def as_int(value: Any, name: str) -> int:
    """Return `value` as an int, refusing bools, floats and everything that is not exactly an integer.

    A symbolic size of torch (export, dynamic compile) passes through untouched: converting it would fix its value.
    """
    if type(value) is int:
        if not -_LARGEST < value < _LARGEST:
            raise GeometryError(f"{name}={value} does not fit in 64 bits with room to add; give a smaller number")
        return value
    if type(value).__name__ == "SymInt":
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        raise TypeError(f"{name} must be an int, got the bool {value!r}; write {int(value)} if that is what is meant")
    try:
        return as_int(operator.index(value), name)
    except TypeError:
        raise TypeError(
            f"{name} must be an int, got {value!r} of type {type(value).__name__}; sizes are whole numbers"
        ) from None


def per_axis(value: Any, ndim: int, name: str, minimum: int | None = None) -> tuple[int, ...]:
    """Return one int per spatial axis from an int (meant for every axis) or a sequence of `ndim` ints."""
    if type(value) is int:  # by far the most frequent form
        items = (as_int(value, name),) * ndim
    elif isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be an int or {ndim} ints, got the string {value!r}")
    elif _is_sequence(value):
        items = tuple(as_int(item, name) for item in value)
        if len(items) != ndim:
            raise GeometryError(
                f"{name}={value!r} has {len(items)} entries, but there are {ndim} spatial axes; "
                f"give one int, or one int per axis"
            )
    else:
        items = (as_int(value, name),) * ndim
    if minimum is not None:
        for axis, item in enumerate(items):
            if item < minimum:
                raise GeometryError(f"{name} must be at least {minimum}, got {item} on spatial axis {axis}")
    return items


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) or (hasattr(value, "tolist") and getattr(value, "ndim", 0) > 0)


def _ints(values: Iterable[Any], name: str) -> tuple[int, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} takes a sequence of ints, got {values!r}")
    return tuple(as_int(value, name) for value in values)


def _regroup(flat: tuple[int, ...]) -> Pairs:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@dataclass(frozen=True)
class Padding:
    """Zero or more cells added below and above every spatial axis; negative numbers crop.

    Parameters
    ----------
    pairs
        One ``(low, high)`` pair of ints per spatial axis, first spatial axis first: ``Padding(((0, 1), (2, 3)))`` adds
        one row at the bottom, two columns on the left and three on the right of an ``(N, C, H, W)`` array.

    Notes
    -----
    Immutable, hashable and compared by value. The constructors ``from_*`` read another framework's notation and the
    methods ``to_*`` write it; ``same``, ``causal`` and ``ceil`` compute a framework's named rule.
    """

    pairs: Pairs

    def __post_init__(self) -> None:
        if isinstance(self.pairs, (str, bytes)) or not isinstance(self.pairs, Iterable):
            raise TypeError(f"Padding takes (low, high) pairs, one per spatial axis, got {self.pairs!r}")
        pairs = []
        for axis, pair in enumerate(self.pairs):
            if not _is_sequence(pair) or isinstance(pair, (str, bytes)) or len(pair) != 2:
                raise GeometryError(
                    f"Padding takes (low, high) pairs, one per axis, got {pair!r} on axis {axis} of {self.pairs!r}; "
                    f"a flat list is read by Padding.from_onnx, Padding.from_torch or Padding.from_flux"
                )
            pairs.append((as_int(pair[0], "padding"), as_int(pair[1], "padding")))
        object.__setattr__(self, "pairs", tuple(pairs))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, axis: int) -> tuple[int, int]:
        return self.pairs[axis]

    def __repr__(self) -> str:
        return f"Padding({self.pairs})"

    @property
    def is_symmetric(self) -> bool:
        """Whether low equals high on every axis."""
        return all(low == high for low, high in self.pairs)

    # ------------------------------------------------------------------ dialects

    @classmethod
    def from_onnx(cls, pads: Iterable[int]) -> Padding:
        """Read ONNX's ``pads``: all begins, then all ends, first spatial axis first (2N ints)."""
        flat = _ints(pads, "Padding.from_onnx")
        if len(flat) % 2:
            raise GeometryError(f"Padding.from_onnx needs all begins, then all ends, got an odd number: {flat}")
        half = len(flat) // 2
        return cls(tuple(zip(flat[:half], flat[half:], strict=True)))

    def to_onnx(self) -> tuple[int, ...]:
        """Write ONNX's ``pads``: all begins, then all ends."""
        return tuple(low for low, _ in self.pairs) + tuple(high for _, high in self.pairs)

    @classmethod
    def from_torch(cls, pad: Iterable[int], axes: int) -> Padding:
        """Read the `pad` of ``torch.nn.functional.pad``: pairs, last axis first; missing leading axes get ``(0, 0)``.

        Parameters
        ----------
        pad
            ``(W_low, W_high, H_low, H_high, ...)``, at most ``2 * axes`` ints.
        axes
            Number of spatial axes.
        """
        flat = _ints(pad, "Padding.from_torch")
        axes = as_int(axes, "axes")
        if len(flat) % 2 or len(flat) > 2 * axes:
            raise GeometryError(
                f"Padding.from_torch needs pairs for at most {axes} axes, last axis first, got {len(flat)} ints: {flat}"
            )
        pairs = _regroup(flat)[::-1]
        return cls(((0, 0),) * (axes - len(pairs)) + pairs)

    def to_torch(self) -> tuple[int, ...]:
        """Write the `pad` of ``torch.nn.functional.pad``: pairs, last axis first."""
        return tuple(entry for pair in reversed(self.pairs) for entry in pair)

    @classmethod
    def from_flux(cls, pad: int | Iterable[int], axes: int) -> Padding:
        """Read the ``pad`` of Flux and NNlib, whose first axis is the width, i.e. our last spatial axis.

        Parameters
        ----------
        pad
            An int for every side; ``axes`` ints, one per axis for both sides; or ``2 * axes`` ints, pairs. So
            ``(a, b)`` is asymmetric in 1-D and symmetric on each axis in 2-D, as in NNlib (the longer reading wins).
        axes
            Number of spatial axes.
        """
        axes = as_int(axes, "axes")
        if not isinstance(pad, Iterable):
            both = as_int(pad, "Padding.from_flux")
            return cls(((both, both),) * axes)
        flat = _ints(pad, "Padding.from_flux")
        if len(flat) == 2 * axes:
            return cls(_regroup(flat)[::-1])
        if len(flat) == axes:
            return cls(tuple((entry, entry) for entry in reversed(flat)))
        raise GeometryError(
            f"Padding.from_flux needs an int, {axes} or {2 * axes} ints for {axes} axes, got {len(flat)}: {flat}"
        )

    def to_flux(self) -> tuple[int, ...]:
        """Write the 2N-tuple of Flux and NNlib: pairs, width first."""
        return self.to_torch()

    @classmethod
    def from_tf(cls, pairs: Iterable[Sequence[int]], data_format: str = "NHWC") -> Padding:
        """Read TensorFlow's explicit paddings: a pair for every array axis, in the order of `data_format`.

        Raises
        ------
        GeometryError
            If the batch or the channel axis is padded, or the number of pairs is not that of `data_format`.
        """
        rows = tuple(tuple(as_int(entry, "Padding.from_tf") for entry in pair) for pair in pairs)
        letters = _data_format(data_format)
        if len(rows) != len(letters) or any(len(row) != 2 for row in rows):
            raise GeometryError(f"Padding.from_tf needs one pair for each axis of {data_format!r}, got {rows}")
        for letter, row in zip(letters, rows, strict=True):
            if letter in "NC" and row != (0, 0):
                raise GeometryError(f"Padding.from_tf: axis {letter} of {data_format!r} cannot be padded, got {row}")
        return cls(tuple((row[0], row[1]) for letter, row in zip(letters, rows, strict=True) if letter not in "NC"))

    def to_tf(self, data_format: str | None = None) -> tuple[tuple[int, int], ...]:
        """Write TensorFlow's explicit paddings; `data_format` defaults to channels last (NWC, NHWC, NDHWC)."""
        if data_format is None:
            data_format = ("NWC", "NHWC", "NDHWC")[len(self.pairs) - 1]
        letters = _data_format(data_format)
        if len(letters) != len(self.pairs) + 2:
            raise GeometryError(f"Padding.to_tf: {data_format!r} has not {len(self.pairs)} spatial axes")
        spatial = iter(self.pairs)
        return tuple((0, 0) if letter in "NC" else next(spatial) for letter in letters)

    @classmethod
    def from_caffe2(cls, pads: Iterable[int]) -> Padding:
        """Read Caffe2's ``pads`` of a 2-D operator: top, left, bottom, right."""
        flat = _ints(pads, "Padding.from_caffe2")
        if len(flat) != 4:
            raise GeometryError(f"Padding.from_caffe2 needs (top, left, bottom, right), got {flat}")
        return cls.from_onnx(flat)

    def to_jax(self) -> Pairs:
        """Write JAX's explicit padding: ``(low, high)`` pairs, first spatial axis first."""
        return self.pairs

    # ------------------------------------------------------------------ rules

    @classmethod
    def same(
        cls,
        rule: str,
        input_size: int | Sequence[int],
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Padding:
        """Compute a framework's "same" padding for spatial sizes.

        With input n, kernel k, stride s, dilation d and extent ke = d(k-1) + 1, per axis:

        ============== ============================================ ==================================
        rule           total t                                      low side
        ============== ============================================ ==================================
        tf, onnx_upper max((ceil(n/s) - 1)s + ke - n, 0)            t // 2 (odd cell at the end)
        jax            the same                                     t // 2
        onnx_lower     the same                                     t - t // 2 (odd cell at the start)
        torch          ke - 1, stride 1 only                        t // 2
        flux           ke - 1, whatever n and s                     t - t // 2
        ============== ============================================ ==================================

        ``flux`` is ``Flux.SamePad()`` of Flux up to 0.16.11. Sizes may be ints or one int per axis.

        Raises
        ------
        GeometryError
            For a rule that is not in the table, sizes below 1, and ``torch`` with a stride above 1, as in torch.
        """
        if rule not in SAME_RULES:
            raise GeometryError(f"Padding.same knows the rules {', '.join(SAME_RULES)}, got {rule!r}")
        sizes = _common(input_size=input_size, kernel_size=kernel_size, stride=stride, dilation=dilation)
        if rule == "torch" and any(s != 1 for _, _, s, _ in sizes):
            raise GeometryError(
                f"Padding.same: torch has padding='same' for stride 1 only, got stride={stride!r}; "
                f"rule 'tf' is defined for every stride"
            )
        pairs = []
        for n, k, s, d in sizes:
            if rule in ("torch", "flux"):
                total = d * (k - 1)
            else:
                total = same_total(n, d * (k - 1) + 1, s)
            pairs.append(split_total(total, lower=rule in ("onnx_lower", "flux")))
        return cls(tuple(pairs))

    @classmethod
    def causal(cls, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1) -> Padding:
        """Compute causal padding: the first spatial axis (time) gets ``(dilation * (kernel_size - 1), 0)``.

        Further axes get ``(0, 0)``. It is the rule ``causal`` of Keras' Conv1D.
        """
        sizes = _common(kernel_size=kernel_size, dilation=dilation)
        first = (sizes[0][1] * (sizes[0][0] - 1), 0)
        return cls((first,) + ((0, 0),) * (len(sizes) - 1))

    @classmethod
    def ceil(
        cls,
        rule: str,
        input_size: int | Sequence[int],
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        padding: Any = 0,
        dilation: int | Sequence[int] = 1,
    ) -> Padding:
        """Turn a framework's ceil mode of a **max** pool into explicit pads: the high side grows by the overhang.

        An average keeps the overhang apart (it does not count in the divisor), so this is not for averages.

        Per axis, with pads (lo, hi) and r = n + lo + hi - ke, the number of windows is

        - ``torch``: ceil(r/s) + 1, less one if the last window starts at or beyond n + lo;
        - ``caffe``, ``caffe2``: as torch, but clipped only where there is padding; ``caffe2`` pads the end as its ONNX
          exporter does (``windows * s - lo - 1 + k - n``, up to s - 1 more than needed);
        - ``mxnet`` (``pooling_convention="full"``): ceil(r/s) + 1, never clipped.
        """
        if rule not in CEIL_RULES:
            raise GeometryError(f"Padding.ceil knows the rules {', '.join(CEIL_RULES)}, got {rule!r}")
        sizes = _common(input_size=input_size, kernel_size=kernel_size, stride=stride, dilation=dilation)
        declared = explicit(padding, len(sizes))
        pairs = []
        for (n, k, s, d), (low, high) in zip(sizes, declared, strict=True):
            extent = d * (k - 1) + 1
            remainder = n + low + high - extent
            if remainder < 0:
                raise GeometryError(f"Padding.ceil: the window of {extent} cells is larger than the padded input")
            windows = -(-remainder // s) + 1
            clips = rule == "torch" or (rule in ("caffe", "caffe2") and (low > 0 or high > 0))
            if clips and (windows - 1) * s >= n + low:
                windows -= 1
            if rule == "caffe2":
                pairs.append((low, windows * s - low - 1 + extent - n))
            else:
                lowest = (windows - 1) * s + extent - n - low
                pairs.append((low, min(max(high, lowest), lowest + s - 1)))
        return cls(tuple(pairs))


def same_total(n: int, extent: int, stride: int) -> int:
    """Return the total of TensorFlow's SAME: ``max((ceil(n/s) - 1)s + ke - n, 0)``, so that out = ceil(n/s).

    ``(ceil(n/s) - 1)s - n`` lies in ``[-s, -1]``: the total cannot be negative if ke >= s, nor positive if ke = 1. A
    symbolic `n` then stays free of a comparison.
    """
    if extent == 1:
        return 0
    total = (-(-n // stride) - 1) * stride + extent - n
    return total if extent >= stride else (total + abs(total)) // 2


def split_total(total: int, lower: bool) -> tuple[int, int]:
    """Split a total over both sides; the odd cell goes to the end, or to the start if `lower`."""
    half = total // 2
    return (total - half, half) if lower else (half, total - half)


def _common(**sizes: Any) -> list[tuple[int, ...]]:
    """Bring int-or-sequence arguments to a common number of axes: one tuple of ints per axis."""
    lengths = {len(value) for value in sizes.values() if _is_sequence(value) and not isinstance(value, str)}
    if len(lengths) > 1:
        raise GeometryError(f"sizes for different numbers of axes: {', '.join(f'{k}={v!r}' for k, v in sizes.items())}")
    ndim = lengths.pop() if lengths else 1
    columns = [per_axis(value, ndim, name, minimum=1) for name, value in sizes.items()]
    return list(zip(*columns, strict=True))


def _data_format(letters: str) -> str:
    known = ("NWC", "NHWC", "NDHWC", "NCW", "NCHW", "NCDHW")
    if letters not in known:
        raise GeometryError(f"data_format must be one of {', '.join(known)}, got {letters!r}")
    return letters


def explicit(padding: Any, ndim: int) -> Pairs:
    """Return `padding` as pairs: an int, one int per axis, one pair per axis, or a `Padding`.

    Raises
    ------
    GeometryError
        For a flat list of 2N ints, which frameworks read in different ways, and for a wrong number of entries.
    """
    if isinstance(padding, Padding):
        pairs = padding.pairs
    elif _is_sequence(padding) and not isinstance(padding, (str, bytes)):
        pairs = _pairs_of(tuple(padding), ndim)
    else:
        both = as_int(padding, "padding")
        return ((both, both),) * ndim
    if len(pairs) != ndim:
        raise GeometryError(
            f"padding={padding!r} is for {len(pairs)} spatial axes, but there are {ndim}; "
            f"give one (low, high) pair per axis"
        )
    return pairs


def _pairs_of(entries: tuple[Any, ...], ndim: int) -> Pairs:
    nested = [_is_sequence(entry) for entry in entries]
    if all(nested) and entries:
        return Padding(entries).pairs
    if any(nested):
        raise GeometryError(
            f"padding={entries!r} mixes ints and pairs; write a (low, high) pair for every axis, ((1, 1), (0, 2))"
        )
    flat = tuple(as_int(entry, "padding") for entry in entries)
    if len(flat) == 2 * ndim:
        raise GeometryError(_three_readings(flat, ndim))
    if len(flat) != ndim:
        raise GeometryError(
            f"padding={flat!r} has {len(flat)} entries, but there are {ndim} spatial axes; "
            f"give an int, one int per axis (both sides) or one (low, high) pair per axis"
        )
    return tuple((entry, entry) for entry in flat)


def _three_readings(flat: tuple[int, ...], ndim: int) -> str:
    readings = (
        ("all begins, then all ends (ONNX)", f"Padding.from_onnx({flat})", Padding.from_onnx(flat)),
        ("pairs, last axis first (torch F.pad)", f"Padding.from_torch({flat}, {ndim})", Padding.from_torch(flat, ndim)),
        ("pairs, width first (Flux, NNlib)", f"Padding.from_flux({flat}, {ndim})", Padding.from_flux(flat, ndim)),
    )
    lines = "".join(f"\n  {name}: {call} = {value.pairs}" for name, call, value in readings)
    return (
        f"padding={flat} is a flat list of {len(flat)} ints for {ndim} spatial axes, which frameworks read in "
        f"different ways. Say which:{lines}\n  first axis first: padding={_regroup(flat)}"
    )


def parse(padding: Any, ndim: int) -> Pairs | str:
    """Return the pairs of an explicit padding, or the name of a rule, which needs the sizes (see `apply_rule`)."""
    if isinstance(padding, str):
        if padding not in RULES:
            raise GeometryError(
                f"padding={padding!r} is no rule; the rules are {', '.join(RULES)} "
                f"(lower case; 'same' is TensorFlow's SAME and ONNX's SAME_UPPER)"
            )
        return padding
    return explicit(padding, ndim)


def apply_rule(
    rule: str, input_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Pairs:
    """Return the pairs that a rule of `RULES` gives for a convolution or a pool."""
    if rule == "valid":
        return ((0, 0),) * len(input_size)
    if rule == "causal":
        return ((dilation[0] * (kernel_size[0] - 1), 0),) + ((0, 0),) * (len(input_size) - 1)
    return tuple(
        split_total(same_total(n, d * (k - 1) + 1, s), lower=rule == "same_lower")
        for n, k, s, d in zip(input_size, kernel_size, stride, dilation, strict=True)
    )


def parse_modes(mode: Any, ndim: int, name: str, known: Sequence[str] = MODES) -> tuple[str, ...]:
    """Return one padding mode per spatial axis from a mode for all or one per axis."""
    modes = (mode,) * ndim if isinstance(mode, str) else tuple(mode) if _is_sequence(mode) else None
    if modes is None:
        raise TypeError(f"{name} must be a mode or one mode per spatial axis, got {mode!r}")
    if len(modes) != ndim:
        raise GeometryError(f"{name}={mode!r} has {len(modes)} modes, but there are {ndim} spatial axes")
    for entry in modes:
        if entry not in known:
            elsewhere = ", ".join(f"{other} is {ours}" for other, ours in MODES_ELSEWHERE.items() if ours in known)
            raise GeometryError(
                f"{name}={entry!r} is no mode; the modes are {', '.join(known)} (other frameworks' names: {elsewhere})"
            )
    return modes


def source_index(position: Any, n: Any, mode: str) -> Any:
    """Return the input cell that a position on the padded axis shows: the definition of every mode but constant.

    ``1234`` padded by 2 and 3:

    ========== =============
    reflect    32 1234 321
    replicate  11 1234 444
    circular   34 1234 123
    symmetric  21 1234 432
    ========== =============

    Amounts beyond a period go on, as in ``numpy.pad``. Reflecting an axis of length 1 repeats its cell.

    Parameters
    ----------
    position
        Positions counted from the first input cell, negative ones in the low padding: an integer array or tensor.
    n
        Length of the axis, at least 1.
    mode
        One of `MODES` but "constant".
    """
    if mode == "circular":
        return position % n
    if mode == "replicate":
        return position.clip(0, n - 1)
    if mode == "symmetric":
        return _fold(position % (2 * n), 2 * n - 1)
    if n == 1:
        return position * 0
    return _fold(position % (2 * (n - 1)), 2 * (n - 1))


def _fold(folded: Any, last: Any) -> Any:
    """Return ``min(folded, last - folded)``, the way back of a mirrored period."""
    return (last - abs(2 * folded - last)) // 2
