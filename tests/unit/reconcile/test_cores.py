from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator

import pytest

from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.processes import CookieError, KernelCoreCookies, restore_processes
from agent.cgroup.values import KernelFiles
from agent.host.files import LiveHostFiles
from agent.reconcile.core_cookies import INTERVAL_S, CookieReconciler
from agent.reconcile.desired_state import DesiredCoreGroup
from agent.snapshot.container import Adjustment, CoreSchedulingGroup
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import CannedHook, Scene

GROUP = CoreSchedulingGroup(enabled=True, id="a")


class TableCookies:
    """A kernel with core scheduling, whose processes are a table."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.made = itertools.count(1000)
        self.refuses = 0

    def get(self, pid: int) -> int:
        if self.refuses:
            raise CookieError(f"get of process {pid}", self.refuses)
        return self.of.get(pid, 0)

    def create(self, pid: int) -> None:
        self.of[pid] = next(self.made)

    def share(self, source: int | None, targets: Iterable[int]) -> tuple[int, ...]:
        outcome = tuple(targets)
        self.of.update(dict.fromkeys(outcome, 0 if source is None else self.of[source]))
        return outcome


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def test_this_machine_answers_with_a_cookie_or_by_a_type() -> None:
    answer: list[bool] = []
    try:
        answer.append(KernelCoreCookies().get(os.getpid()) >= 0)
    except CookieError as error:
        answer.append(error.is_unsupported or error.errno == errno.EPERM)
    assert answer == [True]


@pytest.mark.parametrize(
    ("number", "unsupported", "ended"),
    [
        (errno.ENODEV, True, False),
        (errno.EINVAL, True, False),
        (errno.ESRCH, False, True),
        (errno.EPERM, False, False),
    ],
)
def test_a_refusal_says_whether_there_is_support_at_all(
    number: int, unsupported: bool, ended: bool
) -> None:
    error = CookieError("get of process 1", number)
    assert (error.is_unsupported, error.has_process_ended) == (unsupported, ended)


@needs_v1
@pytest.mark.root
class TestOnRealGroups:
    def test_all_processes_of_a_group_share_one_cookie(self, groups: RealGroups) -> None:
        kernel = TableCookies()
        scene = Scene(groups)
        first = [groups.sleeper(scene.container) for _ in range(2)]
        second = groups.sleeper(scene.sandbox)
        cores = CookieReconciler(KernelFiles(LiveHostFiles()), scene.ledger, lambda: kernel)
        wishes = [DesiredCoreGroup(cgroup=c, group=GROUP) for c in (scene.container, scene.sandbox)]
        assert cores.apply(wishes, groups.layout, 0.0) == 3
        assert {kernel.of[pid] for pid in (*first, second)} == {1000}
        assert cores.apply(wishes, groups.layout, INTERVAL_S / 2) == 0
        late = groups.sleeper(scene.container)  # as of an exec probe
        assert cores.apply(wishes, groups.layout, INTERVAL_S) == 1
        assert kernel.of[late] == 1000

    def test_a_container_that_leaves_its_group_has_the_default_again(
        self, groups: RealGroups
    ) -> None:
        kernel = TableCookies()
        scene = Scene(groups)
        pid = groups.sleeper(scene.container)
        cores = CookieReconciler(KernelFiles(LiveHostFiles()), scene.ledger, lambda: kernel)
        cores.apply([DesiredCoreGroup(cgroup=scene.container, group=GROUP)], groups.layout, 0.0)
        alone = DesiredCoreGroup(cgroup=scene.container, group=CoreSchedulingGroup())
        cores.apply([alone], groups.layout, INTERVAL_S)
        assert kernel.of[pid] == 0

    def test_a_kernel_without_it_is_a_condition(self, groups: RealGroups) -> None:
        kernel = TableCookies()
        kernel.refuses = errno.ENODEV
        scene = Scene(groups)
        groups.sleeper(scene.container)
        cores = CookieReconciler(KernelFiles(LiveHostFiles()), scene.ledger, lambda: kernel)
        cores.apply([DesiredCoreGroup(cgroup=scene.container, group=GROUP)], groups.layout, 0.0)
        # the same words whichever process is asked about: each new one would be told
        assert cores.problem == "core scheduling: No such device"

    def test_cookies_are_in_the_ledger_before_they_are_made_and_taken_at_a_restore(
        self, groups: RealGroups
    ) -> None:
        kernel = TableCookies()
        hook = CannedHook("core_scheduling")
        hook.answers = {"app": Adjustment(core_group=GROUP)}
        scene = Scene(groups, hook, ledger=ChangeLedger(None, ""))
        pid = groups.sleeper(scene.container)
        cores = CookieReconciler(KernelFiles(LiveHostFiles()), scene.ledger, lambda: kernel)
        wishes = [DesiredCoreGroup(cgroup=scene.container, group=GROUP)]
        cores.record_originals(wishes, groups.layout)
        (entry,) = scene.ledger.entries.values()
        cores.apply(wishes, groups.layout, 0.0)
        assert kernel.of[pid] == 1000
        state, _ = restore_processes(
            KernelFiles(LiveHostFiles()), groups.layout, entry, force=False, cookies=lambda: kernel
        )
        assert (state, kernel.of[pid]) == ("restored", 0)
