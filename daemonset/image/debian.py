"""Debian's package data: which package a file is of, its version, and its licences."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LICENSE = re.compile(r"^License:[ \t]*(\S.*)$", re.MULTILINE)
_COMMON_LICENSE = re.compile(r"/usr/share/common-licenses/([\w.+-]+)")  # in older formats
_FIELD = re.compile(r"^(Package|Version|Architecture): (\S+)$", re.MULTILINE)
MAX_LICENSES = 40  # of one package


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str
    architecture: str
    licenses: tuple[str, ...]  # short names of its copyright file
    status: str  # its entry of dpkg's table
    copyright: Path

    @property
    def purl(self) -> str:
        """Return its package URL."""
        version = self.version.replace("+", "%2B").replace(":", "%3A").replace("~", "%7E")
        return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}"


def find_packages(files: Iterable[Path]) -> dict[Path, Package]:
    """Return the package of each file that one owns; without dpkg no package is found."""
    names = _owners(files)
    packages = {name: _package(name) for name in sorted(set(names.values()))}
    return {file: packages[name] for file, name in names.items()}


def _owners(files: Iterable[Path]) -> dict[Path, str]:
    """Return `package` or `package:architecture` for each file that dpkg knows."""
    # dpkg may know a file without /usr
    paths = {name: file for file in files for name in (str(file), str(file).removeprefix("/usr"))}
    owners = {}
    for line in _run("dpkg-query", "--search", *sorted(paths)).splitlines():
        names, _, path = line.rpartition(": ")
        if path in paths and not line.startswith("diversion by"):
            owners[paths[path]] = names.split(", ")[0]
    return owners


def _package(name: str) -> Package:
    status = _run("dpkg-query", "--status", name)
    fields = dict(_FIELD.findall(status))
    copyright_file = Path("/usr/share/doc", fields["Package"], "copyright").resolve()
    text = copyright_file.read_text("utf-8", "replace") if copyright_file.exists() else ""
    licenses = {" ".join(item.split()) for item in _LICENSE.findall(text)}
    licenses = licenses or {item.rstrip(".") for item in _COMMON_LICENSE.findall(text)}
    return Package(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        licenses=tuple(sorted(licenses)[:MAX_LICENSES]),
        status=status,
        copyright=copyright_file,
    )


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:  # no dpkg
        return ""
