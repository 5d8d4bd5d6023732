"""Command: assembles the layers of the images below a folder, and prints their sizes."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from daemonset.image.bom import FILE, read_distributions, render_bom
from daemonset.image.debian import Package, find_packages
from daemonset.image.distributions import (
    COMMANDS,
    NOT_OF_THE_SCHEDULER,
    copy_selected,
    install_locked,
    install_project,
    write_command,
)
from daemonset.image.interpreter import (
    EXECUTABLE,
    compile_modules,
    copy_interpreter,
    copy_shared_libraries,
    site_folder,
    strip_debug_data,
)
from daemonset.image.tree import (
    AssemblyError,
    copy_file,
    normalize,
    sha256,
    size_bytes,
    tree_digest,
    write_file,
)

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = "runtime"
LEFT_OUT: Mapping[str, frozenset[str]] = {
    "agent": frozenset(),
    "scheduler": NOT_OF_THE_SCHEDULER,
}
# the layers of each image, the lowest first
LAYERS = {target: (RUNTIME, f"{target}-libraries", target) for target in LEFT_OUT}
PINNED = re.compile(r".+@sha256:[0-9a-f]{64}")


def assemble(out: Path, base: str, time_s: int) -> None:
    """Assemble all layers below a new folder."""
    out.mkdir(parents=True)
    libraries = {target: out / LAYERS[target][1] for target in LEFT_OUT}
    locked = install_locked(ROOT / "requirements.lock", site_folder(libraries["agent"]))
    project = out / "agent"
    own = install_project(ROOT, site_folder(project))
    wheels = {wheel.name: wheel for wheel in (*locked, own)}
    for layer in (libraries["agent"], project):
        compile_modules(layer)
    selection = site_folder(libraries["scheduler"])
    copy_selected(site_folder(libraries["agent"]), selection, LEFT_OUT["scheduler"])
    shutil.copytree(project, out / "scheduler")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for target, command in COMMANDS.items():
        write_command(out / target, target, scripts[command])
    runtime = out / RUNTIME
    copy_interpreter(runtime)
    sources = copy_shared_libraries(runtime, *libraries.values())
    packages, others = _owners(runtime, sources)
    for package in packages:
        if package.copyright.exists():
            copy_file(package.copyright, runtime / "usr/share/doc" / package.name / "copyright")
        # where scanners of images without dpkg look for packages
        write_file(runtime / "var/lib/dpkg/status.d" / package.name, package.status)
    compile_modules(runtime)
    for target in LEFT_OUT:
        folders = (libraries[target], out / target)
        distributions = [one for tree in folders for one in read_distributions(site_folder(tree))]
        text = render_bom(target, base, distributions, wheels, others, packages)
        write_file(out / target / FILE, text)
    for layer in out.iterdir():
        normalize(layer, time_s)


def _owners(
    runtime: Path, sources: Mapping[Path, Path]
) -> tuple[dict[Package, dict[str, str]], dict[str, str]]:
    """Return the digests of the copied files by package, and of those that no package owns.

    `sources` has the file of this machine for each copied C library.
    """
    interpreter = runtime / EXECUTABLE
    files = {**sources, interpreter: Path(sys.base_prefix, "bin", EXECUTABLE.name).resolve()}
    owners = find_packages(files.values())
    if files[interpreter] not in owners:
        strip_debug_data(runtime, [copy for copy, source in files.items() if source not in owners])
    packages: dict[Package, dict[str, str]] = {}
    others: dict[str, str] = {}
    for copy, source in sorted(files.items()):
        path = f"/{copy.relative_to(runtime)}"
        package = owners.get(source)
        (others if package is None else packages.setdefault(package, {}))[path] = sha256(copy)
    return packages, others


def main() -> int:
    """Assemble; return 0, or 1 with a line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m daemonset.image", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    parser.add_argument("--base", default="", help="the image of the build stage, for the bill")
    parser.add_argument("--release", action="store_true", help="refuse a base that no digest pins")
    arguments = parser.parse_args()
    try:
        if arguments.release and not PINNED.fullmatch(arguments.base):
            raise AssemblyError(
                f"--base {arguments.base!r} is not pinned: name@sha256:… is needed for a release"
            )
        assemble(arguments.out, arguments.base, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    except (AssemblyError, OSError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    for layer in sorted(arguments.out.iterdir()):
        print(f"{layer.name:22}{size_bytes(layer) / 1e6:8.1f} MB  {tree_digest(layer)}")
    for target, layers in LAYERS.items():
        total = sum(size_bytes(arguments.out / layer) for layer in layers)
        print(f"image {target:16}{total / 1e6:8.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
