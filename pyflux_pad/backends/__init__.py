"""The engines: what one must offer, where one is registered, and which one serves a call.

Arrays choose the engine. A framework is looked for in ``sys.modules`` only; naming an engine imports its framework,
nothing else does. Nothing converts silently and nothing falls back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..geometry import AdaptiveGeometry, ConvGeometry, ConvPlan, PadGeometry, PoolGeometry, Sizes

Array = Any
Windows = PoolGeometry | AdaptiveGeometry


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name cannot run here; the message gives the reason and the remedy."""


class Engine(Protocol):
    """What a backend offers for the arrays of one library. Shapes and geometry are already checked."""

    name: str
    family: str
    """The library whose arrays it computes on: "numpy", "torch" or "cupy"."""
    native_padding: bool
    """Whether `conv` takes a (low, high) pair per axis; without, the plan pads or crops."""
    takes_out: bool
    """Whether `conv` can write into an array of the caller."""

    def check(self, operation: str, arrays: dict[str, Array]) -> None:
        """Raise TypeError for dtypes, mixtures and devices that this engine does not compute."""
        ...

    def symbolic(self, *arrays: Array) -> bool:
        """Say whether a size of the arrays is symbolic (export, dynamic compile)."""
        ...

    def traced(self) -> bool:
        """Say whether Python itself is being traced (torch.compile), which cannot see through caches."""
        ...

    def itemsize(self, array: Array) -> int:
        """Bytes per element."""
        ...

    def takes_dense_pairs(self, dtype: str, device: str) -> bool:
        """Say whether `conv`, without `native_padding`, takes pairs where stride and groups are 1."""
        ...

    def records(self, *arrays: Array) -> bool:
        """Say whether a gradient by one of the arrays is being recorded."""
        ...

    def conv(
        self, plan: ConvPlan, x: Array, weight: Array, bias: Array | None, contiguous: bool, out: Array | None
    ) -> Array:
        """Return ``conv(x, weight) + bias`` as the plan says."""
        ...

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None) -> Array:
        """Return the transpose of the convolution by x applied to `grad_output`, plus `bias` per channel."""
        ...

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose of the convolution by the weight applied to `grad_output`."""
        ...

    def pad(self, geometry: PadGeometry, x: Array, value: complex) -> Array:
        """Return the padded array; `value` fills the cells of mode "constant"."""
        ...

    def pad_transpose(self, geometry: PadGeometry, grad_output: Array) -> Array:
        """Return the transpose of the padding by zeros or a mode: what added cells hold goes to the cells they show."""
        ...

    def avg_pool(self, geometry: Windows, x: Array, include_pad: bool, divisor: int | None) -> Array:
        """Return the sum of every window over its divisor."""
        ...

    def lp_pool(self, geometry: PoolGeometry, x: Array, power: float) -> Array:
        """Return ``(sum |x|^p)^(1/p)`` of every window."""
        ...

    def max_pool(self, geometry: Windows, x: Array, with_indices: bool) -> tuple[Array, Array | None]:
        """Return the maximum of every window and, if asked for, its flat index."""
        ...

    def unfold(self, geometry: PoolGeometry, x: Array) -> Array:
        """Return the cells of every window, (N, C, *kernel, *out), zeros outside the input."""
        ...

    def fold(self, geometry: PoolGeometry, columns: Array) -> Array:
        """Return the transpose of `unfold`."""
        ...


class ArrayEngine(Engine, Protocol):
    """An engine for arrays that record no gradients, NumPy's and CuPy's: what `vjp` and `out` need besides."""

    def overlaps(self, out: Array, array: Array) -> bool:
        """Say whether two arrays share memory."""
        ...

    def conjugate(self, array: Array) -> Array:
        """Return the complex conjugate; real arrays as they are."""
        ...

    def avg_pool_transpose(
        self, geometry: Windows, grad_output: Array, include_pad: bool, divisor: int | None
    ) -> Array:
        """Return the transpose of `avg_pool`."""
        ...

    def lp_pool_gradient(self, geometry: PoolGeometry, x: Array, grad_output: Array, power: float) -> Array:
        """Return the gradient of `lp_pool` by x."""
        ...

    def max_pool_transpose(self, shape: Sizes, index: Array, grad_output: Array) -> Array:
        """Send every gradient to the cell of a flat index."""
        ...

    def bias_gradient(self, grad_output: Array) -> Array:
        """Sum over the batch and the spatial axes."""
        ...


class Registration(NamedTuple):
    """Where a backend lives and what it needs; reading it imports nothing.

    Attributes
    ----------
    load
        Imports the backend's module and returns its engine. It uses a plain import statement, which torch.compile can
        trace where importlib cannot.
    framework, array_type, exact
        The library whose arrays choose this engine: its import name, the name of its array class and whether
        subclasses are refused.
    distributions
        Installed packages that may carry the framework; the first one found gives the version.
    remedy
        What to do where it is missing.
    missing
        Looks for what the framework needs besides itself; returns (reason, remedy) if that is not there.
    providers
        Says what the backend computes convolutions with, in the order of trial: "" for what is there, else the reason.
    """

    load: Callable[[], Engine]
    framework: str
    array_type: str
    exact: bool
    distributions: tuple[str, ...]
    remedy: str
    missing: Callable[[], tuple[str, str] | None] = lambda: None
    providers: Callable[[], dict[str, str]] = dict


_REGISTRY: dict[str, Registration] = {}
_FAMILIES: dict[type, str] = {}


def register(name: str, registration: Registration) -> None:
    """Make a backend known under `name`."""
    _REGISTRY[name] = registration


def _load_numpy() -> Engine:
    from .numpy import ENGINE

    return ENGINE


def _load_torch() -> Engine:
    from .torch import ENGINE

    return ENGINE


def _load_julia() -> Engine:
    from .julia import ENGINE
    from .julia.runtime import running

    if not traced():  # torch can neither trace nor needs a running Julia: the kernels start it
        running()
    return ENGINE


def _load_cupy() -> Engine:
    import cupy

    from .cupy import load

    return load(cupy)


def _missing_cupy() -> tuple[str, str] | None:
    from .cupy.presence import missing

    return missing()


def _cupy_providers() -> dict[str, str]:
    from .cupy.presence import providers

    return providers()


def _missing_julia() -> tuple[str, str] | None:
    from .julia.runtime import missing

    return missing()


register(
    "numpy",
    Registration(_load_numpy, "numpy", "ndarray", True, ("numpy",), "pip install numpy"),
)
register(
    "torch",
    Registration(_load_torch, "torch", "Tensor", False, ("torch",), "pip install 'pyflux-pad[torch]'"),
)
register(
    "julia",
    # No array chooses it: it computes on NumPy's, when it is named.
    Registration(_load_julia, "juliacall", "", True, ("juliacall",), "pip install 'pyflux-pad[julia]'", _missing_julia),
)
register(
    "cupy",
    Registration(
        _load_cupy, "cupy", "ndarray", True, ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "pip install 'pyflux-pad[cuda13]', or [cuda12], for the CUDA version of the driver", _missing_cupy,
        _cupy_providers,
    ),
)  # fmt: skip


def julia_info() -> Any:
    """Start Julia, if it is not running, and return what runs: versions, project, threads, BLAS.

    Returns
    -------
    JuliaInfo
        `julia`, `nnlib`, `flux`, `juliacall` (versions), `executable`, `project`, `threads`, `blas`,
        `handle_signals`, `started_here`; printed one per line.

    Raises
    ------
    BackendUnavailable
        If Julia cannot be started, with the reason and the remedy.
    """
    get("julia")
    from .julia.runtime import running

    return running().info()


@dataclass(frozen=True)
class BackendInfo:
    """What is known of a backend without importing its framework.

    Attributes
    ----------
    name, version, device
        Name, version of the framework ("" if missing) and where it computes.
    available, reason, remedy
        Whether it can run; if not, why, and what to do.
    providers
        What it computes convolutions with, where there is a choice: the first whose reason is "" is taken.
    """

    name: str
    version: str
    device: str
    available: bool
    reason: str = ""
    remedy: str = ""
    providers: dict[str, str] = field(default_factory=dict)


def available_backends() -> dict[str, BackendInfo]:
    """Return every registered backend with version, device and, where it is missing, the reason and the remedy."""
    return {name: _info(name, registration) for name, registration in _REGISTRY.items()}


def _info(name: str, registration: Registration) -> BackendInfo:
    import importlib.metadata  # slow to import, and only this report needs it
    import importlib.util

    if importlib.util.find_spec(registration.framework) is None:
        reason = f"the package {registration.framework} is not installed"
        return BackendInfo(name, "", "", False, reason, registration.remedy)
    version = "unknown"
    for distribution in registration.distributions:
        try:
            version = importlib.metadata.version(distribution)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    reason, remedy = registration.missing() or ("", "")
    device = _device(registration, version)
    return BackendInfo(name, version, device, not reason, reason, remedy, registration.providers())


def _device(registration: Registration, version: str) -> str:
    framework = sys.modules.get(registration.framework)
    if registration.framework == "cupy":
        return "cuda"
    if registration.framework != "torch" or version.endswith("+cpu"):
        return "cpu"
    if framework is None:
        return "cpu, and cuda where torch finds one"
    return "cpu, cuda" if framework.cuda.is_available() else "cpu"


def known(name: str, source: str) -> str:
    """Return `name` if it is a registered backend."""
    if not isinstance(name, str):
        raise TypeError(f"{source} must be the name of a backend, got {name!r}")
    if name not in _REGISTRY:
        raise ValueError(f"{source}={name!r} is no backend; there are {', '.join(_REGISTRY)}")
    return name


def get(name: str) -> Engine:
    """Return the engine of a backend, importing its framework.

    Raises
    ------
    BackendUnavailable
        If the framework is not installed or does not import.
    """
    engine = _ENGINES.get(name)
    if engine is None:
        registration = _REGISTRY[name]
        try:
            engine = registration.load()
        except ImportError as error:
            reason = _info(name, registration).reason or str(error)
            raise BackendUnavailable(f"backend {name!r} cannot run: {reason}; {registration.remedy}") from error
        if not traced():
            _ENGINES[name] = engine
    return engine


_ENGINES: dict[str, Engine] = {}
_ADAPTED: dict[tuple[str, str], Engine] = {}


def family_of(operation: str, name: str, array: Array) -> str:
    """Return the library that an array belongs to, looking only at libraries that are already imported."""
    family = _FAMILIES.get(type(array))
    if family is not None:
        return family
    for candidate, registration in _REGISTRY.items():
        cls = getattr(sys.modules.get(registration.framework), registration.array_type, None)
        if cls is None or not isinstance(array, cls):
            continue
        if registration.exact and type(array) is not cls:
            raise TypeError(
                f"{operation}: {name} is a {type(array).__module__}.{type(array).__qualname__}, a subclass whose "
                f"meaning (mask, matrix, ...) would be lost; pass a plain {registration.framework}.{cls.__name__}, "
                f"e.g. numpy.asarray({name})"
            )
        if not traced():
            _FAMILIES[type(array)] = candidate
        return candidate
    raise TypeError(
        f"{operation}: {name} is a {type(array).__module__}.{type(array).__qualname__}; it must be an array of "
        f"{', '.join(_REGISTRY)}; nothing is converted silently, so convert it first, e.g. numpy.asarray({name})"
    )


def traced() -> bool:
    """Say whether torch is tracing Python: writing to the tables above would be a side effect of the traced program."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


