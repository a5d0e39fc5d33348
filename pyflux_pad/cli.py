"""The command line: ``pyflux-pad info``, ``julia``, ``pads``, ``check``, ``bench``, ``port`` and ``inspect``.

Every command first builds a record of plain values and then prints it, as tables for people or with ``--json`` for
programs. Wrong values end in one line and exit status 2; ``check``, ``bench`` and ``port`` exit with 1 if a result is
wrong.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple, NoReturn

import numpy as np

import pyflux_pad as pp
from pyflux_pad.bench import command as bench
from pyflux_pad.console import table
from pyflux_pad.porting import command as porting

SAME_RULES = ("tf", "onnx_upper", "jax", "onnx_lower", "torch", "flux")

# In results of integers a wrong pad is off by one or more, and the rounding of Winograd or FFT kernels is far smaller.
STORED_LIMIT = 1e-3
# Engines sum the same float64 products in different orders.
AGREEMENT_LIMIT = 1e-10


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 right, 1 a mismatch, 2 a wrong argument."""
    arguments = _parser().parse_args(argv)
    try:
        record = arguments.record(arguments)
    except (ValueError, pp.BackendUnavailable) as error:
        print(f"pyflux-pad {arguments.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(json.dumps(record, indent=2) if arguments.json else "\n".join(arguments.text(record)))
    return 0 if record.get("passed", True) else 1


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pyflux-pad", description="Convolution with its own padding on every side.")
    parser.add_argument("--version", action="version", version=f"pyflux-pad {pp.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_info(commands)
    _add_pads(commands)
    _add_check(commands)
    _add_julia(commands)
    bench.add_commands(commands, _add_command)
    porting.add_commands(commands, _add_command)
    return parser


def _add_command(
    commands: Any,
    name: str,
    summary: str,
    record: Callable[[argparse.Namespace], dict[str, Any]],
    text: Callable[[dict[str, Any]], Iterable[str]],
) -> argparse.ArgumentParser:
    """Add a command: `record` computes what it has to say, `text` says it to people."""
    command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.set_defaults(record=record, text=text)
    return command


# ---------------------------------------------------------------------------------------------------------------- info


def _add_info(commands: Any) -> None:
    summary = "the engines, their versions and devices, and how to get those that are missing"
    _add_command(commands, "info", summary, _info, _info_text)


def _info(_: argparse.Namespace) -> dict[str, Any]:
    engines = [
        {
            "name": engine.name,
            "available": engine.available,
            "version": engine.version,
            "device": engine.device,
            "reason": engine.reason,
            "remedy": engine.remedy,
            **({"providers": engine.providers} if engine.providers else {}),
        }
        for engine in pp.available_backends().values()
    ]
    python = ".".join(map(str, sys.version_info[:3]))
    return {"pyflux_pad": pp.__version__, "python": python, "engines": engines}


def _info_text(record: dict[str, Any]) -> Iterator[str]:
    yield f"pyflux_pad {record['pyflux_pad']}, Python {record['python']}"
    yield ""
    yield from table(
        ("engine", "status", "version", "device"),
        (
            (e["name"], "ready" if e["available"] else "missing", e["version"] or "-", e["device"] or "-")
            for e in record["engines"]
        ),
    )
    for engine in record["engines"]:
        if engine["available"] and "providers" in engine:
            yield ""
            yield f"{engine['name']} convolves with the first of these that can:"
            yield from (f"  {name}: {reason or 'there'}" for name, reason in engine["providers"].items())
        if not engine["available"]:
            yield ""
            yield f"{engine['name']} is missing: {engine['reason']}"
            yield f"  remedy: {engine['remedy']}"


# --------------------------------------------------------------------------------------------------------------- julia


def _add_julia(commands: Any) -> None:
    summary = "start Julia and say what runs: versions, project, threads, BLAS"
    command = _add_command(commands, "julia", summary, _julia, _julia_text)
    command.add_argument("--install", action="store_true", help="install Julia and NNlib first, where they are missing")


def _julia(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.install:
        from .backends.julia.runtime import install  # imports juliapkg, which not every installation has

        install()
    return dict(vars(pp.julia_info()))


def _julia_text(record: dict[str, Any]) -> Iterator[str]:
    width = max(map(len, record))
    yield from (f"{name.replace('_', ' '):{width}}  {value}" for name, value in record.items())


# ---------------------------------------------------------------------------------------------------------------- pads


class _Sizes(NamedTuple):
    """The sizes of one convolution, one entry per spatial axis."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def plan(self, padding: pp.Padding) -> Any:
        """Return the plan of a one-channel convolution of these sizes; its integers are those of every engine."""
        shapes = (1, 1, *self.input), (1, 1, *self.kernel)
        return pp.plan(*shapes, stride=self.stride, padding=padding, dilation=self.dilation, backend="numpy")


RULES: dict[str, Callable[[_Sizes], pp.Padding]] = {
    "valid": lambda sizes: pp.Padding(((0, 0),) * len(sizes.kernel)),
    "same": lambda sizes: pp.Padding.same("tf", *sizes),
    "same_lower": lambda sizes: pp.Padding.same("onnx_lower", *sizes),
    "causal": lambda sizes: pp.Padding.causal(sizes.kernel, sizes.dilation),
}


def _add_pads(commands: Any) -> None:
    command = _add_command(
        commands, "pads", "the pads of a convolution in every framework's dialect", _pads, _pads_text
    )
    command.add_argument("--input", type=int, nargs="+", required=True, metavar="N", help="spatial sizes of the input")
    command.add_argument(
        "--kernel", type=int, nargs="+", required=True, metavar="K", help="spatial sizes of the kernel"
    )
    command.add_argument(
        "--stride", type=int, nargs="+", default=[1], metavar="S", help="one for all axes, or one each"
    )
    command.add_argument(
        "--dilation", type=int, nargs="+", default=[1], metavar="D", help="one for all axes, or one each"
    )
    command.add_argument("--data-format", metavar="FORMAT", help="of --tf: NHWC (the default), NCHW, and so on")
    pads = command.add_mutually_exclusive_group(required=True)
    pads.add_argument("--rule", choices=(*RULES, *SAME_RULES), help="a rule that computes the pads")
    for option, order in (
        ("pairs", "low high, first axis first"),
        ("onnx", "all begins, then all ends"),
        ("torch", "as F.pad: low high, last axis first"),
        ("flux", "as Flux and NNlib: low high, width first; or one per axis; or one"),
        ("tf", "low high for every array axis, in the order of --data-format"),
        ("caffe2", "top left bottom right"),
    ):
        pads.add_argument(f"--{option}", type=int, nargs="+", metavar="P", help=order)


def _pads(arguments: argparse.Namespace) -> dict[str, Any]:
    sizes = _sizes(arguments)
    padding = _padding(arguments, sizes)
    plan = sizes.plan(padding)
    channels_last, channels_first = _tf_formats(len(sizes.kernel))
    return {
        **sizes._asdict(),
        "pads": {
            "pairs": padding.pairs,
            "onnx": padding.to_onnx(),
            "torch": padding.to_torch(),
            "flux": padding.to_flux(),
            "tf": {form: padding.to_tf(form) for form in (channels_last, channels_first)},
            "jax": padding.to_jax(),
        },
        "output_size": plan.output_size,
        "symmetric_equivalent": plan.symmetric_equivalent,
        "same_rules": _same_rules(sizes),
    }


def _sizes(arguments: argparse.Namespace) -> _Sizes:
    """Return the sizes given on the command line, with one stride and dilation per axis."""
    axes = len(arguments.kernel)
    if axes > 3:
        raise ValueError(f"--kernel must have one to three sizes, got {axes}")
    values = {name: getattr(arguments, name) for name in _Sizes._fields}
    for name in ("stride", "dilation"):
        if len(values[name]) == 1:
            values[name] = values[name] * axes
    for name, value in values.items():
        if len(value) != axes:
            raise ValueError(
                f"--{name} {' '.join(map(str, value))} has {len(value)} sizes for the {axes} axes of --kernel"
            )
    return _Sizes(**{name: tuple(value) for name, value in values.items()})


def _padding(arguments: argparse.Namespace, sizes: _Sizes) -> pp.Padding:
    """Return the padding given on the command line, by a rule or in one of the dialects."""
    axes = len(sizes.kernel)
    if arguments.rule:
        return RULES[arguments.rule](sizes) if arguments.rule in RULES else pp.Padding.same(arguments.rule, *sizes)
    if arguments.onnx:
        padding = pp.Padding.from_onnx(arguments.onnx)
    elif arguments.torch:
        padding = pp.Padding.from_torch(arguments.torch, axes)
    elif arguments.flux:
        padding = pp.Padding.from_flux(arguments.flux if len(arguments.flux) > 1 else arguments.flux[0], axes)
    elif arguments.tf:
        padding = pp.Padding.from_tf(_pairs(arguments.tf, "--tf"), arguments.data_format or _tf_formats(axes)[0])
    elif arguments.caffe2:
        padding = pp.Padding.from_caffe2(arguments.caffe2)
    else:
        padding = pp.Padding(_pairs(arguments.pairs, "--pairs"))
    if len(padding) != axes:
        raise ValueError(f"the pads are for {len(padding)} spatial axes, but --kernel has {axes}")
    return padding


def _pairs(flat: Sequence[int], option: str) -> tuple[tuple[int, int], ...]:
    if len(flat) % 2:
        raise ValueError(f"{option} takes pairs of low and high, got {len(flat)} ints: {' '.join(map(str, flat))}")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _tf_formats(axes: int) -> tuple[str, str]:
    """Return TensorFlow's names of the channels-last and the channels-first order."""
    spatial = ("W", "HW", "DHW")[axes - 1]
    return f"N{spatial}C", f"NC{spatial}"


def _same_rules(sizes: _Sizes) -> dict[str, Any]:
    """Return what each framework's "same" rule gives for these sizes, or why it gives nothing."""
    rules: dict[str, Any] = {}
    for rule in SAME_RULES:
        try:
            padding = pp.Padding.same(rule, *sizes)
        except pp.GeometryError as error:
            rules[rule] = {"error": str(error)}
        else:
            rules[rule] = {"pads": padding.pairs, "output_size": sizes.plan(padding).output_size}
    defined = {rule: result for rule, result in rules.items() if "pads" in result}
    for rule, result in defined.items():
        result["agrees_with"] = [
            other for other in defined if other != rule and _windows(defined[other]) == _windows(result)
        ]
    return rules


def _windows(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return what fixes a result: where the first window starts and how many there are; high pads only follow."""
    return tuple(low for low, _ in result["pads"]), result["output_size"]


def _pads_text(record: dict[str, Any]) -> Iterator[str]:
    pads = record["pads"]
    yield ", ".join(f"{name} {_by(record[name])}" for name in _Sizes._fields)
    yield ""
    dialects = [
        ("pyflux_pad, JAX", "low high pairs, first axis first", pads["pairs"]),
        ("ONNX, Caffe2" if len(pads["pairs"]) == 2 else "ONNX", "all begins, then all ends", pads["onnx"]),
        ("torch F.pad", "low high, last axis first", pads["torch"]),
        ("Flux, NNlib", "low high, width first", pads["flux"]),
        *(("TensorFlow", form, pairs) for form, pairs in pads["tf"].items()),
    ]
    yield from table(("dialect", "order", "pads"), dialects)
    yield ""
    yield f"output size           {_by(record['output_size'])}"
    symmetric = record["symmetric_equivalent"]
    yield f"symmetric equivalent  {symmetric or 'none: no symmetric padding gives this result'}"
    yield ""
    yield 'The "same" rules for these sizes:'
    yield ""
    rules = record["same_rules"]
    yield from table(
        ("rule", "pads", "output size", "same result as"),
        (
            (rule, result["pads"], _by(result["output_size"]), ", ".join(result["agrees_with"]) or "none")
            for rule, result in rules.items()
            if "pads" in result
        ),
    )
    for rule, result in rules.items():
        if "error" in result:
            yield f"{rule}: {result['error']}"


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


# --------------------------------------------------------------------------------------------------------------- check

# Every operation as a call on a case's arrays, and the name of the array that holds its result.
OPERATIONS: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "conv": (lambda a, **options: pp.conv(a["x"], a["weight"], a.get("bias"), **options), "y"),
    "conv_transpose": (lambda a, **options: pp.conv_transpose(a["x"], a["weight"], a.get("bias"), **options), "y"),
    "conv_input": (
        lambda a, **options: pp.conv_input(a["x"].shape, a["weight"], a["grad_output"], **options),
        "grad_x",
    ),
    "conv_weight": (
        lambda a, **options: pp.conv_weight(a["x"], a["weight"].shape, a["grad_output"], **options),
        "grad_weight",
    ),
}


class _Case:
    """A geometry and the integer results that a framework computed for it."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.name = record["name"]
        self.source = f"{record['framework']} {record['version']}"
        self.op = record["op"]
        self.options = {
            name: record[name]
            for name in ("stride", "dilation", "groups", "flip_kernel", "padding", "output_padding")
            if name in record
        }
        # The options that let this package's own rule compute the pads, where the framework used a rule.
        self.by_rule = {**self.options, **record["rule"]} if "rule" in record else None
        self.arrays = {
            name: np.array(array["values"], np.float32).reshape(array["shape"])
            for name, array in record["arrays"].items()
        }

    def stored(self) -> Iterator[tuple[str, dict[str, Any], np.ndarray]]:
        """Yield every operation whose result is stored, with its options and that result."""
        operations = [self.op, "conv_input", "conv_weight"] if "grad_output" in self.arrays else [self.op]
        for op in operations:
            yield op, self.options, self.arrays[OPERATIONS[op][1]]
        if self.by_rule:
            yield self.op, self.by_rule, self.arrays["y"]

    def real(self) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
        """Return the operations in which engines are compared with each other, and real operands for them."""
        random = np.random.default_rng(0)
        arrays = {name: random.standard_normal(self.arrays[name].shape) for name in ("x", "weight", "y")}
        arrays["grad_output"] = arrays.pop("y")
        arrays["bias"] = random.standard_normal(arrays["grad_output"].shape[1])
        return ("conv", "conv_input", "conv_weight") if self.op == "conv" else (self.op,), arrays


class _Result(NamedTuple):
    """One comparison: the operation, the case, how far apart two results are, and what went wrong in words."""

    op: str
    case: str
    error: float
    remark: str


def _add_check(commands: Any) -> None:
    summary = "compare every engine with stored results of other frameworks and with the other engines"
    command = _add_command(commands, "check", summary, _check, _check_text)
    command.add_argument("--backend", nargs="+", metavar="NAME", help="only these engines (default: all available)")


def _check(arguments: argparse.Namespace) -> dict[str, Any]:
    engines = _chosen(arguments.backend)
    stored = json.loads(resources.files("pyflux_pad").joinpath("reference_values.json").read_text("utf-8"))
    cases = [_Case(record) for record in stored["cases"]]
    rows: list[dict[str, Any]] = []
    for engine in engines:
        rows += _rows(_against_stored(cases, engine), engine, "stored results", STORED_LIMIT)
    for first, second in itertools.combinations(engines, 2):
        rows += _rows(_against_each_other(cases, first, second), second, first, AGREEMENT_LIMIT)
    return {
        "cases": len(cases),
        "sources": sorted({case.source for case in cases}),
        "comparisons": rows,
        "passed": all(row["passed"] for row in rows),
    }


def _chosen(names: Sequence[str] | None) -> list[str]:
    """Return the engines to check: all that can run, or those asked for, which then must run."""
    engines = pp.available_backends()
    if names is None:
        return [name for name, engine in engines.items() if engine.available]
    for name in names:
        if name not in engines:
            raise ValueError(f"--backend {name}: there is no such engine; there are {', '.join(engines)}")
        if not engines[name].available:
            raise ValueError(f"--backend {name} cannot run: {engines[name].reason}; {engines[name].remedy}")
    return list(dict.fromkeys(names))


def _against_stored(cases: Iterable[_Case], engine: str) -> Iterator[_Result]:
    for case in cases:
        for op, options, expected in case.stored():
            result = functools.partial(_computed, op, case.arrays, engine, options)
            yield _compare(op, case.name, result, lambda expected=expected: expected)


def _against_each_other(cases: Iterable[_Case], first: str, second: str) -> Iterator[_Result]:
    for case in cases:
        operations, arrays = case.real()
        for op in operations:
            results = [functools.partial(_computed, op, arrays, engine, case.options) for engine in (second, first)]
            yield _compare(op, case.name, *results)


def _computed(op: str, arrays: dict[str, np.ndarray], engine: str, options: dict[str, Any]) -> np.ndarray:
    """Return an operation's result; CuPy's engine is given CuPy arrays."""
    if engine != "cupy":
        return OPERATIONS[op][0](arrays, backend=engine, **options)
    import cupy  # type: ignore

    there = {name: cupy.asarray(array) for name, array in arrays.items()}
    return cupy.asnumpy(OPERATIONS[op][0](there, backend=engine, **options))


def _compare(op: str, case: str, result: Callable[[], np.ndarray], expected: Callable[[], np.ndarray]) -> _Result:
    """Compare two computations; a missing, misshapen or non-finite result is infinitely wrong."""
    try:
        got, want = result(), expected()
    except Exception as error:  # An engine that breaks is a finding of this command, not its end.
        return _Result(op, case, math.inf, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    if got.shape != want.shape:
        return _Result(op, case, math.inf, f"shape {got.shape} instead of {want.shape}")
    error = float(np.abs(got - want).max(initial=0))
    return _Result(op, case, error if math.isfinite(error) else math.inf, f"error {error:.3g}")


def _rows(results: Iterable[_Result], engine: str, against: str, limit: float) -> Iterator[dict[str, Any]]:
    """Yield one row per operation: the worst error, and the comparisons beyond `limit`."""
    by_op: dict[str, list[_Result]] = {}
    for result in results:
        by_op.setdefault(result.op, []).append(result)
    for op, of_op in by_op.items():
        worst = max(result.error for result in of_op)
        yield {
            "op": op,
            "engine": engine,
            "against": against,
            "comparisons": len(of_op),
            # JSON has no infinity; null says that there was no usable result.
            "worst_error": worst if math.isfinite(worst) else None,
            "passed": worst <= limit,
            "mismatches": [{"case": result.case, "remark": result.remark} for result in of_op if result.error > limit],
        }


def _check_text(record: dict[str, Any]) -> Iterator[str]:
    yield f"{record['cases']} cases computed by {', '.join(record['sources'])}"
    yield ""
    rows = record["comparisons"]
    yield from table(
        ("operation", "engine", "against", "comparisons", "worst error", "verdict"),
        (
            (
                row["op"],
                row["engine"],
                row["against"],
                row["comparisons"],
                "no result" if row["worst_error"] is None else f"{row['worst_error']:.2g}",
                "right" if row["passed"] else "MISMATCH",
            )
            for row in rows
        ),
    )
    yield ""
    for row in rows:
        for mismatch in row["mismatches"]:
            yield f"{row['op']} on {row['engine']} against {row['against']}: {mismatch['case']}: {mismatch['remark']}"
    yield "every engine is right" if record["passed"] else "an engine is wrong"
