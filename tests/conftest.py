"""Every test that asks for `engine` runs once per engine; the run ends with a line that says which engines ran.

An engine that cannot run here is skipped with its reason, unless PYFLUX_PAD_TEST_BACKENDS (``numpy,torch``) asks for
it: then the run fails before it starts, because a green run would say nothing about that engine.
"""

import collections
import os

# The arrays are tiny and pytest-xdist uses the cores: threads would only wait for each other. Read when NumPy and torch
# load, so it comes first.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import engines
import hypothesis
import pytest

# The same examples on every run; the first one of a process may import a framework, so none has a deadline.
hypothesis.settings.register_profile("house", derandomize=True, deadline=None)
hypothesis.settings.load_profile("house")


def pytest_configure(config):
    config.addinivalue_line("markers", "engine(name): the test runs this engine; skipped, with the reason, without it")
    for name in engines.requested():
        found = engines.status(name)
        if not found.runs:
            raise pytest.UsageError(f"PYFLUX_PAD_TEST_BACKENDS asks for {name!r}, which cannot run: {found.reason}")


def pytest_generate_tests(metafunc):
    """Give `engine` its values; plain parameters, so that a seeded or cached reference is shared by neighbours."""
    if "engine" in metafunc.fixturenames and not _parametrized(metafunc.definition, "engine"):
        metafunc.parametrize("engine", engines.ENGINES, ids=str)


def pytest_collection_modifyitems(items):
    """Skip what cannot run, and note in each report whose test it was (the note survives pytest-xdist)."""
    for item in items:
        needs = computes = {name for mark in item.iter_markers("engine") for name in mark.args}
        engine = item.callspec.params.get("engine") if hasattr(item, "callspec") else None
        if isinstance(engine, engines.Engine):
            needs, computes = needs | engine.needs, {engine.computes}
        elif engine in engines.NAMES:
            computes = {engine}
        for name in needs:
            if not engines.status(name).runs:
                item.add_marker(pytest.mark.skip(reason=f"engine {name}: {engines.status(name).reason}"))
        item.user_properties.extend(("engine", name) for name in sorted(computes))


@pytest.fixture
def run(capsys):
    """Run a command line of the package; return its exit status, its output and its error output."""
    from pyflux_pad import cli

    def run(*argv):
        try:
            status = cli.main(argv)
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run


def pytest_terminal_summary(terminalreporter):
    """Say what the random cases covered, of every engine whether it ran, and what was validated without it."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports
               if isinstance(report, pytest.TestReport)]
    outcomes = collections.Counter(
        (value, report.outcome)
        for report in reports
        for key, value in report.user_properties
        if key == "engine" and (report.when == "call" or report.outcome == "failed")
    )
    terminalreporter.section("coverage and engines")
    for line in sorted(_noted(reports, "coverage")):
        terminalreporter.line(line)
    for name in engines.NAMES:
        found = engines.status(name)
        passed, failed = outcomes[name, "passed"], outcomes[name, "failed"]
        if found.runs:
            line = f"ran, version {found.version}: {passed} tests passed, {failed} failed"
        else:
            line = f"skipped: {found.reason}"
        terminalreporter.line(f"{name:6} {line}")
    for line in sorted(_noted(reports, "validated")):
        terminalreporter.line(f"cupy   {line}")


def _noted(reports, wanted):
    """Return what finished tests recorded under a name."""
    return {str(value) for report in reports if report.when == "call" for key, value in report.user_properties
            if key == wanted}


def _parametrized(function, name):
    """Whether a parametrize mark of the test itself already gives `name` its values."""
    return any(
        name in (mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else mark.args[0])
        for mark in function.iter_markers("parametrize")
    )
