"""Julia in this process: found, started once, called by one thread at a time, refused after a fork, ended in order.

juliacall starts Julia and is otherwise only asked for addresses: the calls themselves go through ctypes to C functions
of the Julia package PyFluxPad and carry nothing but integers.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .. import BackendUnavailable

ABI = 2
"""Number of the agreement with the Julia half; PyFluxPad.ABI is the other one."""
UUID = "5b1c0f3e-6a0e-4f6b-9d0b-3f2a7c9e8d41"
OLDEST, NEWEST = "1.10.3", "1.13"
"""From `OLDEST` up to, not including, `NEWEST`: earlier ones break when embedded, 1.13.0 has a faulty safepoint."""
OLDEST_NNLIB = "0.9.30"
ENTRIES = {
    "conv": 3, "conv_input": 3, "conv_weight": 3, "pad": 4, "pad_transpose": 3, "pool_sum": 3,
    "pool_sum_transpose": 3, "max_pool": 4, "max_pool_transpose": 3,
}  # fmt: skip
"""The entry points in the order of PyFluxPad.KERNELS, and how many arrays each takes."""
_DONE, _FAILED, _OUT_OF_MEMORY, _INTERRUPTED = range(4)
T = TypeVar("T")


@dataclass(frozen=True)
class JuliaInfo:
    """What runs: versions, places and threads.

    Attributes
    ----------
    julia, nnlib, flux, juliacall
        Versions; `flux` is "" where Flux is not loaded; PythonCall's is juliacall's.
    executable, project
        The Julia program and the project that its packages come from.
    threads
        Threads that Julia runs tasks on.
    blas
        The libraries behind Julia's BLAS and their number of threads.
    handle_signals
        Whether Julia handles signals; only then do other Python threads run while Julia computes.
    started_here
        Whether this package started Julia, rather than another user of juliacall, whose settings then hold.
    """

    julia: str
    nnlib: str
    flux: str
    juliacall: str
    executable: str
    project: str
    threads: int
    blas: str
    handle_signals: bool
    started_here: bool

    def __str__(self) -> str:
        """Return one line per fact."""
        return "\n".join(f"{name.replace('_', ' '):16}{value}" for name, value in vars(self).items())


class Runtime:
    """A running Julia that has PyFluxPad loaded."""

    def __init__(self, addresses: list[int], started_here: bool, courier: _Courier) -> None:
        import juliacall

        self._courier = courier
        self._thread = courier.thread or threading.get_ident()
        self.started_here = started_here
        self.config: dict[str, Any] = juliacall.CONFIG
        self.handles_signals = _handles_signals(self.config)
        # Two threads at once inside Julia need its signal handlers. Without them the GIL keeps every other user of
        # juliacall out, so it is released only with them.
        self.prototype = ctypes.CFUNCTYPE if self.handles_signals else ctypes.PYFUNCTYPE
        *kernels, message, facts, flux = addresses
        self._entries = {
            name: self.prototype(ctypes.c_int32, *[ctypes.c_void_p] * (count + 1))(address)
            for (name, count), address in zip(ENTRIES.items(), kernels, strict=True)
        }
        text = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
        self._message, self._facts, self._flux = text(message), text(facts), text(flux)

    def call(self, name: str, integers: int, *arrays: int) -> None:
        """Call an entry point with the address of its integers and those of its arrays.

        Raises
        ------
        BackendUnavailable
            In a process that was forked after Julia started, and while Python shuts down.
        MemoryError, KeyboardInterrupt
            As Julia says.
        RuntimeError
            With Julia's message, for what should not happen.
        """
        status, text = self.inside(self._call, name, integers, arrays)
        if status == _DONE:
            return
        if status == _INTERRUPTED:
            raise KeyboardInterrupt
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"{name}: Julia could not allocate its workspace; use a smaller batch")
        raise RuntimeError(f"{name}: Julia says: {text}; the arguments were checked, so please report this")

    def _call(self, name: str, integers: int, arrays: tuple[int, ...]) -> tuple[int, str]:
        status = self._entries[name](integers, *arrays)
        return status, _read(self._message) if status == _FAILED else ""

    def inside(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns that calls C functions of Julia: it runs on a thread that may, alone.

        Raises
        ------
        BackendUnavailable
            In a process that was forked after Julia started, and while Python shuts down.
        """
        if threading.get_ident() == self._thread:
            return _alone(function, arguments)
        return self._courier.run(_alone, function, arguments)

    def flux_entries(self) -> list[str]:
        """Load Flux; return "ready" and a line per C function, its name and address, or a reason and its facts."""
        if not self._courier.thread and threading.get_ident() != self._thread:
            return ["thread"]  # loading waits for Julia's own tasks, which a thread that is not Julia's cannot do
        return self.inside(_read, self._flux).split("\n")

    def info(self) -> JuliaInfo:
        """Return what runs."""
        julia, nnlib, flux, project, threads, blas = self.inside(_read, self._facts).split("\n")
        executable = str(self.config.get("exepath") or "")
        return JuliaInfo(
            julia, nnlib, flux, _juliacall_version(), executable, project, int(threads), blas,
            self.handles_signals, self.started_here,
        )  # fmt: skip


