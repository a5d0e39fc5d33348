"""``python -m pyflux_pad``: the same as the command ``pyflux-pad``."""

import sys

from pyflux_pad.cli import main

if __name__ == "__main__":
    sys.exit(main())
