"""Audit records of what was undone."""

from __future__ import annotations

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import Entry
from agent.cgroup.ledger.undo import WIDEST, Undone
from agent.cgroup.writing.values import CgroupValues
from agent.reconcile.telling import Telling
from tests.cgroup_v2.fake import MOUNT, FakeFiles, FakeKernel

ENTRY = Entry(
    hierarchy="v2", path="/kubepods/podx", inode=1, key="cpuset.cpus", owner="cpuset", original=""
)


def test_a_value_written_in_place_of_the_original_is_in_the_audit_with_its_reason() -> None:
    layout = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods")
    values = CgroupValues(FakeFiles(FakeKernel("/kubepods")), layout)
    done = Undone(entry=ENTRY, state="restored", current="2-3", target="0-3", detail=WIDEST)
    (audit,) = Telling().undone(values, (done,), 0.0)
    assert (audit.old, audit.new) == ("2-3", "0-3")
    assert audit.message == f"put back: restored: {WIDEST}"
    assert audit.path == "/sys/fs/cgroup/kubepods/podx/cpuset.cpus"
