from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cgroup.layout import detect_layout
from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from agent.snapshot.edits import BIND_READ_ONLY, NO_EDITS, ContainerEdits, MountEdit, RlimitEdit
from agent.snapshot.host_files import MAX_READ
from agent.verification.container_check import DeviceNumbers
from agent.verification.inspector import (
    MAX_ENTRIES,
    MAX_ENVIRON,
    MAX_RECORD,
    UNITS_LOADED,
    ContainerInspector,
    ContainerLocation,
    find_origins,
    list_nodes,
)
from agent.verification.observation import ContainerObservation, MountOrigin, ObservedNode
from agent.verification.procfs import parse_mountinfo
from tests.cgroups import CgroupHost, container_id

ID = container_id(7)
POD = "/kubepods/burstable/pod6f6f0000-0000-4000-8000-000000000001"
RECORDS = ("/run/{id}/config.json",)
TABLE = "20 1 254:0 / / rw - ext4 /dev/vda rw\n21 20 0:5 / /dev rw - tmpfs tmpfs rw\n"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


class Fake:
    """One host with one container, of files."""

    def __init__(self, folder: Path, version: int = 1, name: str = ID) -> None:
        self.host = CgroupHost(folder, version=version)
        self.host.write("/sys/fs/cgroup/memory/kubepods/x", "")
        self.clock = ManualClock()
        self.inspector = ContainerInspector(
            LiveHostFiles(str(folder)), self.clock, proc=str(folder / "proc"), records=RECORDS
        )
        self.group = (
            f"/sys/fs/cgroup/memory{POD}/{name}" if version == 1 else f"/sys/fs/cgroup{POD}/{name}"
        )

    def process(self, pid: int, started: int = 100, environ: bytes = b"PATH=/bin\0") -> Path:
        self.host.write(f"/proc/{pid}/stat", f"{pid} (sh) S " + "0 " * 18 + f"{started} 0\n")
        self.host.path(f"/proc/{pid}/environ").write_bytes(environ)
        self.host.write(f"/proc/{pid}/mountinfo", TABLE)
        self.host.write(f"/proc/{pid}/limits", f"{'Max locked memory':26}1 2 bytes\n")
        device = self.host.path(f"/proc/{pid}/root/dev")
        device.mkdir(parents=True, exist_ok=True)
        return device

    def members(self, *pids: int, below: str = "") -> None:
        self.host.write(f"{self.group}{below}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def observe(
        self, edits: ContainerEdits = NO_EDITS, *numbers: DeviceNumbers
    ) -> ContainerObservation:
        layout = detect_layout(self.host.files)
        assert layout is not None
        where = ContainerLocation(container_id=ID, pod_cgroups=(POD,))
        process = self.inspector.find_process(layout, where)
        return self.inspector.inspect(layout, ID, process, edits, numbers)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_a_container_without_a_cgroup_or_process_is_absent_and_not_missing(fake: Fake) -> None:
    assert fake.observe().absence_reason == "it has no cgroup (yet)"
    fake.members()
    assert fake.observe().absence_reason == "it has no process (yet)"
    fake.members(11)  # ended since the kernel listed it
    assert fake.observe().absence_reason == "it has no process (yet)"


def test_the_oldest_process_is_inspected_and_not_one_started_into_the_container(fake: Fake) -> None:
    fake.process(30, started=50, environ=b"A=first\0")
    fake.process(12, started=90, environ=b"A=exec\0")
    fake.members(12, 30)
    assert fake.observe().env == (("A", "first"),)


@pytest.mark.parametrize("version", [1, 2])
def test_processes_that_were_moved_into_groups_of_their_own_are_found(
    tmp_path: Path, version: int
) -> None:
    fake = Fake(tmp_path, version)
    fake.members()
    fake.members(below="/init.scope")
    fake.members(9, below="/init.scope/below")
    fake.process(9)
    assert fake.observe().env == (("PATH", "/bin"),)


def test_the_runtimes_own_first_process_is_not_taken_for_the_containers(fake: Fake) -> None:
    fake.process(9, environ=b"_LIBCONTAINER_INITTYPE=standard\0")
    fake.members(9)
    assert fake.observe().absence_reason == "the runtime has not started it yet"


class Starting(LiveHostFiles):
    """A host whose container starts its program right after the first read of its mounts."""

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        data = super().read(path, limit)
        if path.endswith("/mountinfo"):
            Path(self.path("/proc/9/environ")).write_bytes(b"PATH=/bin\0")
        return data


