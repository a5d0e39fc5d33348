"""Julia in a process: import orders, threads, fork, signals, exit, and every way in which it cannot start.

Each script runs in a process of its own with a time limit, because what fails here hangs or crashes.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import pyflux_pad as pp

ROOT = pathlib.Path(__file__).parents[1]
LIMIT = 120

START = """
import sys, threading, time
import numpy as np
import pyflux_pad as pp

x, w = np.arange(24, dtype=np.float32).reshape(1, 2, 12), np.ones((3, 2, 2), np.float32)
right = pp.conv(x, w, padding=((1, 0),))

def check():
    np.testing.assert_allclose(pp.conv(x, w, padding=((1, 0),), backend="julia"), right)

def check_many(times=200):
    for _ in range(times):
        check()
        np.zeros((64, 2, 4000), np.float32).sum()

def collect():
    # Workspaces of 9 MB: Julia's collector runs several times, and must not wait for a thread that runs Python.
    big = np.ones((1, 16, 128, 128), np.float32)
    for _ in range(40):
        pp.conv(big, np.ones((2, 16, 3, 3), np.float32), backend="julia")
"""

needs_julia = pytest.mark.engine("julia")
needs_torch = pytest.mark.engine("torch")


def run(script, *, status=0, env=None, unset=()):
    """Run a script; return what it printed. A hang is a failure with what was printed so far."""
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment.update({"PYTHONPATH": str(ROOT), **(env or {})})
    program = START + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True,
                          timeout=LIMIT, check=False)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


# ---------------------------------------------------------------- orders and threads


@needs_julia
@needs_torch
@pytest.mark.parametrize("first, second", [("torch", "juliacall"), ("juliacall", "torch")])
def test_import_order(first, second):
    out = run(f"""
    import {first}
    import {second}
    import torch
    check()
    t = torch.ones(2, 3, 8, requires_grad=True)
    pp.conv(t, torch.ones(2, 3, 2), padding=((1, 0),), backend="julia").sum().backward()
    assert t.grad.tolist()[0][0] == [4.0] * 7 + [2.0], t.grad
    print("started here:", pp.julia_info().started_here)
    """)
    assert "started here: False" in out


@needs_julia
@needs_torch
def test_torch_is_there_when_julia_starts():
    """No warning from a start by this package, and the right numbers."""
    out = run("""
    import warnings
    warnings.simplefilter("error")
    import torch
    check()
    print("started here:", pp.julia_info().started_here)
    """)
    assert "started here: True" in out


@needs_julia
def test_importing_starts_nothing():
    run("""
    assert "juliacall" not in sys.modules
    pp.available_backends()
    assert "juliacall" not in sys.modules
    check()
    assert "juliacall" in sys.modules
    """)


@needs_julia
@pytest.mark.parametrize("signals", ["no", "yes"])
def test_worker_thread_while_the_main_thread_waits(signals):
    run("""
    check()
    worker = threading.Thread(target=lambda: (check_many(), collect(), check_many()))
    worker.start()
    worker.join()
    check()
    """, env={"PYTHON_JULIACALL_HANDLE_SIGNALS": signals})


@needs_julia
@pytest.mark.parametrize("signals", ["no", "yes"])
def test_four_threads(signals):
    run("""
    from concurrent.futures import ThreadPoolExecutor
    check()
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(f) for f in (check_many, collect) * 4]:
            future.result()
    check()
    """, env={"PYTHON_JULIACALL_HANDLE_SIGNALS": signals})


@needs_julia
def test_four_threads_start_it_together():
    run("""
    barrier, errors = threading.Barrier(4), []
    def work():
        barrier.wait()
        try:
            check_many(20); collect()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert not errors, errors
    check(); collect()
    """)


@needs_julia
def test_first_use_on_a_thread_that_ends():
    run("""
    first = threading.Thread(target=check)
    first.start(); first.join()
    check_many(); collect()
    second = threading.Thread(target=lambda: (check_many(), collect()))
    second.start(); second.join()
    print(pp.julia_info())
    """)


@needs_julia
def test_many_short_lived_threads():
    """A thread that called Julia would be Julia's for good; only one of ours ever does."""
    out = run("""
    check()
    for _ in range(50):
        thread = threading.Thread(target=lambda: check_many(3))
        thread.start(); check(); thread.join()
    import juliacall
    print("threads:", juliacall.Main.seval("Threads.maxthreadid()"))
    """)
    assert "threads: 2" in out


