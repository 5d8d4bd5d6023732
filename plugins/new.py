"""`python -m plugins.new NAME [FOLDER]`: copies the template as a new vendor.

Without FOLDER the copy is `plugins/vendors/NAME`, a shipped vendor. With FOLDER it is a package of
its own, which the agent finds once it is installed. An example host with two devices is written to
`fixtures/hosts/example-NAME`: the contract tests use it until there is a recording of real
hardware.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

from agent.errors import AgentError
from plugins.vendors import BUILTIN

TEMPLATE = Path(__file__).parent / "vendors/template"
GROUP = "xpu_node_agent.vendors"
HOSTS = "fixtures/hosts"
EXAMPLE_HOST = """\
xpu-agent host recording 1

[/sys/bus/pci/devices/0000:03:00.0]
class = 0x120000
device = 0x0001
vendor = 0xfffe

[/sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon2]
temp1_input = 45000

[/sys/bus/pci/devices/0000:04:00.0]
class = 0x120000
device = 0x0001
vendor = 0xfffe
"""
_EXAMPLE_README = """\
# example-{name}

Two PCI functions with the vendor id of the template. No machine has them: replace this folder by a
recording of real hardware (`xpu-agent record DIR`) as soon as there is one.
"""
_NAME = re.compile(r"[a-z][a-z0-9]{1,30}")
_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "xpu-agent-{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["xpu-node-agent"]

[project.entry-points."{group}"]
{name} = "{package}.vendor:{word}Vendor"

[tool.setuptools]
packages = ["{package}"]
"""
_INIT = '"""{word}: the agent loads `vendor.py`, the worker process `session.py`."""\n'
_NEXT_SHIPPED = """\
made {folder}. Next:
1. add ("{name}", "{package}.vendor:{word}Vendor") to BUILTIN in plugins/vendors/__init__.py;
2. pytest tests/contract -k {name}, which runs on fixtures/hosts/example-{name};
3. docs/new-vendor.md says what each method must promise.
"""
_NEXT_OWN = """\
made {folder}. Next:
1. pip install -e {folder};
2. pytest tests/contract -k {name} in the agent's checkout;
3. docs/new-vendor.md there says what each method must promise.
"""


class CannotMake(AgentError):
    """The name cannot be a vendor's, or something is where it would be written."""


def make_vendor(name: str, folder: Path | None = None) -> Path:
    """Copy the template under another name and return where it is; nothing is overwritten.

    Raises `CannotMake`.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise CannotMake(f"{name!r}: a vendor's name is lower-case letters and digits")
    if name in dict(BUILTIN) or name == TEMPLATE.name:
        raise CannotMake(f"{name!r}: there is a vendor of that name")
    package = package_of(name, folder)
    target = TEMPLATE.parent / name if folder is None else folder / package
    host = (TEMPLATE.parents[2] if folder is None else folder) / example_of(name)
    if folder is not None and not target.exists() and (folder / "pyproject.toml").exists():
        raise CannotMake(f"{folder}: there is a project already")
    if host.exists():
        raise CannotMake(f"{host}: File exists")
    try:
        target.mkdir(parents=True)
        for source in sorted(TEMPLATE.glob("*.py")):
            text = renamed(source.read_text(encoding="utf-8"), name, package)
            (target / source.name).write_text(text, encoding="utf-8")
        (target / "__init__.py").write_text(_INIT.format(word=name.title()), encoding="utf-8")
        host.mkdir(parents=True)
        (host / "host.txt").write_text(EXAMPLE_HOST, encoding="utf-8")
        (host / "README.md").write_text(_EXAMPLE_README.format(name=name), encoding="utf-8")
        if folder is not None:
            words = {"name": name, "package": package, "word": name.title(), "group": GROUP}
            (folder / "pyproject.toml").write_text(_PROJECT.format(**words), encoding="utf-8")
    except OSError as error:
        raise CannotMake(f"{error.filename or target}: {error.strerror}") from error
    return target


def example_of(name: str) -> str:
    """Return where a new vendor's example host is, below the folder of its project."""
    return f"{HOSTS}/example-{name}"


def package_of(name: str, folder: Path | None) -> str:
    """Return the import name of a vendor's package."""
    return f"plugins.vendors.{name}" if folder is None else f"xpu_agent_{name}"


def renamed(source: str, name: str, package: str) -> str:
    """Return the template's text with its name, its classes and its package replaced."""
    moved = source.replace("plugins.vendors.template", package)
    return moved.replace("Template", name.title()).replace("template", name)


def main(arguments: list[str]) -> int:
    """Make a vendor and say what comes next; return the exit status."""
    assert __doc__ is not None  # noqa: S101 - it is above
    parser = argparse.ArgumentParser(prog="python -m plugins.new", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="lower-case letters and digits")
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=Path, help="for a package of its own"
    )
    chosen = parser.parse_args(arguments)
    try:
        folder = make_vendor(chosen.name, chosen.folder)
    except CannotMake as error:
        print(f"plugins.new: {error}", file=sys.stderr)  # noqa: T201 - a command's answer
        return 1
    words = {
        "name": chosen.name,
        "word": chosen.name.title(),
        "package": package_of(chosen.name, chosen.folder),
        "folder": chosen.folder or folder,
    }
    print((_NEXT_SHIPPED if chosen.folder is None else _NEXT_OWN).format(**words), end="")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
