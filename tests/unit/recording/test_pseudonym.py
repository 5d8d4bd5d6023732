from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.host.cpu import read_cpu_numa
from agent.host.pci import read_pci
from agent.recording.capture import capture_host as take
from agent.recording.format import format_recording
from agent.recording.pseudonyms import pseudonymise
from agent.recording.tree import EntryKind, LinkEntry, TreeEntry, TreeFiles
from agent.topology.pci_config import parse_config
from tests.captures import capture, needs_shared
from tests.unit.recording.trees import trees

NIC = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"


@dataclass(frozen=True)
class Machine:
    """A host's secrets, spelled as plain digits."""

    host: str
    mac: str
    guid: str
    uuid: str
    pod: str
    container: str
    serial: str
    machine_id: str


def digits(count: int) -> st.SearchStrategy[str]:
    # bytes of only zeros or ones are unset, and nobody's
    fill = st.integers(0, 16**count - 1).map(lambda number: f"{number:0{count}x}")
    return fill.map(lambda text: text.replace("0", "7").replace("f", "e"))


machines = st.builds(
    Machine,
    host=st.from_regex(r"[a-z]{3}gpu[0-9]{2}-[a-z]{2}", fullmatch=True),
    mac=digits(12),
    guid=digits(16),
    uuid=digits(32),
    pod=digits(32),
    container=digits(64),
    serial=st.from_regex(r"S[0-9]{2}[A-Z]{6}[0-9]{6}", fullmatch=True),
    machine_id=digits(32),
)


def grouped(plain: str, mark: str, *sizes: int) -> str:
    parts: list[str] = []
    at = 0
    while at < len(plain):
        size = sizes[min(len(parts), len(sizes) - 1)]
        parts.append(plain[at : at + size])
        at += size
    return mark.join(parts)


def uuid_of(plain: str, mark: str = "-") -> str:
    return grouped(plain, mark, 8, 4, 4, 4, 12)


def config(serial: bytes) -> bytes:
    """A configuration space with a device serial number and the ACS capability."""
    data = bytearray(4096)
    data[0x100:0x104] = (0x0003 | 1 << 16 | 0x110 << 20).to_bytes(4, "little")
    data[0x104:0x10C] = serial
    data[0x110:0x114] = (0x000D | 1 << 16).to_bytes(4, "little")
    data[0x116] = 0x1D
    return bytes(data)


def eui64(mac: str) -> str:
    return f"{int(mac[:2], 16) ^ 2:02x}{mac[2:6]}fffe{mac[6:]}"


def host_of(machine: Machine) -> TreeFiles:
    colons = grouped(machine.mac, ":", 2)
    guid = grouped(machine.guid, ":", 4)
    uid = uuid_of(machine.pod, "_")
    pod = f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{uid}.slice"
    link_local = f"fe80:0000:0000:0000:{grouped(eui64(machine.mac), ':', 4)}"
    files: dict[str, TreeEntry] = {
        "/proc/sys/kernel/hostname": f"{machine.host}.rack.example.com\n".encode(),
        "/proc/cmdline": f"root=UUID={uuid_of(machine.uuid)} ip=10.1.2.3 isolcpus=1-2\n".encode(),
        "/proc/mounts": f"{machine.host}:/home /home nfs4 rw 0 0\n"
        f"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n".encode(),
        "/etc/machine-id": f"{machine.machine_id}\n".encode(),
        "/proc/7/cgroup": f"0::/kubepods/pod{uuid_of(machine.pod)}/{machine.container}\n".encode(),
        f"{pod}/cri-containerd-{machine.container}.scope/cpu.stat": b"usage_usec 5\n",
        f"{NIC}/vendor": b"0x15b3\n",
        f"{NIC}/config": config(bytes.fromhex(machine.guid)[::-1]),
        f"{NIC}/net/enx{machine.mac}/address": f"{colons}\n".encode(),
        f"{NIC}/infiniband/mlx5_0/node_guid": f"{guid}\n".encode(),
        f"{NIC}/infiniband/mlx5_0/node_desc": f"{machine.host} mlx5_0\n".encode(),
        f"{NIC}/infiniband/mlx5_0/ports/1/gids/0": f"{link_local}\n".encode(),
        f"{NIC}/nvme/nvme0/serial": f"{machine.serial}      \n".encode(),
        "/sys/bus/pci/devices/0000:3b:00.0": LinkEntry(f"../../..{NIC.removeprefix('/sys')}"),
        f"/sys/class/net/enx{machine.mac}": LinkEntry(f"../../devices/net/enx{machine.mac}"),
        "/sys/devices/empty": EntryKind.DIRECTORY,
    }
    return TreeFiles.from_entries(files)


