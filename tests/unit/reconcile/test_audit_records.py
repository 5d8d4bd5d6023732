"""Audit records of what was undone."""

from __future__ import annotations

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import LedgerEntry
from agent.cgroup.restore import WIDEST_TEXT, RestoreResult
from agent.cgroup.values import CgroupValues
from agent.reconcile.reports import ReportHistory
from tests.cgroup_v2.fake import MOUNT, FakeFiles, FakeKernel

ENTRY = LedgerEntry(
    hierarchy="v2", path="/kubepods/podx", inode=1, key="cpuset.cpus", owner="cpuset", original=""
)


def test_a_value_written_in_place_of_the_original_is_in_the_audit_with_its_reason() -> None:
    layout = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods")
    values = CgroupValues(FakeFiles(FakeKernel("/kubepods")), layout)
    restore_result = RestoreResult(
        entry=ENTRY, state="restored", current="2-3", target="0-3", detail=WIDEST_TEXT
    )
    (audit,) = ReportHistory().restored_audits(values, (restore_result,), 0.0)
    assert (audit.old, audit.new) == ("2-3", "0-3")
    assert audit.message == f"put back: restored: {WIDEST_TEXT}"
    assert audit.path == "/sys/fs/cgroup/kubepods/podx/cpuset.cpus"
