"""What the node is called, and whether the Node of that name is this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.app.identity import (
    MachineIdentity,
    cluster_name,
    decide_write_permission,
    explain_mismatch,
    is_same_machine,
    read_machine,
)
from agent.config.sources import decode_settings
from agent.errors import BadConfig
from agent.host.files import LiveHostFiles
from agent.recording.host_source import HostSource, open_host
from agent.snapshot.cluster import NodeView
from agent.snapshot.part import SnapshotPart

MACHINE, OTHER = "0123456789abcdef" * 2, "f" * 32
BOOT, LATER = "6f7d4c1e-1111-4222-8333-944444444444", "6f7d4c1e-9999-4222-8333-944444444444"
HERE = MachineIdentity(machine_id=MACHINE, boot_id=BOOT.replace("-", ""))


def node(machine_id: str = "", boot_id: str = "", uid: str = "u-1") -> NodeView:
    return NodeView(name="node-a", uid=uid, machine_id=machine_id, boot_id=boot_id)


@pytest.mark.parametrize(
    ("machine", "found", "refused", "proven"),
    [
        (HERE, node(MACHINE, BOOT), False, True),
        (HERE, node(MACHINE, LATER), False, True),  # rebooted, the kubelet has not told yet
        (HERE, node(OTHER, LATER), True, False),
        (HERE, node(OTHER, BOOT), False, True),  # the id was written anew; it is one boot
        (HERE, node(OTHER), True, False),
        (HERE, node("", LATER), False, False),
        (MachineIdentity(boot_id=HERE.boot_id), node(OTHER, LATER), False, False),
        (MachineIdentity(), node(OTHER, LATER), False, False),
        (MachineIdentity(), node(), False, False),
        (HERE, node("0123456789ABCDEF-0123456789ABCDEF\n"), False, True),
        (HERE, node("uninitialized"), False, False),
    ],
)
def test_only_two_known_and_different_machine_ids_of_different_boots_are_a_mismatch(
    machine: MachineIdentity, found: NodeView, refused: bool, proven: bool
) -> None:
    assert (explain_mismatch(machine, found) is not None) is refused
    assert is_same_machine(machine, found) is proven


def test_a_mismatch_says_what_to_do_and_keeps_the_ids_to_itself() -> None:
    mismatch = explain_mismatch(HERE, node(OTHER))
    assert mismatch is not None
    assert "node-a" in mismatch
    assert "node.name" in mismatch
    assert MACHINE not in mismatch
    assert OTHER not in mismatch


@pytest.mark.parametrize(
    ("part", "writes", "reason"),
    [
        (SnapshotPart(None), False, "NodeNotRead"),
        (SnapshotPart(None, error="403 Forbidden"), False, "NodeNotRead"),
        (SnapshotPart(None, 1.0), False, "NodeAbsent"),  # 404: not registered, deleted, renamed
        (SnapshotPart(node(OTHER), 1.0), False, "NodeOfAnotherMachine"),
        (SnapshotPart(node("", ""), 1.0), True, "NodeNotVerified"),
        (SnapshotPart(node(MACHINE), 1.0), True, ""),
        (SnapshotPart(node(MACHINE, uid="u-2"), 2.0), True, ""),  # deleted and made again
        (SnapshotPart(node(MACHINE), 1.0, error="connection refused"), True, ""),  # the API is away
    ],
)
def test_nothing_is_written_until_the_node_is_read_and_not_for_another_machines(
    part: SnapshotPart[NodeView | None], writes: bool, reason: str
) -> None:
    write_permission = decide_write_permission(HERE, "node-a", part)
    assert (write_permission.is_allowed, write_permission.reason) == (writes, reason)
    assert ("node-a" in write_permission.message) is bool(reason)


def test_a_machine_without_an_id_is_named_as_the_one_that_cannot_tell() -> None:
    write_permission = decide_write_permission(
        MachineIdentity(), "node-a", SnapshotPart(node(MACHINE), 1.0)
    )
    assert write_permission.message.startswith("this machine tells no machine id")
    write_permission = decide_write_permission(HERE, "node-a", SnapshotPart(node(), 1.0))
    assert write_permission.message.startswith("Node node-a tells no machine id")


@pytest.mark.parametrize(
    ("files", "machine_id"),
    [
        ({"etc/machine-id": MACHINE + "\n"}, MACHINE),
        ({"var/lib/dbus/machine-id": MACHINE + "\n"}, MACHINE),
        ({"etc/machine-id": "uninitialized\n", "var/lib/dbus/machine-id": MACHINE}, MACHINE),
        ({"etc/machine-id": OTHER, "host/etc/machine-id": MACHINE}, MACHINE),  # in a container
        ({"etc/machine-id": "\0" * 4096}, ""),
        ({"etc/machine-id": "x" * 5000}, ""),
        ({}, ""),
    ],
)
def test_the_ids_are_read_where_the_kubelet_reads_them(
    tmp_path: Path, files: dict[str, str], machine_id: str
) -> None:
    for name, content in {**files, "proc/sys/kernel/random/boot_id": BOOT + "\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    machine = read_machine(LiveHostFiles(str(tmp_path)))
    assert machine == MachineIdentity(machine_id=machine_id, boot_id=HERE.boot_id)


@given(content=st.binary(max_size=200))
def test_no_content_of_an_id_breaks_the_reading(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    top = tmp_path_factory.mktemp("host")
    (top / "etc").mkdir()
    (top / "etc" / "machine-id").write_bytes(content)
    read_machine(LiveHostFiles(str(top)))


def test_a_recorded_host_has_its_own_ids_and_not_this_machines() -> None:
    recorded = open_host(str(Path(__file__).parents[3] / "fixtures/hosts/qemu-4numa-8xh100"))
    assert read_machine(recorded.files) != read_machine(LiveHostFiles())


LIVE = HostSource(files=LiveHostFiles())


@pytest.mark.parametrize("name", ["node-a", "ip-10-0-0-1.eu.example", "a" * 253, "0"])
def test_the_name_that_was_set_is_the_nodes(name: str) -> None:
    assert cluster_name(LIVE, decode_settings({"node": {"name": name}})) == name


@pytest.mark.parametrize("name", ["Node-A", "a_b", "../secrets", "a/b", "-a", "a..b", "a" * 254])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(BadConfig, match="XPU_AGENT_NODE__NAME"):
        cluster_name(LIVE, decode_settings({"node": {"name": name}}))


def test_without_a_name_the_hosts_own_is_taken_in_lower_case() -> None:
    recorded = HostSource(files=LiveHostFiles(), source="GPU-Box.tar.xz", spec="GPU-Box.tar.xz")
    assert cluster_name(recorded, decode_settings({})) == "gpu-box"
