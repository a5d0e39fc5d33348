"""Running ``check.jl`` of a written model, where a Julia with Flux is configured."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

VARIABLES = ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT")
"""The environment variables that name the Julia and the project of the julia engine."""


def run_check(folder: str | Path) -> dict[str, Any]:
    """Run the check of a written folder.

    Returns
    -------
    dict
        ``flux_passed``, None if it was not run, and ``flux_check``, the lines to show.
    """
    julia, project = (os.environ.get(name, "") for name in VARIABLES)
    manifest = Path(project) / "Project.toml"
    if not julia or not project or not manifest.is_file() or "Flux" not in manifest.read_text(encoding="utf-8"):
        reason = f"not run; set {' and '.join(VARIABLES)} to a Julia and to a project that has Flux"
        return {"flux_passed": None, "flux_check": [reason]}
    script = str(Path(folder) / "check.jl")
    try:
        done = subprocess.run([julia, f"--project={project}", script], capture_output=True, text=True, check=False)
    except OSError as error:
        return {"flux_passed": False, "flux_check": [f"{julia} cannot be started: {error.strerror}"]}
    lines = [*done.stdout.splitlines(), *(done.stderr.splitlines()[-5:] if done.returncode else ())]
    return {"flux_passed": done.returncode == 0, "flux_check": lines}
