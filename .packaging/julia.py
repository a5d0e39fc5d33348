"""Build hook: the wheel carries the Julia package as pyflux_pad/julia, and a juliapkg.json that says so.

In a checkout (and so in an editable install) the Julia package lies beside the Python package; in the wheel it lies
inside, because nothing of ours may be installed at the top of site-packages.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JuliaHook(BuildHookInterface):
    """Adds the Julia half to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to include; an editable install uses the checkout's own."""
        if version == "editable":
            return
        root = Path(self.root)
        self.folder = Path(tempfile.mkdtemp())
        wanted = json.loads((root / "pyflux_pad" / "juliapkg.json").read_text("utf-8"))
        wanted["packages"]["PyFluxPad"]["path"] = "./julia"
        rewritten = self.folder / "juliapkg.json"
        rewritten.write_text(json.dumps(wanted, indent=2) + "\n", "utf-8")
        build_data["force_include"][str(rewritten)] = "pyflux_pad/juliapkg.json"
        for part in ("Project.toml", "src", "ext"):
            build_data["force_include"][str(root / "julia" / part)] = f"pyflux_pad/julia/{part}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the rewritten file."""
        if version != "editable":
            shutil.rmtree(self.folder)