def tape_of(machine: Machine) -> bytes:
    return (
        f'{{"uuid":"GPU-{uuid_of(machine.uuid)}","facts":[["serial","{machine.serial}"]],'
        f'"mac":"{grouped(machine.mac.upper(), ":", 2)}","by":"{machine.host}",'
        f'"id":"soft-{machine.guid}","memory":85520809984}}\n'
    ).encode()


@settings(max_examples=40)
@given(machines, st.binary(min_size=8, max_size=8))
def test_no_secret_is_left_anywhere(machine: Machine, salt: bytes) -> None:
    tree, tapes = pseudonymise(host_of(machine), {"nvidia": tape_of(machine)}, salt)
    text = format_recording(tree, {}) + tapes["nvidia"].decode()
    plain = re.sub(r"[:_-]|\s", "", text.lower())
    for name in machine.__dataclass_fields__:
        secret: str = getattr(machine, name)
        assert secret.lower().replace("-", "") not in plain, name
    assert bytes.fromhex(machine.guid)[::-1].hex() not in plain
    assert eui64(machine.mac) not in plain
    assert "10.1.2.3" not in text


@settings(max_examples=40)
@given(machines)
def test_equal_secrets_stay_equal_in_every_spelling(machine: Machine) -> None:
    tree, tapes = pseudonymise(host_of(machine), {"nvidia": tape_of(machine)}, b"salt")
    (netdev,) = tree.names(f"{NIC}/net")
    mac = netdev.removeprefix("enx")
    assert tree.read(f"{NIC}/net/{netdev}/address").decode().strip() == grouped(mac, ":", 2)
    assert tree.link(f"/sys/class/net/{netdev}") == f"../../devices/net/{netdev}"
    gid = tree.read(f"{NIC}/infiniband/mlx5_0/ports/1/gids/0").decode().strip()
    assert gid == f"fe80:0000:0000:0000:{grouped(eui64(mac), ':', 4)}"
    guid = tree.read(f"{NIC}/infiniband/mlx5_0/node_guid").decode().strip().replace(":", "")
    assert tree.read(f"{NIC}/config")[0x104:0x10C][::-1].hex() == guid
    host = tree.read("/proc/sys/kernel/hostname").decode().strip()
    assert tree.read(f"{NIC}/infiniband/mlx5_0/node_desc").decode() == f"{host} mlx5_0\n"
    serial = tree.read(f"{NIC}/nvme/nvme0/serial").decode().strip()
    tape = tapes["nvidia"].decode()
    assert f'["serial","{serial}"]' in tape
    assert grouped(mac, ":", 2) in tape.lower()  # a MAC without letters has no case to keep
    assert f"soft-{guid}" in tape
    assert host in tape
    assert '"memory":85520809984' in tape
    (pod,) = tree.names("/sys/fs/cgroup/kubepods.slice")
    (scope,) = tree.names(f"/sys/fs/cgroup/kubepods.slice/{pod}")
    owner = tree.read("/proc/7/cgroup").decode()
    assert pod.removeprefix("kubepods-pod").removesuffix(".slice").replace("_", "-") in owner
    assert scope.removeprefix("cri-containerd-").removesuffix(".scope") in owner


def test_what_the_agent_does_not_read_of_arguments_and_mounts_is_left_out() -> None:
    machine = Machine(
        "gpu01", "a" * 12, "b" * 16, "c" * 32, "d" * 32, "e" * 64, "SERIAL1", "1" * 32
    )
    tree, _ = pseudonymise(host_of(machine), {}, b"salt")
    assert tree.read("/proc/cmdline") == b"isolcpus=1-2\n"
    assert tree.read("/proc/mounts") == b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"