def test_a_container_that_starts_during_an_inspection_is_not_judged_by_earlier_facts(
    fake: Fake,
) -> None:
    """The runtime makes its device nodes before it starts the program."""
    fake.process(9, environ=b"_LIBCONTAINER_INITTYPE=standard\0")
    fake.members(9)
    proc = str(fake.host.root / "proc")
    fake.inspector = ContainerInspector(
        Starting(str(fake.host.root)), fake.clock, proc=proc, records=RECORDS
    )
    observation = fake.observe()
    assert (observation.absence_reason, observation.nodes) == (
        "the runtime has not started it yet",
        None,
    )


def test_what_is_longer_than_anybody_needs_is_not_believed_in_part(fake: Fake) -> None:
    fake.process(9, environ=b"A=" + b"x" * MAX_ENVIRON)
    fake.members(9)
    fake.host.write(f"/run/{ID}/config.json", '{"process": {}}' + " " * MAX_RECORD)
    observation = fake.observe()
    assert (observation.env, observation.record) == (None, None)


def rules(fake: Fake, text: str) -> None:
    """Have the kernel hold these rules for the container of process 9."""
    points = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/devices"
    fake.host.write("/proc/mounts", "".join(f"cgroup {p} cgroup rw,{p[15:]} 0 0\n" for p in points))
    fake.host.write(f"{points[1]}{POD}/{ID}/devices.list", text)
    fake.host.write(f"{points[1]}{POD}/{ID}/cgroup.procs", "9\n")


def test_rules_that_changed_since_the_last_check_are_noticed_without_another_check(
    fake: Fake,
) -> None:
    fake.process(9)
    fake.members(9)
    rules(fake, "c 195:0 rw\n")
    assert (
        fake.inspector.containers_with_changed_rules((ID,)) == ()
    )  # nobody looked yet: it is due anyway
    fake.observe()
    assert fake.inspector.containers_with_changed_rules((ID,)) == ()
    rules(fake, "c 1:3 rwm\n")
    assert fake.inspector.containers_with_changed_rules((ID, "another")) == (ID,)
    fake.observe()
    assert fake.inspector.containers_with_changed_rules((ID,)) == ()
    fake.inspector.forget({"another"})
    rules(fake, "")
    assert fake.inspector.containers_with_changed_rules((ID,)) == ()


BOOTED_S, STARTED_S = 1_767_000_000, 50.0


@pytest.mark.parametrize(
    ("scope", "after_s", "link", "denied"),
    [
        (True, 2.0, False, True),
        (True, 2.0, True, False),  # systemd knows the device by the link
        (True, -2.0, False, False),  # systemd loaded its units before the container started
        (False, 2.0, False, False),  # runc itself made the group: systemd leaves it alone
    ],
)
def test_a_reloaded_systemd_denies_what_it_has_no_link_for(
    tmp_path: Path, *, scope: bool, after_s: float, link: bool, denied: bool
) -> None:
    fake = Fake(tmp_path, 2, f"cri-containerd-{ID}.scope" if scope else ID)
    fake.process(9, started=int(STARTED_S * os.sysconf("SC_CLK_TCK")))
    fake.members(9)
    fake.host.write("/proc/stat", f"intr {'0 ' * 70000}\nbtime {BOOTED_S}\n")
    assert (
        fake.observe(NO_EDITS, (195, 0)).denied_after_reload == frozenset()
    )  # this host has no such systemd
    fake.host.write(UNITS_LOADED, "")
    loaded_s = BOOTED_S + STARTED_S + after_s
    os.utime(fake.host.path(UNITS_LOADED), (loaded_s, loaded_s))
    if link:
        fake.host.write("/dev/char/195:0", "")
    observation = fake.observe(NO_EDITS, (195, 0))
    assert observation.denied_after_reload == (frozenset(((195, 0),)) if denied else frozenset())


def test_a_reload_of_systemd_is_noticed_by_what_it_writes(fake: Fake) -> None:
    before = fake.inspector.reload_stamp()
    fake.host.write(UNITS_LOADED, "")
    os.utime(fake.host.path(UNITS_LOADED), (BOOTED_S, BOOTED_S))
    first = fake.inspector.reload_stamp()
    assert first != before
    assert fake.inspector.reload_stamp() == first
    os.utime(fake.host.path(UNITS_LOADED), (BOOTED_S, BOOTED_S + 1))
    assert fake.inspector.reload_stamp() != first


