"""The README's examples run, one after the other, and print what it says they print."""

import contextlib
import io
import pathlib
import re

import engines
import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"


@pytest.mark.engine("torch")
def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them writes a folder
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 8
    names = {}
    for code, shown in blocks:
        if 'backend="julia"' in code and not engines.status("julia").runs:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == shown
    assert names["padding"].pairs == ((9, 0), (9, 0))
    assert names["grad_weight"].shape == names["weight"].shape
    assert names["pads"]["0"].pairs == ((1, 1), (1, 1))
    assert names["kernel"].grad.shape == names["kernel"].shape
