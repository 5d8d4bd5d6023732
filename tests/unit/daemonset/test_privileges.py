"""The table of privileges in docs/install.md: each module does what the privilege is for."""

from __future__ import annotations

import re

import pytest

from tests.unit.daemonset.manifests import ROOT
from tests.unit.daemonset.tables import read_table

TABLE = read_table(ROOT / "docs" / "install.md", "privileges")
# what the source of a module contains that needs the privilege
NEEDS = {
    "/dev": r"/dev/|CDLL|pynvml",
    "CAP_SYS_ADMIN": r"CAP_SYS_ADMIN",
    "CAP_SYSLOG": r"/dev/kmsg",
    "CAP_SYS_PTRACE": r"/proc/\{process\.pid\}/environ",
    "hostPID": r"/proc/\{pid\}",
    "hostNetwork": r"\"net\"|from_netlink",
    "/": r"host_root|NODE_ROOT|node_files",
    "/var/lib/kubelet": r"pod-resources|POD_RESOURCES",
    "/var/lib/kubelet/device-plugins": r"device-plugins",
    "/var/run/nri": r"settings\.nri",
    "/var/run/cdi": r"replace_file",
    "/sys/fs/cgroup": r"def write\(",
    "CAP_SYS_RESOURCE": r"CAP_SYS_RESOURCE",
    "CAP_PERFMON": r"perf_event_open",
}


def sources(cell: str) -> list[str]:
    """Return the sources of the modules and packages that a cell names."""
    texts = []
    for name in re.findall(r"`([^`]+)`", cell):
        path = ROOT / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        texts.append("\n".join(file.read_text() for file in files))
    return texts


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["Privilege"])
def test_the_module_that_needs_a_privilege_uses_it(row: dict[str, str]) -> None:
    first = row["Privilege"].split(",")[0].split(" at ")[0].strip("` ")
    texts = sources(row["Needed by"])
    assert texts
    for text in texts:
        assert re.search(NEEDS[first], text), row["Needed by"]
    assert row["Without it"]


def test_every_privilege_of_the_default_profile_is_in_the_table() -> None:
    profiles = read_table(ROOT / "docs" / "install.md", "profiles")
    explained = {row["Privilege"].split(",")[0] for row in TABLE}
    own = {"`/run/xpu-agent`", "`/var/lib/xpu-agent`", "`/sys`"}  # read by everyone, or the agent's
    needed = {
        row[""]
        for row in profiles
        if row["`devices`"] in ("yes", "read", "write")
        and row["`observe`"] in ("no", "yes", "read")
    } - {"privileged", "privilege escalation", "read-only root file system"}
    assert needed - own <= explained