def _alone(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with _state.lock:
        if _state.refusal:  # asked while the lock is held: Python may have begun to end while this thread waited
            raise BackendUnavailable(_state.refusal)
        return function(*arguments)


def _handles_signals(config: dict[str, Any]) -> bool:
    """Say whether a Julia of these settings of juliacall handles signals; left open means no."""
    return config.get("opt_handle_signals") == "yes"


class _Courier:
    """A thread that never ends and makes the calls of every thread but Julia's first.

    A thread that calls Julia is adopted by it for good, and its end runs Julia code beside whatever runs then. So there
    is one such thread at most, and it does not end.
    """

    def __init__(self) -> None:
        self.thread = 0
        """Its number, where Julia was started on it."""
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        self._started = False

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the courier's thread and return its result, or raise what it raises."""
        with _state.lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._work, name="pyflux_pad Julia", daemon=True).start()
        future: Future[Any] = Future()
        self._jobs.put((future, function, arguments))
        return future.result()

    def start_julia(self, load: Callable[[], list[int]]) -> list[int]:
        """Start Julia on the courier's thread, because the caller's may end."""
        addresses = self.run(load)
        self.thread = self.run(threading.get_ident)
        return addresses

    def _work(self) -> None:
        while True:
            future, function, arguments = self._jobs.get()
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del future, function, arguments


def _read(entry: Any) -> str:
    """Return the text that a C function of Julia's copies into a buffer."""
    buffer = ctypes.create_string_buffer(4096)
    written = entry(ctypes.addressof(buffer), len(buffer))
    return buffer.raw[:written].decode("utf-8", "replace")


