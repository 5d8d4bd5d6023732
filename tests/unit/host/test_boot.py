"""Which machine it is: files that tell it, and nothing invented where they do not."""

from __future__ import annotations

import errno

import pytest

from agent.host.kernel import read_identity
from agent.recording.tree import ErrorEntry, TreeEntry, TreeFiles
from agent.snapshot.node import NodeIdentity
from tests.captures import capture, needs_shared

BOOT_ID = "f85dd5e2-1b6a-4843-85c1-c58321a0ddcf"
STAT = b"cpu 1 2 3 4\nintr 0\nbtime 1767323045\n"
FILES: dict[str, TreeEntry] = {
    "/proc/sys/kernel/random/boot_id": f"{BOOT_ID}\n".encode(),
    "/proc/sys/kernel/osrelease": b"6.8.0-45-generic\n",
    "/proc/sys/kernel/arch": b"aarch64\n",
    "/proc/stat": STAT,
}


def identity(files: dict[str, TreeEntry]) -> NodeIdentity:
    return read_identity(TreeFiles.from_entries(files), "node-1", "a recording")


def test_a_complete_host_has_all_facts() -> None:
    assert identity(FILES) == NodeIdentity(
        name="node-1",
        source="a recording",
        boot_id=BOOT_ID,
        boot_time_s=1_767_323_045.0,
        kernel="6.8.0-45-generic",
        architecture="aarch64",
    )


def test_an_empty_host_has_only_its_name() -> None:
    assert identity({}) == NodeIdentity(name="node-1", source="a recording")


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("entry", [b"\xff\x00\n;", b"", ErrorEntry(errno.EIO)], ids=str)
def test_a_broken_file_costs_its_own_fact_only(path: str, entry: TreeEntry) -> None:
    broken = identity({**FILES, path: entry})
    facts = (broken.boot_id, broken.boot_time_s, broken.kernel, broken.architecture)
    assert [fact for fact in facts if not fact] in ([""], [0.0])


def test_the_boot_time_is_found_behind_a_long_line_of_interrupts() -> None:
    stat = STAT.replace(b"intr 0", b"intr 0" + b" 0" * 100_000)
    assert identity({"/proc/stat": stat}).boot_time_s == 1_767_323_045.0


@pytest.mark.parametrize(
    ("alias", "architecture"),
    [
        (b"cpu:type:x86,ven0000fam0006mod0055:feature:,0000\n", "x86_64"),
        (b"x86cpu:vendor:0000:family:0006\n", "x86_64"),
        (b"cpu:type:aarch64:feature:,0000\n", "aarch64"),
        (b"pci:v0000\n", ""),
    ],
)
def test_the_architecture_of_an_older_kernel_follows_from_the_alias_of_its_cpus(
    alias: bytes, architecture: str
) -> None:
    assert identity({"/sys/devices/system/cpu/modalias": alias}).architecture == architecture


@needs_shared
def test_a_captured_guest_is_known() -> None:
    result = read_identity(capture("qemu"), "guest", "capture")
    assert (result.kernel, result.architecture) == ("6.1.0-56-amd64", "x86_64")
    assert result.boot_time_s > 1.7e9