def test_the_capabilities_of_a_config_stay_what_they_are() -> None:
    before = config(b"\x01\x02\x03\x04\x05\x06\x07\x08")
    tree, _ = pseudonymise(TreeFiles.from_entries({f"{NIC}/config": before}), {}, b"salt")
    after = tree.read(f"{NIC}/config")
    assert after != before
    assert parse_config(after) == parse_config(before)


@pytest.mark.parametrize("name", ["pod", "kubepods-burstable-pod", "cri-containerd-", "crio-"])
def test_pods_and_containers_are_renamed_behind_every_prefix(name: str) -> None:
    original = "3d1219c7c4c5404aaa1f6d2a48adfda4" * (1 if name.endswith("pod") else 2)
    host = TreeFiles.from_entries({f"/sys/fs/cgroup/kubepods/{name}{original}.x/cpu.stat": b""})
    tree, _ = pseudonymise(host, {}, b"salt")
    (other,) = tree.names("/sys/fs/cgroup/kubepods")
    assert other.startswith(name)
    assert len(other) == len(f"{name}{original}.x")
    assert original not in other


@pytest.mark.parametrize("name", ["nvme", "vm", "sys", "localhost"])
def test_a_common_word_as_host_name_renames_nothing_else(name: str) -> None:
    host = TreeFiles.from_entries(
        {
            "/proc/sys/kernel/hostname": f"{name}\n".encode(),
            "/sys/class/nvme/nvme0/address": f"{name} is a vm, localhost\n".encode(),
        }
    )
    tree, _ = pseudonymise(host, {}, b"salt")
    assert tree.names("/sys/class") == ("nvme",)
    assert tree.read("/sys/class/nvme/nvme0/address") == f"{name} is a vm, localhost\n".encode()
    same = tree.read("/proc/sys/kernel/hostname") == f"{name}\n".encode()
    assert same == (name == "localhost")


@pytest.mark.parametrize("name", ["nvidia", "devices"])
def test_a_host_called_like_a_field_of_a_tape_renames_no_field(name: str) -> None:
    host = TreeFiles.from_entries({"/proc/sys/kernel/hostname": f"{name}\n".encode()})
    tape = b'{"vendor": "nvidia", "devices": []}\n'
    assert pseudonymise(host, {"nvidia": tape}, b"salt")[1] == {"nvidia": tape}


@pytest.mark.parametrize(
    "text",
    [
        b"ffffffff,ffffffff\n", b"0" * 8 + b"f" * 24 + b"\n", b"0000:3b:00.0\n", b"12:34:56\n",
        b"6.1.0-56-amd64\n", b"16.35.2000\n", b"10 21 31\n", b"0-3,8\n",
    ],
)  # fmt: skip
def test_what_is_no_identifier_stays(text: bytes) -> None:
    host = TreeFiles.from_entries({"/sys/devices/system/cpu/x": text, "/sys/bus/pci/fw": text})
    tree, _ = pseudonymise(host, {}, b"salt")
    assert list(tree.walk()) == list(host.walk())


@pytest.mark.parametrize("tape", [b"", b"not json\n", b"[" * 5000, b'{"serial": true}\n', b"\xff"])
def test_a_tape_that_is_no_tape_stays_as_it_is(tape: bytes) -> None:
    assert pseudonymise(TreeFiles.from_entries({}), {"x": tape}, b"salt")[1] == {"x": tape}


@given(trees, st.text(max_size=12), st.binary(max_size=60))
def test_no_host_and_no_tape_makes_it_crash(tree: TreeFiles, serial: str, data: bytes) -> None:
    tape = json.dumps({"serial": serial, "x": [["serial", "\ud800ÉİABCDE"]]}).encode() + b"\n"
    other, tapes = pseudonymise(tree, {"vendor": tape, "damaged": data}, b"salt")
    assert len(list(other.walk())) == len(list(tree.walk()))
    assert json.loads(tapes["vendor"])["x"]


@needs_shared
@pytest.mark.parametrize("name", ["qemu", "40intel64", "32intel64", "2pa", "nri-"])
def test_the_shape_of_the_machine_survives(name: str) -> None:
    tree = take(capture(name), pods=True)
    other, _ = pseudonymise(tree, {}, b"salt")
    assert read_pci(other) == read_pci(tree)
    assert read_cpu_numa(other) == read_cpu_numa(tree)
