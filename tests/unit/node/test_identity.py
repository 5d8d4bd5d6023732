"""What the node is called, and whether the Node of that name is this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.decode import settings_from
from agent.errors import BadConfig
from agent.host.files import LiveRoot
from agent.model.cluster.facts import NodeFacts
from agent.model.part import Part
from agent.node.identity import (
    Machine,
    cluster_name,
    mismatch,
    read_machine,
    standing,
    verified,
)
from agent.recording.open import OpenedHost, open_host

MACHINE, OTHER = "0123456789abcdef" * 2, "f" * 32
BOOT, LATER = "6f7d4c1e-1111-4222-8333-944444444444", "6f7d4c1e-9999-4222-8333-944444444444"
HERE = Machine(machine_id=MACHINE, boot_id=BOOT.replace("-", ""))


def node(machine_id: str = "", boot_id: str = "", uid: str = "u-1") -> NodeFacts:
    return NodeFacts(name="node-a", uid=uid, machine_id=machine_id, boot_id=boot_id)


@pytest.mark.parametrize(
    ("machine", "found", "refused", "proven"),
    [
        (HERE, node(MACHINE, BOOT), False, True),
        (HERE, node(MACHINE, LATER), False, True),  # rebooted, the kubelet has not told yet
        (HERE, node(OTHER, LATER), True, False),
        (HERE, node(OTHER, BOOT), False, True),  # the id was written anew; it is one boot
        (HERE, node(OTHER), True, False),
        (HERE, node("", LATER), False, False),
        (Machine(boot_id=HERE.boot_id), node(OTHER, LATER), False, False),
        (Machine(), node(OTHER, LATER), False, False),
        (Machine(), node(), False, False),
        (HERE, node("0123456789ABCDEF-0123456789ABCDEF\n"), False, True),
        (HERE, node("uninitialized"), False, False),
    ],
)
def test_only_two_known_and_different_machine_ids_of_different_boots_are_a_mismatch(
    machine: Machine, found: NodeFacts, refused: bool, proven: bool
) -> None:
    assert (mismatch(machine, found) is not None) is refused
    assert verified(machine, found) is proven


def test_a_mismatch_says_what_to_do_and_keeps_the_ids_to_itself() -> None:
    said = mismatch(HERE, node(OTHER))
    assert said is not None
    assert "node-a" in said
    assert "node.name" in said
    assert MACHINE not in said
    assert OTHER not in said


@pytest.mark.parametrize(
    ("part", "writes", "reason"),
    [
        (Part(None), False, "NodeNotRead"),
        (Part(None, error="403 Forbidden"), False, "NodeNotRead"),
        (Part(None, 1.0), False, "NodeAbsent"),  # 404: not registered, deleted, renamed
        (Part(node(OTHER), 1.0), False, "NodeOfAnotherMachine"),
        (Part(node("", ""), 1.0), True, "NodeNotVerified"),
        (Part(node(MACHINE), 1.0), True, ""),
        (Part(node(MACHINE, uid="u-2"), 2.0), True, ""),  # deleted and made again
        (Part(node(MACHINE), 1.0, error="connection refused"), True, ""),  # the API is away
    ],
)
def test_nothing_is_written_until_the_node_is_read_and_not_for_another_machines(
    part: Part[NodeFacts | None], writes: bool, reason: str
) -> None:
    found = standing(HERE, "node-a", part)
    assert (found.writes, found.reason) == (writes, reason)
    assert ("node-a" in found.message) is bool(reason)


def test_a_machine_without_an_id_is_named_as_the_one_that_cannot_tell() -> None:
    found = standing(Machine(), "node-a", Part(node(MACHINE), 1.0))
    assert found.message.startswith("this machine tells no machine id")
    found = standing(HERE, "node-a", Part(node(), 1.0))
    assert found.message.startswith("Node node-a tells no machine id")


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
    found = read_machine(LiveRoot(str(tmp_path)))
    assert found == Machine(machine_id=machine_id, boot_id=HERE.boot_id)


@given(content=st.binary(max_size=200))
def test_no_content_of_an_id_breaks_the_reading(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    top = tmp_path_factory.mktemp("host")
    (top / "etc").mkdir()
    (top / "etc" / "machine-id").write_bytes(content)
    read_machine(LiveRoot(str(top)))


def test_a_recorded_host_tells_its_own_ids_not_this_machines() -> None:
    recorded = open_host(str(Path(__file__).parents[3] / "fixtures/hosts/qemu-4numa-8xh100"))
    assert read_machine(recorded.files) != read_machine(LiveRoot())


LIVE = OpenedHost(files=LiveRoot())


@pytest.mark.parametrize("name", ["node-a", "ip-10-0-0-1.eu.example", "a" * 253, "0"])
def test_the_name_that_was_set_is_the_nodes(name: str) -> None:
    assert cluster_name(LIVE, settings_from({"node": {"name": name}})) == name


@pytest.mark.parametrize("name", ["Node-A", "a_b", "../secrets", "a/b", "-a", "a..b", "a" * 254])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(BadConfig, match="XPU_AGENT_NODE__NAME"):
        cluster_name(LIVE, settings_from({"node": {"name": name}}))


def test_without_a_name_the_hosts_own_is_taken_in_lower_case() -> None:
    recorded = OpenedHost(files=LiveRoot(), source="GPU-Box.tar.xz", spec="GPU-Box.tar.xz")
    assert cluster_name(recorded, settings_from({})) == "gpu-box"