class _Default:
    """The engine named for the whole process: by `set_default_backend`, else by the environment at import."""

    name: str | None = None
    environment: str | None = os.environ.get("PYFLUX_PAD_BACKEND") or None


def set_default_backend(name: str | None) -> None:
    """Choose the engine for every call whose arrays it accepts; None restores "each array's own engine".

    The order is: the argument ``backend=``, this default, the environment variable PYFLUX_PAD_BACKEND (read at
    import), the array's own engine.

    Raises
    ------
    ValueError
        If there is no backend of that name.
    BackendUnavailable
        If it cannot run here.
    """
    if name is not None:
        get(known(name, "set_default_backend: name"))
    _Default.name = name


def resolve(operation: str, arrays: dict[str, Array], backend: str | None) -> Engine:
    """Return the engine that serves a call, after checking that the arrays belong together.

    Raises
    ------
    TypeError
        For mixed libraries, unknown types, an explicit backend that does not take these arrays, and what the engine's
        own check refuses.
    """
    family = ""
    for name, array in arrays.items():
        other = family_of(operation, name, array)
        if family and other != family:
            first = next(iter(arrays))
            raise TypeError(
                f"{operation}: {first} is an array of {family} but {name} is an array of {other}; "
                f"nothing is converted silently, so convert one of them"
            )
        family = other
    engine = _engine(operation, family, backend)
    engine.check(operation, arrays)
    return engine