@needs_julia
def test_several_julia_threads():
    out = run("""
    check(); collect()
    worker = threading.Thread(target=lambda: (check_many(), collect()))
    worker.start(); collect(); worker.join()
    grouped = np.ones((4, 8, 40), np.float32)
    y = pp.conv(grouped, np.ones((8, 2, 3), np.float32), groups=4, backend="julia")
    assert (y == 6).all()
    print("threads:", pp.julia_info().threads, pp.julia_info().handle_signals)
    """, env={"PYTHON_JULIACALL_THREADS": "2"})
    assert "threads: 2 True" in out


@needs_julia
def test_several_julia_threads_without_signals():
    """Julia's collector stops its other threads by a signal, so this would crash sooner or later."""
    out = run(REFUSED, env={"PYTHON_JULIACALL_THREADS": "2", "PYTHON_JULIACALL_HANDLE_SIGNALS": "no"})
    assert "Julia has 2 threads and PYTHON_JULIACALL_HANDLE_SIGNALS is not yes" in out
    assert "PYTHON_JULIACALL_THREADS to 1" in out


@needs_julia
def test_settings_of_one_process_are_not_those_of_its_children():
    out = run("""
    import os, subprocess
    before = dict(os.environ)
    check()
    assert {name: os.environ[name] for name in before if "JULIACALL" in name} == \
        {name: value for name, value in os.environ.items() if "JULIACALL" in name}
    child = "import pyflux_pad as pp; info = pp.julia_info(); print(info.threads, info.handle_signals)"
    subprocess.run([sys.executable, "-c", child], env={**os.environ, "PYTHON_JULIACALL_THREADS": "2"}, check=True)
    """, unset=("PYTHON_JULIACALL_HANDLE_SIGNALS",))
    assert "2 True" in out


@needs_julia
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("signals", ["no", "yes"])
def test_faulthandler(when, signals):
    run(f"""
    import faulthandler
    {'faulthandler.enable()' if when == 'before' else ''}
    check()
    {'faulthandler.enable()' if when == 'after' else ''}
    threads = [threading.Thread(target=f) for f in (check_many, collect, check_many)]
    [t.start() for t in threads]; collect(); [t.join() for t in threads]
    """, env={"PYTHON_JULIACALL_HANDLE_SIGNALS": signals})


@needs_julia
def test_two_packages_that_use_juliacall():
    """Another user of juliacall calls Julia at the same time; each keeps its own module."""
    out = run("""
    import juliacall
    other = juliacall.newmodule("Other")
    other.seval("using NNlib; conv = 3; work(n) = sum(sum(rand(100)) for _ in 1:n)")
    info = pp.julia_info()
    worker = threading.Thread(target=lambda: (check_many(), collect()))
    worker.start()
    for _ in range(200):
        assert other.work(100) > 0
        other.seval("GC.gc(false)")
    worker.join()
    check()
    assert other.conv == 3
    assert not info.started_here
    print("signals:", info.handle_signals)
    """, env={"PYTHON_JULIACALL_HANDLE_SIGNALS": "no"})
    assert "signals: False" in out


@needs_julia
def test_first_use_on_a_thread_beside_another_package():
    """Julia's first thread must have been told that it is not waited for; until then other threads are refused."""
    out = run("""
    import juliacall
    def work():
        try:
            check()
        except pp.BackendUnavailable as error:
            print("refused:", error)
    for _ in range(2):
        worker = threading.Thread(target=work)
        worker.start(); worker.join()
        pp.julia_info()
    worker = threading.Thread(target=lambda: (check_many(), collect(), print("works")))
    worker.start(); worker.join()
    """)
    assert out.count("refused:") == 1
    assert "call pyflux_pad.julia_info() once on that thread" in out
    assert "works" in out


