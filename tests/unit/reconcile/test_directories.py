from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest

from agent.cgroup.keys import CPUS
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.containers.cpuset import CpusetHook
from agent.host.files import LiveHostFiles
from agent.reconcile.qos_directories import application_cpus, desired_directory_writes
from agent.reconcile.reconciler import Reconciler
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import ClusterView
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView
from tests.unit.containers.scene import scene

LAYOUT = CgroupLayout(
    version=2, driver="cgroupfs", mounts=(), unified="/sys/fs/cgroup", root="/kubepods"
)
DIRS = ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort")
SWITCH = "/proc/sys/kernel/sched_group_identity_enabled"
CORE = "/proc/sys/kernel/sched_core"
STALE_S = 600.0  # a setting of these tests
CLASSES = {
    name: {"cpuQOS": {"enable": True, "groupIdentity": value}}
    for name, value in (("lsrClass", 2), ("lsClass", 2), ("beClass", -1))
}
IDENTITY = {"resourceQOSStrategy": {"policies": {"cpuPolicy": "groupIdentity"}, **CLASSES}}

IDLE = {
    "policies": {"cpuPolicy": "coreSched"},
    "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
}


class Node:
    """A host of files, on a kernel of Anolis' line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.ledger = ChangeLedger(str(root / "ledger.log"), "boot")
        self.ledger.load()
        for cgroup in DIRS:
            self.write(f"/sys/fs/cgroup{cgroup}/cpu.bvt_warp_ns", "0\n")
        self.write(SWITCH, "0\n")
        self.modes = {"group_identity": "on"}
        self.reconciler = self.again()

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def values(self) -> list[str]:
        files = [f"sys/fs/cgroup{cgroup}/cpu.bvt_warp_ns" for cgroup in DIRS]
        return [(self.root / file).read_text().strip() for file in files]

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text().strip()

    def switch(self) -> str:
        return self.text(SWITCH)

    def again(self) -> Reconciler:
        self.reconciler = Reconciler(
            root=LiveHostFiles(str(self.root)),
            ledger=self.ledger,
            hooks=(),
            modes=self.modes,
            clock=self.clock,
            slo_stale_s=STALE_S,
        )
        return self.reconciler

    def cycle(
        self,
        slo: object = IDENTITY,
        identity_switch: int = 0,
        *,
        age_s: float | None = 0.0,
        problem: str = "",
    ) -> list[str]:
        """One second of a node whose kernel is looked at; `identity_switch` is as read before.

        The API server confirmed the NodeSLO `age_s` ago; `None`: it has not answered since the
        start.
        """
        self.clock.advance(1.0)
        confirmed_s = None if age_s is None else self.clock.monotonic() - age_s
        view = NodeSloView(found=True, slo=overlay_spec(slo).slo, problem=problem)
        kernel = KernelFeatures(
            bvt_file=True,
            identity_switch_present=True,
            identity_switch=identity_switch,
            core_scheduling=(self.root / CORE.lstrip("/")).exists(),
            core_switch=0 if (self.root / CORE.lstrip("/")).exists() else None,
        )
        snapshot = NodeSnapshot(
            node=NodeIdentity(name="node"),
            cluster=ClusterView(slo=SnapshotPart(view, confirmed_s)),
            host_devices=SnapshotPart(HostDevicesView(kernel=kernel), 1.0),
        )
        report = self.reconciler.cycle(snapshot, LAYOUT)
        return [condition.reason for condition in report.conditions]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_directories_of_the_classes_have_their_identity_and_that_of_all_none(
    node: Node,
) -> None:  # V57
    assert node.cycle() == []
    assert (node.values(), node.switch()) == (["0", "2", "-1"], "1")


def test_a_switch_is_recorded_as_every_other_change_is(node: Node) -> None:
    node.cycle()
    node.cycle(IDENTITY, identity_switch=1)
    audits = [(audit.path, audit.old, audit.new) for audit in node.reconciler.audits]
    assert audits[0] == (SWITCH, "0", "1")
    assert len(audits) == 3


def test_without_a_policy_nothing_is_touched(node: Node) -> None:
    node.cycle({})
    assert (node.values(), node.switch()) == (["0", "0", "0"], "0")


def test_a_refused_switch_is_reported_and_no_value_is_written(node: Node) -> None:
    (node.root / SWITCH.lstrip("/")).unlink()
    (node.root / SWITCH.lstrip("/")).mkdir()
    assert node.cycle() == ["SwitchRefused"]
    assert node.values() == ["0", "0", "0"]
    assert list(node.reconciler.audits) == []  # nothing was written


def test_a_refused_switch_is_tried_once_a_minute_and_recorded_with_its_errno(node: Node) -> None:
    (node.root / SWITCH.lstrip("/")).unlink()
    (node.root / SWITCH.lstrip("/")).symlink_to("/proc/version")  # which takes no value
    conditions = [node.cycle() for _ in range(125)]
    assert conditions == [["SwitchRefused"]] * 125
    refused = [audit for audit in node.reconciler.audits if audit.path == SWITCH]
    assert len(refused) == 3
    assert all(audit.errno for audit in refused)
    assert node.values() == ["0", "0", "0"]


def test_a_switch_that_another_program_keeps_changing_is_contested_once_a_minute(
    node: Node,
) -> None:
    node.cycle()
    contested = 0
    for _ in range(120):
        node.write(SWITCH, "0\n")
        contested += node.cycle() == ["SwitchRefused"]
    writes = [audit for audit in node.reconciler.audits if audit.path == SWITCH]
    assert len(writes) <= 6
    assert contested > 110
    for _ in range(62):
        node.cycle()
    assert node.switch() == "1"


def test_without_a_ledger_the_directories_are_left_alone(node: Node) -> None:
    (node.root / "ledger.log").mkdir()
    assert node.cycle() == ["LedgerNotWritable"]
    assert (node.values(), node.switch()) == (["0", "0", "0"], "0")


def test_a_hook_that_is_switched_off_gives_values_and_switch_back(node: Node) -> None:
    node.cycle()
    node.modes["group_identity"] = "off"
    node.again()
    node.cycle()
    assert (node.values(), node.switch()) == (["0", "0", "0"], "0")
    assert node.ledger.entries == {}


def test_a_rule_that_is_taken_away_gives_the_switch_back_once_nothing_needs_it(node: Node) -> None:
    node.cycle()
    for _ in range(80):
        node.cycle(IDENTITY, identity_switch=1)
    assert (node.values(), node.switch()) == (["0", "2", "-1"], "1")
    for _ in range(12):
        node.cycle({}, identity_switch=int(node.switch()))
    assert (node.values(), node.switch()) == (["0", "0", "0"], "0")
    for _ in range(12):
        node.cycle({}, identity_switch=0)
    assert node.ledger.entries == {}


def test_cookies_come_with_their_switch_and_never_beside_group_identity(node: Node) -> None:
    node.modes["core_scheduling"] = "on"
    node.write(CORE, "0\n")
    for cgroup in DIRS[1:]:
        node.write(f"/sys/fs/cgroup{cgroup}/cpu.idle", "0\n")
    node.cycle()
    assert (node.switch(), node.text(CORE)) == ("1", "0")
    for _ in range(80):
        node.cycle({"resourceQOSStrategy": IDLE}, identity_switch=int(node.switch()))
    assert (node.values(), node.switch(), node.text(CORE)) == (["0", "0", "0"], "0", "1")
    idle = [node.text(f"/sys/fs/cgroup{cgroup}/cpu.idle") for cgroup in DIRS[1:]]
    assert idle == ["0", "1"]
    for _ in range(12):
        node.cycle({}, identity_switch=0)
    assert [node.text(f"/sys/fs/cgroup{cgroup}/cpu.idle") for cgroup in DIRS[1:]] == ["0", "0"]
    assert (node.switch(), node.text(CORE)) == ("0", "0")
    assert node.ledger.entries == {}


@pytest.mark.parametrize(
    ("age_s", "problem"),
    [(STALE_S + 0.1, ""), (None, ""), (0.0, "the object is not a mapping")],
    ids=["stale", "never confirmed", "unreadable"],
)
def test_a_frozen_node_slo_changes_no_value_and_no_switch(
    node: Node, age_s: float | None, problem: str
) -> None:
    node.cycle(age_s=age_s, problem=problem)
    assert (node.values(), node.switch()) == (["0", "0", "0"], "0")
    node.cycle()
    assert (node.values(), node.switch()) == (["0", "2", "-1"], "1")
    for _ in range(80):
        node.cycle({}, identity_switch=1, age_s=age_s, problem=problem)
    assert (node.values(), node.switch()) == (["0", "2", "-1"], "1")
    node.cycle({}, identity_switch=1)
    assert node.values() == ["0", "0", "0"]


def test_a_frozen_node_slo_is_written_again_where_another_program_changed_it(node: Node) -> None:
    node.cycle()
    node.write(f"/sys/fs/cgroup{DIRS[2]}/cpu.bvt_warp_ns", "1\n")
    node.cycle(age_s=STALE_S + 1)
    assert node.values() == ["0", "2", "-1"]


APPLICATIONS = [
    {"name": "search", "qos": "LS"},
    {"name": "spark", "qos": "BE", "cgroupPath": {"relativePath": "batch/spark"}},
    {"name": "plain"},
    {"name": "wrong", "qos": "BE", "cgroupPath": {"relativePath": "kubepods"}},
]
APPLICATION_DIRS = ("/host-latency-sensitive/search", "/batch/spark", "/plain")


def test_host_applications_have_the_identity_of_their_class_until_they_are_not_listed(
    node: Node,
) -> None:
    for cgroup, value in zip(APPLICATION_DIRS, ("0", "0", "1"), strict=True):
        node.write(f"/sys/fs/cgroup{cgroup}/cpu.bvt_warp_ns", f"{value}\n")
    slo = {**IDENTITY, "hostApplications": APPLICATIONS}

    def values() -> list[str]:
        return [node.text(f"/sys/fs/cgroup{cgroup}/cpu.bvt_warp_ns") for cgroup in APPLICATION_DIRS]

    node.cycle(slo)
    assert values() == ["2", "-1", "0"]
    assert node.values() == ["0", "2", "-1"]  # the group of all pods is no application
    for _ in range(80):
        node.cycle(IDENTITY, identity_switch=1)
    assert values() == ["0", "0", "1"]
    assert node.values() == ["0", "2", "-1"]


def test_a_host_application_that_takes_the_place_of_another_is_restored_too(node: Node) -> None:
    old, new = APPLICATION_DIRS[0], "/host-latency-sensitive/index"
    node.write(f"/sys/fs/cgroup{old}/cpu.bvt_warp_ns", "0\n")
    slo = {**IDENTITY, "hostApplications": [*APPLICATIONS[:1], {"name": "index", "qos": "LS"}]}
    for _ in range(31):  # the search for groups that are gone comes after half a minute
        node.cycle(slo)
    rmtree(node.root / f"sys/fs/cgroup{old}")
    node.write(f"/sys/fs/cgroup{new}/cpu.bvt_warp_ns", "0\n")
    for _ in range(60):
        node.cycle(slo)
    assert node.text(f"/sys/fs/cgroup{new}/cpu.bvt_warp_ns") == "2"
    for _ in range(20):
        node.cycle(IDENTITY, identity_switch=1)
    assert node.text(f"/sys/fs/cgroup{new}/cpu.bvt_warp_ns") == "0"


def test_every_value_of_a_directory_names_the_field_that_requests_it(node: Node) -> None:
    node.cycle()
    sources = [
        audit.source.rpartition(".")[0] for audit in node.reconciler.audits if audit.key != "value"
    ]
    prefix = "NodeSLO spec.resourceQOSStrategy"
    assert sources == [f"{prefix}.lsClass.cpuQOS", f"{prefix}.beClass.cpuQOS"]


@pytest.mark.parametrize("mode", ["on", "plan", "off"])
def test_host_applications_of_the_class_ls_get_shared_cpus_and_others_none(mode: str) -> None:
    slo = overlay_spec({"hostApplications": APPLICATIONS}).slo
    snapshot = NodeSnapshot(
        node=NodeIdentity(name="node"),
        cluster=ClusterView(slo=SnapshotPart(NodeSloView(found=True, slo=slo), 1.0)),
    )
    writes = desired_directory_writes(snapshot, LAYOUT, {}, frozenset({4, 5}))
    assert [(write.cgroup, write.key, write.value, write.message) for write in writes] == [
        (APPLICATION_DIRS[0], CPUS, frozenset({4, 5}), "set host application cpuset to 4-5")
    ]
    cpus = application_cpus((CpusetHook(reads_kubelet=True),), {"cpuset": mode}, scene())
    assert cpus == (frozenset(range(8)) if mode == "on" else None)