class _State:
    """What this process knows of its one Julia."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.julia: Runtime | None = None
        self.refusal = ""
        """Why Julia cannot be called any more; empty while it can."""


_state = _State()


def running() -> Runtime:
    """Return the running Julia, starting it at the first call.

    Raises
    ------
    BackendUnavailable
        With the reason and the remedy, where it cannot be started, and after a fork.
    """
    found = _state.julia
    if found is not None and not _state.refusal:
        return found
    with _state.lock:
        if _state.refusal:
            raise BackendUnavailable(_state.refusal)
        if _state.julia is None:
            _state.julia = _start()
        return _state.julia


def _start() -> Runtime:
    started_here = "juliacall" not in sys.modules
    if started_here:
        lacking = missing()
        if lacking:
            raise BackendUnavailable("backend 'julia' cannot run: " + "; ".join(lacking))
    elif not _is_julias_first_thread():
        raise BackendUnavailable(
            "backend 'julia' cannot be used on this thread yet: juliacall was started on another one, whose help "
            "Julia's collector needs; call pyflux_pad.julia_info() once on that thread (as a rule the main thread)"
        )
    try:
        courier = _Courier()
        on_main_thread = threading.current_thread() is threading.main_thread()
        load = _load_with_defaults if started_here else _load
        addresses = load() if on_main_thread or not started_here else courier.start_julia(load)
        started = Runtime(addresses, started_here, courier)
    except ImportError:
        raise
    except BackendUnavailable as error:
        _state.refusal = str(error)
        raise
    except Exception as error:
        _state.refusal = _failure(error)
        raise BackendUnavailable(_state.refusal) from error
    if started_here and started.handles_signals:
        _take_back_interrupts()
    os.register_at_fork(after_in_child=_after_fork)
    # Registered after juliacall's own hook, so it runs before it: the last call ends, then no new one is let in.
    atexit.register(_before_exit)
    return started


def _load_with_defaults() -> list[int]:
    """Load with our defaults where juliacall has no settings.

    They are taken back: a child process with other numbers of threads must not inherit what was right for this one.
    """
    threads = _setting("threads") or os.environ.get("JULIA_NUM_THREADS") or "1"
    defaults = {
        "PYTHON_JULIACALL_HANDLE_SIGNALS": "no" if threads == "1" else "yes",
        "PYTHON_JULIACALL_STARTUP_FILE": "no",
    }
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        return _load()
    finally:
        for name in added:
            os.environ.pop(name, None)


def _load() -> list[int]:
    """Import juliacall, which starts Julia, load PyFluxPad and return the addresses of its entry points."""
    with warnings.catch_warnings():
        if sys.platform == "linux":
            # juliacall warns of torch imported first; on Linux both orders are tested.
            warnings.filterwarnings("ignore", "torch was imported before juliacall", UserWarning)
        import juliacall

    if not juliacall.CONFIG.get("inited"):
        raise BackendUnavailable(
            "backend 'julia' cannot run: juliacall was imported with PYTHON_JULIACALL_INIT=no, so no Julia is running; "
            "unset that variable and restart Python"
        )
    config: dict[str, Any] = juliacall.CONFIG
    evaluate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(("jl_eval_string", config["lib"]))
    # Julia reads the folder from the buffer and writes its answer there. Through juliacall's own conversions the same
    # would be compiled anew in every process, which takes longer than everything else here.
    buffer = ctypes.create_string_buffer(str(_julia_folder()).encode(), 1 << 16)
    program = _LOADER.format(
        address=ctypes.addressof(buffer), capacity=len(buffer), uuid=UUID, abi=ABI, oldest=OLDEST, newest=NEWEST,
        nnlib=OLDEST_NNLIB, signals="true" if _handles_signals(config) else "false",
    )  # fmt: skip
    found = evaluate(program.encode())
    kind, *facts = buffer.value.decode("utf-8", "replace").split("\n") if found else ["failed", "no answer"]
    if kind != "ready":
        raise BackendUnavailable(f"backend 'julia' cannot run: {_REASONS[kind](*facts)}")
    internal, *addresses = facts
    _mark_gc_safe(internal)
    return [int(address) for address in addresses]


_LOADER = """
let buffer = Ptr{{UInt8}}({address}), folder = unsafe_string(buffer), uuid = Base.UUID("{uuid}")
    function load()
        v"{oldest}" <= VERSION < v"{newest}-" || return ["version", VERSION]
        Threads.nthreads() == 1 || {signals} || return ["threads", Threads.nthreads()]
        project = something(Base.active_project(), "")
        known = Base.identify_package("PyFluxPad")
        known === nothing || known.uuid == uuid || return ["clash", known.uuid]
        known === nothing && push!(LOAD_PATH, folder)
        for name in ("NNlib", "PrecompileTools")
            package = Base.identify_package(name)
            (package === nothing || Base.locate_package(package) === nothing) && return ["missing", name, project]
        end
        nnlib = pkgversion(Base.require(Base.identify_package("NNlib")))
        nnlib < v"{nnlib}" && return ["old", nnlib]
        package = Base.require(Base.PkgId(uuid, "PyFluxPad"))
        package.ABI == {abi} || return ["other", package.ABI]
        internal = Base.Libc.Libdl.dlpath("libjulia-internal")
        return ["ready"; internal; Base.invokelatest(package.entry_points)]
    end
    answer = try
        join(load(), '\\n')
    catch error
        "failed\\n" * replace(sprint(showerror, error), '\\n' => ' ')
    end
    bytes = first(codeunits(answer), {capacity} - 1)
    GC.@preserve bytes unsafe_copyto!(buffer, pointer(bytes), length(bytes))
    unsafe_store!(buffer, 0x00, length(bytes) + 1)
    true
