"""The house rules: imports point one way, importing is light, files stay readable."""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

import pyflux_pad

PACKAGE = pathlib.Path(pyflux_pad.__file__).parent
TESTS = pathlib.Path(__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports from the groups before its own, or from its own folder.
ORDER = (("padding", "console", "safetensors", "memory"), ("geometry",), ("derivatives",), ("backends",), ("ops",),
         ("nn", "flux", "bench"), ("porting",), ("cli",))
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}
# The front doors see everything: the package itself and `python -m`.
DOORS = {"__init__", "__main__"}
# What may be imported when a module is imported, besides the standard library and numpy. An engine's file is only
# imported when its engine is.
FRAMEWORKS = {"torch": {"backends/torch.py", "backends/halo.py", "backends/onednn.py", "backends/torch_ops.py",
                        "flux/module.py", "nn.py", "porting/arrays/torch.py", "porting/module.py"}}


def group_of(module):
    """Return the part of the house that a dotted name inside the package belongs to."""
    return module.split(".")[0]


def rank(group):
    """Return a group's place; what is in no group is a name of the package itself, which only the cli comes after."""
    return RANK.get(group, RANK["cli"] - 0.5)


def name_of(path):
    """Return the dotted name of a file inside the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def house_imports(path):
    """Yield (line, dotted name inside the package) for every import of the package by itself, lazy ones too."""
    here = name_of(path).split(".")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE.name:
                    yield node.lineno, alias.name.partition(".")[2]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = here[:-node.level]
            elif (node.module or "").split(".")[0] == PACKAGE.name:
                base = []
            else:
                continue
            module = (node.module or "").split(".")[0 if node.level else 1:]
            target = [part for part in (*base, *module) if part]
            for alias in node.names:
                # "from . import padding" names a module, "from .padding import Padding" does not.
                yield node.lineno, ".".join(target) or alias.name


def importing_when_imported(path):
    """Yield the top-level names a module imports when it is imported itself (not inside its functions)."""
    pending = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    mine = group_of(name_of(path))
    if mine in DOORS:
        return
    assert mine in RANK, f"{mine} has no place in the order {ORDER}"
    for line, module in house_imports(path):
        group = group_of(module)
        assert group == mine or rank(group) < rank(mine), (
            f"{name_of(path)}:{line} imports {module or 'the package'}, which is not to its left in {ORDER}")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_an_engines_file_imports_its_framework(path):
    allowed = set(sys.stdlib_module_names) | {"numpy", PACKAGE.name}
    relative = path.relative_to(PACKAGE).as_posix()
    allowed |= {name for name, files in FRAMEWORKS.items() if relative in files}
    foreign = set(importing_when_imported(path)) - allowed
    assert not foreign, f"{relative} imports {foreign} when it is imported"


def modules_after(code):
    """Run code in a fresh interpreter; return the names of the modules it has then."""
    code = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


HEAVY = {"torch", "cupy", "juliacall", "onnx"}  # juliapkg is light: it only knows where a Julia would be


@pytest.mark.parametrize("code", [
    "import pyflux_pad",
    "import pyflux_pad; pyflux_pad.available_backends()",
    "import numpy, pyflux_pad as pp; pp.conv(numpy.ones((1, 1, 4)), numpy.ones((1, 1, 2)), padding=((1, 0),))",
    "import pyflux_pad.cli",
    "import pyflux_pad.porting",
], ids=("import", "available_backends", "conv on numpy", "cli", "porting"))
def test_loads_no_framework(code):
    assert not HEAVY & modules_after(code)


@pytest.mark.engine("torch")
def test_naming_an_engine_loads_its_framework():
    """The test above would pass on an empty list: here torch is asked for, and there."""
    code = ("import numpy, pyflux_pad as pp\n"
            "pp.conv(numpy.ones((1, 1, 4)), numpy.ones((1, 1, 2)), backend='torch')")
    assert HEAVY & modules_after(code) == {"torch"}


@pytest.mark.parametrize("path", [*MODULES, *sorted(TESTS.glob("*.py"))], ids=lambda path: path.name)
def test_files_stay_readable(path):
    """About 500 lines in the package, a little more in a test: a file that grows past that becomes a folder."""
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= (550 if path in MODULES else 600), f"{path.name} has {lines} lines; make it a folder"


def test_the_order_can_fail(tmp_path, monkeypatch):
    """A module that imports from its right is seen, whichever way it says it."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "pyflux_pad")
    bad = tmp_path / "pyflux_pad" / "backends" / "numpy.py"
    bad.parent.mkdir(parents=True)
    for statement in ("from ..ops import conv", "from .. import ops", "import pyflux_pad.ops",
                      "from pyflux_pad.ops import conv", "from pyflux_pad import ops", "from pyflux_pad import conv",
                      "import pyflux_pad", "def f():\n    from ..ops import g"):
        bad.write_text(statement, encoding="utf-8")
        with pytest.raises(AssertionError, match="not to its left"):
            test_imports_point_one_way(bad)
    bad.write_text("from ..padding import Padding\nfrom . import resolve\n", encoding="utf-8")
    test_imports_point_one_way(bad)