# ---------------------------------------------------------------- processes

LOADER = """
import sys
import numpy as np
import torch
import pyflux_pad as pp

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return pp.conv(np.full((1, 1, 4), i, np.float32), np.ones((1, 1, 2), np.float32), backend="julia")

if __name__ == "__main__":
    if sys.argv[1] == "started":
        pp.julia_info()
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context=sys.argv[2])
    try:
        print("sum:", sum(float(batch.sum()) for batch in loader))
    except pp.BackendUnavailable as error:
        print("refused:", error)
"""


@needs_julia
@needs_torch
@pytest.mark.parametrize("before, method, expected", [
    ("started", "fork", ("refused:", "forked after Julia started", "multiprocessing_context='spawn'")),
    ("started", "spawn", ("sum: 36.0",)),
    ("fresh", "fork", ("sum: 36.0",)),
])
def test_workers_of_a_loader(tmp_path, before, method, expected):
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    done = subprocess.run([sys.executable, str(script), before, method], capture_output=True, text=True, timeout=LIMIT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in expected:
        assert part in done.stdout


@needs_julia
def test_fork():
    """A child is refused at once and ends by itself, the parent goes on."""
    out = run("""
    import os
    check()
    child = os.fork()
    if child == 0:
        try:
            check()
        except pp.BackendUnavailable as error:
            print("refused:", error, flush=True)
            sys.exit(7)
        sys.exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    check()
    """)
    assert "refused: backend 'julia' cannot run in a process that was forked after Julia started" in out


@needs_julia
def test_fork_before_the_start():
    run("""
    import os
    child = os.fork()
    if child == 0:
        check()
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    check()
    """)


@needs_julia
@pytest.mark.parametrize("signals", ["no", "yes"])
def test_exit_while_a_thread_is_inside_julia(signals):
    run("""
    check()
    big = np.ones((8, 16, 128, 128), np.float32), np.ones((16, 16, 5, 5), np.float32)
    inside = threading.Event()
    def work():
        while True:
            inside.set()
            try:
                pp.conv(*big, backend="julia")
            except pp.BackendUnavailable:
                return
    threading.Thread(target=work, daemon=True).start()
    inside.wait()
    time.sleep(0.1)
    """, env={"PYTHON_JULIACALL_HANDLE_SIGNALS": signals})


@needs_julia
def test_exit_by_an_error():
    out = run("check(); raise SystemExit('the end')", status=1)
    assert out.strip().endswith("the end")


@needs_julia
@pytest.mark.parametrize("signals", ["no", "yes"])
def test_interrupt_during_a_long_call(signals):
    """Ctrl-C comes as KeyboardInterrupt when the call returns, and the process goes on."""
    program = START + textwrap.dedent("""
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background job of a shell ignores it
    check()
    big = np.ones((16, 32, 128, 128), np.float32), np.ones((32, 32, 5, 5), np.float32)
    print("ready", flush=True)
    try:
        for _ in range(1000):
            pp.conv(*big, backend="julia")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    check_many(); collect()
    print("goes on", flush=True)
    """)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_JULIACALL_HANDLE_SIGNALS": signals}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env=environment) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 0, out
    assert "interrupted" in out
    assert "goes on" in out


@needs_julia
def test_memory_stays():
    """Ten thousand calls on arrays of 4 MB: what Julia allocates for itself is collected."""
    out = run("""
    import resource, pathlib
    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    a, k = np.ones((1, 1, 1024, 1024), np.float32), np.ones((1, 1, 1, 1), np.float32)
    for i in range(10_000):
        pp.conv(a, k, backend="julia")
        if i == 99:
            before = resident()
    print("grown by", round(resident() - before), "MB")
    assert resident() < before + 100, (before, resident())
    """)
    assert "grown by" in out


# ---------------------------------------------------------------- what cannot start

REFUSED = """
for attempt in range(2):
    try:
        pp.conv(x, w, backend="julia")
    except pp.BackendUnavailable as error:
        print("refused:", error)
    else:
        raise SystemExit("Julia started")
np.testing.assert_allclose(pp.conv(x, w), pp.conv(x, w, backend="numpy"))
"""
DEPOT = os.environ.get("JULIA_DEPOT_PATH") or str(pathlib.Path.home() / ".julia")
VARIABLES = ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT")
needs_juliacall = pytest.mark.skipif(
    "juliacall" in str(pp.available_backends()["julia"].reason), reason="juliacall is not installed")


def refused(**settings):
    return run(REFUSED, **settings)


def fake_julia(folder, version):
    program = folder / "julia"
    program.write_text(f"#!/bin/sh\necho 'julia version {version}'\n")
    program.chmod(0o755)
    return str(program)


def test_without_juliacall():
    out = run("""
sys.modules["juliacall"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "juliacall" else find(name, *rest)
""" + REFUSED)
    assert "the package juliacall is not installed" in out
    assert "pip install 'pyflux-pad[julia]'" in out


@needs_juliacall
def test_without_julia(tmp_path):
    """Three lines: what is missing, what an installation would take, how to point to a Julia that is there."""
    out = refused(unset=VARIABLES, env={"PATH": "/bin", "PYTHON_JULIAPKG_PROJECT": str(tmp_path)})
    first, second, third = out.strip().splitlines()[:3]
    assert "refused: backend 'julia' cannot run: there is no Julia on this machine" in first
    for part in ("pyflux-pad julia --install", "Julia, NNlib and PythonCall", "MB to download", "GB on disk", "minutes",
                 str(tmp_path)):
        assert part in second
    for part in ("`julia` on the PATH", "PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT"):
        assert part in third


@needs_juliacall
@pytest.mark.parametrize("version", ["1.9.4", "1.10.2", "1.13.0", "1.13.0-rc1", "2.0.0"])
def test_julia_of_another_age(tmp_path, version):
    exe = fake_julia(tmp_path, version)
    out = refused(env={"PYTHON_JULIACALL_EXE": exe, "PYTHON_JULIACALL_PROJECT": str(tmp_path)})
    assert f"Julia {version}, and this package needs at least 1.10.3 and less than 1.13" in out


@needs_juliacall
@pytest.mark.parametrize("settings, parts", [
    ({"PYTHON_JULIACALL_EXE": "/nowhere/julia"}, ("PYTHON_JULIACALL_EXE=/nowhere/julia is not a program",)),
    ({"PYTHON_JULIACALL_EXE": "/bin/false"}, ("PYTHON_JULIACALL_EXE=/bin/false is not a working Julia",)),
    ({"PYTHON_JULIACALL_EXE": "/bin/echo"}, ("PYTHON_JULIACALL_EXE=/bin/echo is not a working Julia",)),
    ({"PYTHON_JULIACALL_PROJECT": None}, ("PYTHON_JULIACALL_EXE is set but PYTHON_JULIACALL_PROJECT is not",)),
    ({"PYTHON_JULIACALL_EXE": None}, ("PYTHON_JULIACALL_PROJECT is set but PYTHON_JULIACALL_EXE is not",)),
])
def test_broken_settings(tmp_path, settings, parts):
    exe = fake_julia(tmp_path, "1.10.4")
    given = {"PYTHON_JULIACALL_EXE": exe, "PYTHON_JULIACALL_PROJECT": str(tmp_path), **settings}
    out = refused(unset=VARIABLES, env={name: value for name, value in given.items() if value is not None})
    for part in (*parts, "PYTHON_JULIACALL_PROJECT to a project that has NNlib and PythonCall"):
        assert part in out


@needs_juliacall
def test_a_project_that_is_not_there(tmp_path):
    out = refused(env={"PYTHON_JULIACALL_EXE": fake_julia(tmp_path, "1.10.4"), "PYTHON_JULIACALL_PROJECT": "/nowhere"})
    assert "PYTHON_JULIACALL_PROJECT=/nowhere does not exist" in out


@needs_juliacall
def test_no_network(tmp_path):
    """A Julia on the PATH, nothing installed for it, and nothing to be had: an error with the way round."""
    julia = tmp_path / "bin"
    julia.mkdir()
    fake_julia(julia, "1.10.4")
    out = refused(unset=VARIABLES, env={
        "PATH": f"{julia}:/bin:/usr/bin", "HOME": str(tmp_path), "PYTHON_JULIAPKG_PROJECT": str(tmp_path / "p"),
        "PYTHON_JULIAPKG_OFFLINE": "yes"})
    assert "Julia did not start" in out
    assert "Without a network set PYTHON_JULIACALL_EXE and PYTHON_JULIACALL_PROJECT" in out


def project(folder, **changes):
    """Copy the project that the tests run with, as text, with packages left out or added."""
    source = pathlib.Path(os.environ["PYTHON_JULIACALL_PROJECT"])
    for name in ("Project.toml", "Manifest.toml"):
        text = (source / name).read_text()
        for old, new in changes.get(name.split(".")[0].lower(), ()):
            text, count = re.subn(old, new, text, flags=re.DOTALL)
            assert count == 1, old
        (folder / name).write_text(text)
    return {"PYTHON_JULIACALL_PROJECT": str(folder)}


needs_project = pytest.mark.skipif(
    not all(os.environ.get(name) for name in VARIABLES), reason=f"needs {' and '.join(VARIABLES)} set")


@needs_julia
@needs_project
def test_a_project_without_nnlib(tmp_path):
    env = project(tmp_path, project=[('NNlib = ".*?"\n', "")], manifest=[(r"\[\[deps.NNlib\]\].*?(?=\[\[)", "")])
    out = refused(env=env)
    assert "has no package NNlib" in out
    assert 'Pkg.add("NNlib")' in out


@needs_julia
@needs_project
def test_an_old_nnlib():
    out = run("""
from pyflux_pad.backends.julia import runtime
runtime.OLDEST_NNLIB = "0.99.0"
""" + REFUSED)
    assert "the project has NNlib 0.9." in out
    assert "0.99.0 is the oldest" in out
    assert 'Pkg.update("NNlib")' in out


@needs_julia
@needs_project
def test_another_package_of_the_same_name(tmp_path):
    package = tmp_path / "PyFluxPad"
    (package / "src").mkdir(parents=True)
    (package / "src" / "PyFluxPad.jl").write_text("module PyFluxPad\nend\n")
    other = "11111111-2222-3333-4444-555555555555"
    (package / "Project.toml").write_text(f'name = "PyFluxPad"\nuuid = "{other}"\nversion = "0.1.0"\n')
    env = project(tmp_path, project=[(r"\[deps\]\n", f'[deps]\nPyFluxPad = "{other}"\n')],
                  manifest=[('manifest_format = "2.0"\n',
                             f'manifest_format = "2.0"\n\n[[deps.PyFluxPad]]\npath = "{package}"\nuuid = "{other}"\n'
                             'version = "0.1.0"\n')])
    out = refused(env=env)
    assert f"another package named PyFluxPad (UUID {other}" in out


@needs_julia
@needs_project
def test_a_read_only_depot():
    """Julia cannot store what it compiles; it either runs all the same or says that the depot must be writable."""
    out = run("""
    try:
        check()
        print("works")
    except pp.BackendUnavailable as error:
        print("refused:", error)
    """, env={"JULIA_DEPOT_PATH": f"/proc/no-depot:{DEPOT}"})
    assert "works" in out or "the first folder of JULIA_DEPOT_PATH must be writable" in out
