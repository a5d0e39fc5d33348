"""The first call of a process is traced by torch: nothing of the package has been imported or cached yet."""

import subprocess
import sys

import pytest
from engines import TENSOR_ENGINES

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.engine("torch")

FIRST = """
import sys, torch, pyflux_pad as pp
class Net(torch.nn.Module):
    def forward(self, x, weight):
        return pp.conv(x, weight, stride=2, padding=((0, 3), (2, 1)), backend={backend!r})
arguments = torch.arange(48.0).reshape(1, 2, 4, 6), torch.arange(36.0).reshape(3, 2, 2, 3)
if "{how}" == "compile":
    function = torch.compile(Net(), fullgraph=True, backend="aot_eager")
else:
    program = torch.export.export(Net(), arguments, strict="{how}" == "strict")
    torch.export.save(program, sys.argv[1])
    function = program.module()
print(function(*arguments).sum().item())
"""
LOAD = """
import sys, torch, pyflux_pad.backends.torch_ops
arguments = torch.arange(48.0).reshape(1, 2, 4, 6), torch.arange(36.0).reshape(3, 2, 2, 3)
print(torch.export.load(sys.argv[1]).module()(*arguments).sum().item())
"""


@pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
@pytest.mark.parametrize("how", ("compile", "traced", "strict"))
def test_first_call(engine, how, tmp_path):
    """Nothing is imported or cached yet when torch traces; a saved program runs in a process that only imports us."""
    x, weight = torch.arange(48.0).reshape(1, 2, 4, 6), torch.arange(36.0).reshape(3, 2, 2, 3)
    expected = F.conv2d(F.pad(x, (2, 1, 0, 3)), weight, stride=2).sum().item()
    scripts = [FIRST.format(backend=engine.backend, how=how)] + [LOAD] * (how != "compile")
    for script in scripts:
        process = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", script, str(tmp_path / "program.pt2")],
            capture_output=True, text=True, timeout=300, check=False)
        assert process.returncode == 0, process.stderr[-3000:]
        assert float(process.stdout) == expected
