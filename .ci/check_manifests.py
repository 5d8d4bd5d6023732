"""Check the manifests against the types of several Kubernetes releases: `make manifests-matrix`.

The types are in the wheels of the `kubernetes` client, whose major version is Kubernetes' minor
one. Each wheel is downloaded once, checked against its hash, and only read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.unit.daemonset.charts import chart_renderings
from tests.unit.daemonset.kubernetes_types import KubernetesTypes, wheel_reader
from tests.unit.daemonset.manifests import Object
from tests.unit.daemonset.renderings import all_renderings
from tests.unit.daemonset.type_check import check_types

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".venv" / "kubernetes-clients"
CLIENTS = Path(__file__).with_name("kubernetes-clients.txt")
# the overlay for releases without admission policies; all other renderings are for later ones
OLD_RELEASES, OLD_OVERLAY = (28, 29), "kubernetes-1.28"


def download(requirement: str) -> Path:
    """Return the wheel of a line `kubernetes==VERSION --hash=...`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    version = requirement.partition("==")[2].split()[0]
    pattern = f"kubernetes-{version}-*.whl"
    if not list(CACHE.glob(pattern)):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(requirement)
            file.flush()
            # the virtual environment has no pip of its own
            python = os.environ.get("PYTHON", "python3")
            command = [python, "-m", "pip", "download", "--quiet", "--no-deps"]
            options = ["--only-binary=:all:", "--require-hashes", "--dest", str(CACHE)]
            subprocess.run([*command, *options, "-r", file.name], check=True)
    (wheel,) = CACHE.glob(pattern)
    return wheel


def renderings_for(release: int) -> dict[str, tuple[Object, ...]]:
    """Return the renderings that are meant for a release."""
    everything = {**all_renderings(), **chart_renderings()}
    if release not in OLD_RELEASES:
        return everything
    return {name: objects for name, objects in everything.items() if OLD_OVERLAY in name}


def main() -> int:
    """Print one line a release and every problem; return 1 if there is one."""
    failed = False
    for line in CLIENTS.read_text().splitlines():
        if not line.startswith("kubernetes=="):
            continue
        release = int(line.partition("==")[2].split(".")[0])
        types = KubernetesTypes(wheel_reader(download(line)))
        renderings = renderings_for(release)
        problems = [
            f"  {name}: {problem}"
            for name, objects in renderings.items()
            for problem in check_types(types, objects)
        ]
        count = sum(map(len, renderings.values()))
        print(f"Kubernetes 1.{release}: {len(renderings)} renderings, {count} objects, ", end="")
        print(f"{len(problems)} problems", *problems, sep="\n" if problems else "")
        failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
