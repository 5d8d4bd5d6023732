"""Entry point: parses the command line and runs one command.

Every start loads this module first, so it imports nothing that is slow to load.
"""

from __future__ import annotations

import importlib
import sys

from agent.cli.parser import build_parser
from agent.command_line import run_command_line

# command: module and function; a module is imported when its command is used
COMMANDS = {
    "run": ("agent.cli.run", "run"),
    "devices": ("agent.cli.devices", "devices"),
    "topology": ("agent.cli.topology", "topology"),
    "snapshot": ("agent.cli.render", "snapshot"),
    "render": ("agent.cli.render", "render"),
    "plan": ("agent.cli.plan", "plan"),
    "record": ("agent.cli.record", "run"),
    "rescan": ("agent.cli.admin", "rescan"),
    "release": ("agent.cli.admin", "release"),
    "clear": ("agent.cli.admin", "clear"),
    "explain": ("agent.cli.admin", "explain"),
    "doctor": ("agent.cli.doctor", "doctor"),
    "cgroup": ("agent.cli.cgroup", "cgroup"),
    "restore": ("agent.cli.restore", "restore"),
    "config": ("agent.cli.reference", "config"),
    "metrics": ("agent.cli.reference", "metrics"),
    "version": ("agent.cli.reference", "version"),
    "completion": ("agent.cli.reference", "completion"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    runs = arguments[:1] == ["run"]

    def command() -> int:
        parsed = build_parser(only_run=runs).parse_args(arguments)
        module, name = COMMANDS[parsed.command]
        return int(getattr(importlib.import_module(module), name)(parsed))

    return run_command_line("xpu-agent", command, discard=runs)