end
"""


_DEPOT = "; Julia stores there what it compiles: the first folder of JULIA_DEPOT_PATH must be writable"
_REASONS: dict[str, Callable[..., str]] = {
    "version": lambda found: f"this is {_wrong_version(found)}; {_OWN_JULIA}",
    "threads": lambda found: (
        f"Julia has {found} threads and PYTHON_JULIACALL_HANDLE_SIGNALS is not yes, so that its collector would crash "
        f"the process sooner or later; set it to yes, or PYTHON_JULIACALL_THREADS to 1, before Python starts"
    ),
    "clash": lambda found: (
        f"the project has another package named PyFluxPad (UUID {found}, ours is {UUID}); remove it from the project, "
        f"or point PYTHON_JULIACALL_PROJECT to one without it"
    ),
    "missing": lambda name, project: (
        f"the project {project} has no package {name}; add it: "
        f"julia --project={project} -e 'import Pkg; Pkg.add(\"{name}\")'"
    ),
    "old": lambda found: (
        f"the project has NNlib {found}, and {OLDEST_NNLIB} is the oldest that is known to be right; update it: "
        f'import Pkg; Pkg.update("NNlib")'
    ),
    "other": lambda found: (
        f"the Julia package PyFluxPad has interface {found}, this Python package needs {ABI}; both must come from the "
        f"same release, so remove the other PyFluxPad from the project"
    ),
    "failed": lambda text: f"loading PyFluxPad failed: {text[:800]}{_DEPOT if 'IOError' in text else ''}",
}
"""What the loader's answer means."""


def _julia_folder() -> Path:
    """Return the folder of the Julia package: beside this file's package in a wheel, beside the root in a checkout."""
    root = Path(__file__).resolve().parents[2]
    return next(path for path in (root / "julia", root.parent / "julia") if (path / "Project.toml").is_file())


# ---------------------------------------------------------------------- what must be there before Julia starts


def missing() -> tuple[str, str] | None:
    """Return why Julia cannot be started here and what to do, or None if nothing is known against it.

    Only a look at the settings and the file system, a fraction of a second; nothing is started.
    """
    exe, project = _setting("exe"), _setting("project")
    if (exe is None) != (project is None):
        given, other = ("EXE", "PROJECT") if project is None else ("PROJECT", "EXE")
        return f"PYTHON_JULIACALL_{given} is set but PYTHON_JULIACALL_{other} is not", _OWN_JULIA
    if exe is None or project is None:
        return _none_found()
    program = shutil.which(exe)
    if program is None:
        return f"PYTHON_JULIACALL_EXE={exe} is not a program", _OWN_JULIA
    if not Path(project).exists():
        return f"PYTHON_JULIACALL_PROJECT={project} does not exist", _OWN_JULIA
    try:
        words = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        version = words.split()[2]
        fits = _numbers(OLDEST) <= _numbers(version) < _numbers(NEWEST)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        return f"PYTHON_JULIACALL_EXE={exe} is not a working Julia ({type(error).__name__}: {error})", _OWN_JULIA
    if not fits:
        return f"PYTHON_JULIACALL_EXE={exe} is {_wrong_version(version)}", _OWN_JULIA
    return None


def _setting(name: str) -> str | None:
    """Return one of juliacall's options, from -X or from the environment, as juliacall reads it."""
    given = sys._xoptions.get(f"juliacall-{name.replace('_', '-')}") or os.environ.get(
        f"PYTHON_JULIACALL_{name.upper()}"
    )
    return given if isinstance(given, str) else None


