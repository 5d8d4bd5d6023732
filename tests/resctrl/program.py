"""`xpu-agent` on an emulated resctrl file system, whose mount is of another type."""

from __future__ import annotations

import sys

from agent.resctrl import files

if __name__ == "__main__":
    files.FILE_SYSTEM = "fuse.resctrl"
    from agent.cli.main import main

    sys.exit(main())
