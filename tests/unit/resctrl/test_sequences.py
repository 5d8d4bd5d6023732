"""After any sequence of events the groups equal the plan, or the refusal is reported.

Groups of other programs never change, and restoring leaves nothing of the agent.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent.containers.resctrl import parse_resctrl_request
from agent.resctrl.values import percent_mask
from agent.snapshot.slo import ResctrlQos
from tests.resctrl.machine import Machine
from tests.unit.resctrl.scene import HALF, Scene, group, qos

MACHINES = (
    Machine(),
    Machine(mb_closids=3),
    Machine(mb_domains=(), l3_closids=4),
    Machine(l3_domains=(), rmids=0),
    Machine(cdp=True, l3_min_bits=2, l3_domains=(0, 8)),
    Machine(rmids=6, mb_closids=5),
)
ANNOTATIONS = (
    None,
    HALF,
    '{"llc":{"schemataPerCache":[{"cacheID":1,"range":[50,100]}]},"mb":{"schemata":{"percent":30}}}',
    '{"llc":{"schemata":{"range":[70,20]}}}',
)
ERRORS = (errno.ENOSPC, errno.EINVAL, errno.EPERM, errno.EIO, errno.EBUSY, errno.ENODEV)
OPERATIONS = ("make", "write", "remove")
NUMBERS = st.integers(1, 5)
PERCENTS = st.sampled_from((0, 10, 30, 50, 90, 100))
RETRY_S = 700  # longer than any pause after a refusal


class Sequences(RuleBasedStateMachine):
    """Events of a node in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.refusal: tuple[str, str, int] | None = None
        self.foreign: dict[str, object] = {}
        self.is_paused = False

    @initialize(machine=st.sampled_from(MACHINES), monitors=st.booleans())
    def start(self, machine: Machine, monitors: bool) -> None:
        self.scene = Scene(machine, ledger_path=self.folder / "ledger.log", monitor_pods=monitors)
        self.scene.host.resctrl.before_change = self._answer

    def _answer(self, operation: str, path: str) -> None:
        if self.refusal is None or self.refusal[0] != operation:
            return
        if self.refusal[1] in path:
            raise OSError(self.refusal[2], errno.errorcode[self.refusal[2]])

    @rule(
        name=st.sampled_from(("BE", "LS", "LSR")),
        start=PERCENTS,
        end=PERCENTS,
        mba=PERCENTS,
        enable=st.booleans(),
    )
    def change_class(self, name: str, start: int, end: int, mba: int, enable: bool) -> None:
        if start < end:
            self.scene.set_class(name, qos(start, end, mba, enable=enable))

    @rule(
        number=NUMBERS,
        label=st.sampled_from(("BE", "LS", "LSR", "LSE", "SYSTEM")),
        annotation=st.sampled_from(ANNOTATIONS),
    )
    def start_pod(self, number: int, label: str, annotation: str | None) -> None:
        if number not in self.scene.pods:
            self.scene.add_pod(number, label, annotation)

    @rule(number=NUMBERS)
    def end_pod(self, number: int) -> None:
        if number in self.scene.pods:
            self.scene.remove_pod(number)

    @rule(number=NUMBERS, annotation=st.sampled_from(ANNOTATIONS))
    def annotate(self, number: int, annotation: str | None) -> None:
        if number in self.scene.pods:
            self.scene.annotate(number, annotation)

    @rule(number=NUMBERS)
    def fork(self, number: int) -> None:
        if number in self.scene.pods:
            tasks = self.scene.host.containers[self.scene.pods[number].containers[0].cgroup]
            tasks.add(self.scene.host.tasks.add(min(tasks, default=0)))

    @rule(
        operation=st.sampled_from(OPERATIONS),
        path=st.sampled_from(("", "BE", "LS", "koordlet", "schemata", "tasks", "mon_groups")),
        number=st.sampled_from(ERRORS),
    )
    def refuse(self, operation: str, path: str, number: int) -> None:
        self.refusal = (operation, path, number)

    @rule()
    def accept(self) -> None:
        self.refusal = None

    @rule(name=st.sampled_from(("pqos", "BE", "LSR")))
    def make_foreign_group(self, name: str) -> None:
        resctrl = self.scene.host.resctrl
        self.refusal = None
        if name not in resctrl.groups and len(resctrl.groups) < resctrl.machine.closids:
            try:
                resctrl.make(name)
            except OSError:
                return  # no monitoring id is free
            self.foreign[name] = resctrl.groups[name]

    @precondition(lambda self: "pqos" in self.foreign)
    @rule()
    def remove_foreign_group(self) -> None:
        self.refusal = None
        del self.foreign["pqos"]
        self.scene.host.resctrl.remove("pqos")

    @rule(value=st.sampled_from(("L3:0=3\n", "MB:0=20\n")))
    def overwrite(self, value: str) -> None:
        """Let another program change the values of a group of the agent."""
        self.refusal = None
        own = sorted(self.scene.groups() - self.foreign.keys())
        if own and value[:2] in self.scene.host.resctrl.groups[own[0]].values:
            self.scene.host.resctrl.write(f"{own[0]}/schemata", value)

    @rule(confirmed=st.booleans())
    def confirm_slo(self, confirmed: bool) -> None:
        self.scene.is_slo_confirmed = confirmed

    @rule(mode=st.sampled_from(("on", "on", "plan", "off")))
    def restart(self, mode: str) -> None:
        self.scene.restart(mode)

    @rule()
    def run(self) -> None:
        self.is_paused = False

    @rule()
    def wait(self) -> None:
        self.scene.clock.advance(RETRY_S)

    @rule()
    def pause(self) -> None:
        """Let the events until the next run come at once."""
        self.is_paused = True

    @invariant()
    def other_groups_are_as_they_were(self) -> None:
        if not hasattr(self, "scene"):
            return
        if not self.is_paused:
            self.scene.cycle()
        resctrl = self.scene.host.resctrl
        for name, foreign in self.foreign.items():
            assert resctrl.groups[name] is foreign
            assert resctrl.groups[name].values == resctrl._new_group(name).values

    @precondition(lambda self: self.scene.mode == "on" and self.scene.is_slo_confirmed)
    @rule()
    def settle(self) -> None:
        """Whatever was refused: the groups are those of the plan, or the problem is reported."""
        view = self.scene.cycle(3)
        if not view.problems:
            self._check_groups()

    def _check_groups(self) -> None:
        scene = self.scene
        enabled = {name: one for name, one in scene.classes.items() if one.enable}
        view = scene.manager.view
        own = scene.groups() - self.foreign.keys()
        assert own == {one.name for one in view.groups}
        class_groups = dict(view.class_groups)
        assert class_groups.keys() == enabled.keys()
        for name, one in enabled.items():
            self._check_values(class_groups[name], one)
        for number, pod in scene.pods.items():
            target = self._target(number, class_groups)
            assert scene.tasks_of(number) <= scene.members(target), pod

    def _target(self, number: int, class_groups: dict[str, str]) -> str:
        pod = self.scene.pods[number]
        label = pod.labels[0][1]
        by_class = class_groups.get({"LSE": "LSR"}.get(label, label), "")
        name = group(number)
        if not pod.annotations or pod.annotations[0][1] == ANNOTATIONS[3]:
            assert name not in self.scene.groups()
            return by_class
        if name not in self.scene.groups():  # its values are those of the root group
            assert parse_resctrl_request(pod.annotations[0][1]).is_set
            return by_class
        return name

    def _check_values(self, name: str, one: ResctrlQos) -> None:
        machine = self.scene.host.resctrl.machine
        values = self.scene.schemata(name)
        mask = percent_mask(
            machine.l3_mask,
            one.cat_range_start_percent,
            one.cat_range_end_percent,
            machine.l3_min_bits,
        )
        for line in machine.l3_lines:
            assert set(values[line].values()) == {mask}
        if machine.mb_domains and one.mba_percent:
            assert set(values["MB"].values()) == {one.mba_percent}

    def teardown(self) -> None:
        """Restoring leaves nothing of the agent, whatever happened before."""
        self.refusal = None
        if hasattr(self, "scene"):
            self.scene.clock.advance(RETRY_S)
            self.scene.restart("off")
            self.scene.cycle(2)
            assert self.scene.groups() == self.foreign.keys()
            assert self.scene.host.resctrl.root.monitored == {}
            assert self.scene.ledger.entries == {}
            tasks = set(self.scene.host.tasks.parents)
            assert tasks <= self.scene.members("")
        shutil.rmtree(self.folder)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