def test_rules_limits_and_the_runtimes_record_are_read(fake: Fake) -> None:
    fake.process(9)
    fake.members(9)
    rules(fake, "c 195:0 rw\n")
    fake.host.write(f"/run/{ID}/config.json", '{"process": {"env": ["A=b"]}}')
    limit = RlimitEdit(name="RLIMIT_MEMLOCK", soft=1, hard=1)
    observation = fake.observe(ContainerEdits(rlimits=(limit,)))
    assert observation.rules is not None
    assert [(rule.major, rule.minor, rule.access) for rule in observation.rules] == [(195, 0, "rw")]
    assert observation.limits is not None
    assert (observation.limits[0].soft, observation.limits[0].hard) == (1, 2)
    assert observation.record is not None
    assert observation.record.env == (("A", "b"),)


@root_only
def test_device_nodes_are_found_with_their_numbers_and_links_are_not_followed(fake: Fake) -> None:
    device = fake.process(9)
    fake.members(9)
    os.mknod(device / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    (device / "infiniband").mkdir()
    os.mknod(device / "infiniband/uverbs0", stat.S_IFCHR | 0o666, os.makedev(511, 300))
    (device / "null").symlink_to("/dev/null")
    (device / "up").symlink_to("..")
    os.mkfifo(device / "pipe")
    assert sorted(fake.observe().nodes or (), key=str) == [
        ObservedNode("/dev/infiniband/uverbs0", "c", 511, 300),
        ObservedNode("/dev/nvidia0", "c", 195, 0),
    ]


def _link(device: Path) -> None:
    device.rmdir()
    device.symlink_to("/dev")


def _file(device: Path) -> None:
    device.rmdir()
    device.write_text("")


def _crowd(device: Path) -> None:
    for number in range(MAX_ENTRIES):
        (device / str(number)).touch()


@pytest.mark.parametrize("make", [_link, _file, _crowd])
def test_a_dev_folder_that_is_none_or_has_no_end_gives_no_nodes(
    fake: Fake, make: Callable[[Path], None]
) -> None:
    make(fake.process(9))
    fake.members(9)
    assert fake.observe().nodes is None


@pytest.mark.parametrize(
    ("table", "is_read"),
    [
        ("21 20 0:5 / /dev rw - tmpfs tmpfs rw\n", True),
        ("21 20 0:5 / /dev rw - fuse.trap trap rw\n", False),
        ("21 20 0:5 / / rw - nfs4 far:/ rw\n", False),
        ("21 20 0:5 / /dev rw - fuse trap rw\n22 20 0:6 / /dev rw - tmpfs tmpfs rw\n", True),
    ],
)
def test_file_systems_that_a_process_serves_are_never_read(
    tmp_path: Path, table: str, is_read: bool
) -> None:
    (tmp_path / "dev").mkdir()
    nodes = list_nodes(str(tmp_path), parse_mountinfo(table.encode()))
    assert (nodes == ()) is is_read


@root_only
def test_a_node_on_such_a_file_system_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("a", "b"):
        os.mknod(tmp_path / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(195, 0))
    table = b"21 20 0:5 / /dev/a rw - fuse trap rw\n"
    nodes = list_nodes(str(tmp_path), parse_mountinfo(table))
    assert nodes == (ObservedNode("/dev/b", "c", 195, 0),)


def test_host_paths_have_the_file_system_and_path_that_mount_tables_name(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    host.write(
        "/proc/1/mountinfo",
        "20 1 254:0 / / rw - ext4 /dev/vda rw\n21 20 254:0 /data/v /srv/v rw - ext4 /dev/vda rw\n"
        "22 20 0:9 / /run rw - tmpfs tmpfs rw\n",
    )
    host.path("/var").mkdir()
    host.path("/var/run").symlink_to("/run")
    host.path("/loop").symlink_to("/loop")
    paths = ("/srv/v/x", "/srv/vector", "/var/run/y", "/", "/loop/z", "/run")
    assert find_origins(host.files, paths) == {
        "/srv/v/x": (MountOrigin("254:0", "/data/v/x"),),
        "/srv/vector": (MountOrigin("254:0", "/srv/vector"),),
        "/var/run/y": (MountOrigin("0:9", "/y"),),
        "/": (MountOrigin("254:0", "/"),),
        "/run": (MountOrigin("0:9", "/"),),
    }


def test_the_targets_of_an_edits_mounts_are_looked_up_on_the_host(fake: Fake) -> None:
    fake.process(9)
    fake.members(9)
    fake.host.write("/proc/1/mountinfo", TABLE)
    mount = MountEdit(host_path="/srv/lib.so", path="/lib.so", options=BIND_READ_ONLY)
    observation = fake.observe(ContainerEdits(mounts=(mount,)))
    assert observation.origins == {"/srv/lib.so": (MountOrigin("254:0", "/srv/lib.so"),)}