def _engine(operation: str, family: str, backend: str | None) -> Engine:
    if backend is not None:
        engine = _adapted(known(backend, f"{operation}: backend"), family)
        if engine is None:
            raise TypeError(f"{operation}: backend {backend!r} does not take arrays of {family}")
        return engine
    default = default_name()
    if default is not None:
        engine = _adapted(default, family)
        if engine is not None:
            return engine
    return get(family)


def _adapted(name: str, family: str) -> Engine | None:
    """Return the engine `name` for arrays of `family`, through an adapter if it computes on another library's."""
    engine = get(name)
    if engine.family == family:
        return engine
    adapted = _ADAPTED.get((name, family))
    if adapted is None:
        adapted = _adapt(engine, family)
        if adapted is not None and not traced():
            _ADAPTED[(name, family)] = adapted
    return adapted


def _adapt(engine: Engine, family: str) -> Engine | None:
    """Return an engine for arrays of `family` that computes on another library's arrays, if there is one."""
    if family == "torch" and engine.family in ("numpy", "cupy"):
        from .torch_ops import CarriedEngine

        return CarriedEngine(engine.name, engine.family)
    if (family, engine.family) == ("numpy", "torch"):
        from .torch import NumpyOnTorch

        return NumpyOnTorch(engine)
    return None


def default_name() -> str | None:
    """Return the engine named for the whole process, or None."""
    if _Default.name is None and _Default.environment is not None:
        return known(_Default.environment, "the environment variable PYFLUX_PAD_BACKEND")
    return _Default.name