_OWN_JULIA = (
    "to use a Julia of your own, put `julia` on the PATH, or set PYTHON_JULIACALL_EXE to it and "
    "PYTHON_JULIACALL_PROJECT to a project that has NNlib and PythonCall"
)


def _none_found() -> tuple[str, str] | None:
    """Say what to do where neither juliapkg's own Julia nor one on the PATH is there; None if one is."""
    from juliapkg.state import STATE

    program = "julia.exe" if os.name == "nt" else "julia"
    if shutil.which(str(Path(STATE["install"]) / "bin" / program)) or shutil.which("julia") or shutil.which("juliaup"):
        return None
    remedy = (
        f"\n`pyflux-pad julia --install` puts Julia, NNlib and PythonCall into {STATE['project']}: about 300 MB to "
        f"download, 1.2 GB on disk, 5 to 10 minutes, once;\n{_OWN_JULIA}"
    )
    return "there is no Julia on this machine", remedy


def _numbers(version: str) -> tuple[int, ...]:
    return tuple([int(part) for part in version.split("-")[0].split(".")])


def _wrong_version(version: str) -> str:
    return f"Julia {version}, and this package needs at least {OLDEST} and less than {NEWEST}"


def install() -> None:
    """Let juliapkg install Julia and its packages, with its own progress messages."""
    import juliapkg

    juliapkg.resolve()


def _failure(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (
        f"backend 'julia' cannot run: Julia did not start: {type(error).__name__}: {text[:800]}. Without a network set "
        f"PYTHON_JULIACALL_EXE and PYTHON_JULIACALL_PROJECT (a project that has NNlib and PythonCall "
        f"{_juliacall_version()}); the first folder of JULIA_DEPOT_PATH must be writable. Then restart Python"
    )


def _juliacall_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("juliacall")


# ---------------------------------------------------------------------- threads, fork, exit


def _is_julias_first_thread() -> bool:
    """Say whether a Julia that others started was started on this thread."""
    import juliacall

    config: dict[str, Any] = juliacall.CONFIG
    if not config.get("inited"):
        return True  # there is no Julia, which is said elsewhere
    on_a_julia_thread = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("jl_get_pgcstack", config["lib"]))
    number = ctypes.PYFUNCTYPE(ctypes.c_int16)(("jl_threadid", config["lib"]))
    return bool(on_a_julia_thread()) and number() == 0


def _mark_gc_safe(internal: str) -> None:
    """Tell Julia's collector not to wait for this thread while it runs Python.

    The thread that started Julia counts as running Julia code for ever, so a collection on another thread would wait
    for it without end. Calls into Julia from this thread set and restore the mark themselves.
    """
    library = ctypes.PyDLL(internal)
    enter = getattr(library, "jl_gc_safe_enter", None) or library.ijl_gc_safe_enter
    enter.restype, enter.argtypes = ctypes.c_int8, []
    enter()


def _take_back_interrupts() -> None:
    """Make Ctrl-C a KeyboardInterrupt again: a Julia that handles signals ends the process at it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGINT, handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _after_fork() -> None:
    import juliacall

    # What juliacall does at exit would crash here: its hook, which looks up this name, ends a Julia whose threads are
    # gone, and freeing its Julia objects calls into that Julia. They are given a reference that is never returned.
    config: dict[str, Any] = juliacall.CONFIG
    config["lib"].jl_atexit_hook = lambda status: None
    for value in vars(juliacall).values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _state.lock = threading.RLock()  # the parent's may be held by a thread that does not exist here
    _state.refusal = (
        "backend 'julia' cannot run in a process that was forked after Julia started: Julia's threads and collector do "
        "not survive a fork. Start workers by 'spawn' or 'forkserver' (torch: DataLoader(..., "
        "multiprocessing_context='spawn')), or use Julia in the workers only"
    )


def _before_exit() -> None:
    with _state.lock:
        _state.refusal = "backend 'julia' cannot run: Python is shutting down"
