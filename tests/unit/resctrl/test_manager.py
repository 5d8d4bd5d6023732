"""Groups of classes and pods on an emulated file system: made, filled, changed, removed."""

from __future__ import annotations

import errno

import pytest

from agent.errors import HostFileError
from agent.resctrl.capabilities import CacheAllocation, Capabilities
from agent.resctrl.plan import ExistingGroup, PlanInputs, ResctrlPod, build_plan
from agent.snapshot.self_check import ResctrlActionKind, StrategyState
from tests.resctrl.machine import MAX_MBPS, Machine
from tests.unit.resctrl.scene import HALF, Scene, group, qos, reasons, uid

OTHERS = "pqos"  # a group of another program


def test_without_a_request_no_group_is_made() -> None:
    scene = Scene()
    scene.add_pod(1)
    view = scene.cycle(3)
    assert (scene.groups(), view.state) == (set(), StrategyState.IDLE)
    assert view.closids == 7


def test_an_enabled_class_gets_a_group_with_its_values_and_its_tasks() -> None:
    scene = Scene()
    tasks = scene.add_pod(1, "BE")
    other = scene.add_pod(2, "LS")
    scene.set_class("BE", qos(0, 30, 35))
    view = scene.cycle()
    assert scene.schemata("BE") == {"L3": {0: 0xF, 1: 0xF}, "MB": {0: 40, 1: 40}}
    assert scene.members("BE") == set(tasks)
    assert scene.members("") == set(other)
    assert (view.state, view.ready_groups) == (StrategyState.ACTIVE, ("BE",))
    assert view.class_groups == (("BE", "BE"),)
    assert not view.problems


def test_schemata_are_written_before_the_first_task_is_moved() -> None:
    scene = Scene()
    scene.add_pod(1)
    scene.set_class("BE", qos(0, 30))
    order: list[str] = []
    scene.host.resctrl.before_change = lambda operation, path: order.append(f"{operation} {path}")
    scene.cycle()
    assert order == ["make BE", "write BE/schemata", "write BE/tasks", "write BE/tasks"]


def test_a_settled_node_is_not_written_to() -> None:
    scene = Scene()
    for number in range(20):
        scene.add_pod(number, ("BE", "LS", "LSR")[number % 3])
    scene.set_class("BE", qos(0, 30, 35))
    scene.set_class("LS", qos(20, 100))
    scene.cycle(2)
    order: list[str] = []
    scene.host.resctrl.before_change = lambda operation, path: order.append(f"{operation} {path}")
    scene.cycle(100)
    assert order == []


def test_a_class_with_the_values_of_the_root_group_needs_no_group() -> None:
    scene = Scene()
    scene.set_class("LSR", qos(0, 100, 100))
    view = scene.cycle()
    assert scene.groups() == set()
    assert view.class_groups == (("LSR", ""),)


def test_classes_with_equal_values_share_a_group() -> None:
    scene = Scene()
    best_effort, service = scene.add_pod(1, "BE"), scene.add_pod(2, "LS")
    for name in ("BE", "LS", "LSR"):
        scene.set_class(name, qos(0, 50))
    view = scene.cycle()
    assert scene.groups() == {"BE"}
    assert scene.members("BE") == {*best_effort, *service}
    assert view.class_groups == (("BE", "BE"), ("LS", "BE"), ("LSR", "BE"))
    assert view.groups[0].classes == ("BE", "LS", "LSR")


@pytest.mark.parametrize(
    ("label", "expected"), [("LSE", "LSR"), ("LSR", "LSR"), ("LS", "LS"), ("SYSTEM", "")]
)
def test_each_qos_class_has_its_group_and_system_pods_have_none(label: str, expected: str) -> None:
    scene = Scene()
    tasks = scene.add_pod(1, label)
    scene.set_class("LSR", qos(50, 100))
    scene.set_class("LS", qos(30, 100))
    scene.cycle()
    assert set(tasks) <= scene.members(expected)


def test_a_disabled_class_gives_its_tasks_back_to_the_root_group() -> None:
    scene = Scene()
    tasks = scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.set_class("BE", qos(0, 30, enable=False))
    scene.cycle()
    assert scene.groups() == set()
    assert set(tasks) <= scene.members("")
    assert not scene.ledger.entries


def test_of_two_classes_that_part_each_gets_its_tasks() -> None:
    scene = Scene()
    service = scene.add_pod(2, "LS")
    scene.set_class("BE", qos(0, 50))
    scene.set_class("LS", qos(0, 50))
    scene.cycle()
    scene.set_class("LS", qos(20, 100))
    scene.cycle()
    assert scene.groups() == {"BE", "LS"}
    assert scene.members("LS") == set(service)
    assert scene.members("BE") == set()


def test_new_values_are_written_once_and_only_where_they_differ() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30, 30))
    scene.cycle()
    writes: list[str] = []
    host = scene.host
    real = host.write

    def record(path: str, text: str) -> None:
        writes.append(text)
        real(path, text)

    host.write = record  # type: ignore[method-assign]
    scene.set_class("BE", qos(0, 50, 30))
    scene.cycle(3)
    assert writes == ["L3:0=3f;1=3f\n"]


def test_a_pod_s_annotation_gives_it_a_group_of_its_own() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    tasks = scene.add_pod(1, "BE", HALF)
    scene.cycle()
    assert scene.members(group(1)) == set(tasks)
    assert scene.schemata(group(1))["L3"] == {0: 0x3F, 1: 0x3F}


def test_a_changed_annotation_is_written_and_a_removed_one_gives_the_class_back() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    tasks = scene.add_pod(1, "BE", HALF)
    scene.cycle()
    scene.annotate(1, '{"llc":{"schemata":{"range":[50,100]}}}')
    scene.cycle()
    assert scene.schemata(group(1))["L3"] == {0: 0x7C0, 1: 0x7C0}
    scene.annotate(1, None)
    scene.cycle()
    assert scene.groups() == {"BE"}
    assert scene.members("BE") == set(tasks)


def test_the_group_of_a_pod_that_ended_is_removed() -> None:
    scene = Scene()
    scene.add_pod(1, "LS", HALF)
    scene.cycle()
    scene.remove_pod(1)
    scene.cycle()
    assert (scene.groups(), scene.ledger.entries) == (set(), {})


def test_no_group_is_removed_while_pods_are_not_listed() -> None:
    scene = Scene()
    scene.add_pod(1, "LS", HALF)
    scene.cycle()
    scene.remove_pod(1)
    scene.pods_taken_s = None
    scene.cycle()
    assert scene.groups() == {group(1)}


def test_the_group_of_a_new_pod_exists_before_its_containers() -> None:
    scene = Scene()
    view = scene.start_pod(1, "LS", HALF)
    assert view is not None
    assert view.ready_groups == (group(1),)
    scene.cycle(30)
    assert scene.groups() == {group(1)}  # it may take a while until the pod is listed
    scene.cycle(60)
    assert scene.groups() == set()


def test_a_pod_that_requests_no_group_is_not_prepared() -> None:
    assert Scene().start_pod(1, "LS", "{}") is None


def test_an_invalid_annotation_is_reported_and_the_pod_is_in_the_group_of_its_class() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    tasks = scene.add_pod(1, "BE", '{"llc":{"schemata":{"range":[90,10]}}}')
    view = scene.cycle()
    assert scene.members("BE") == set(tasks)
    assert reasons(view) == {"ResctrlAnnotationInvalid"}


def test_when_groups_are_short_best_effort_comes_first_then_pods_by_age() -> None:
    scene = Scene(Machine(mb_closids=4))  # root and three
    for name, start in (("BE", 0), ("LS", 10), ("LSR", 20)):
        scene.set_class(name, qos(start, 90))
    for number in (3, 1, 2):
        scene.add_pod(number, "LS", HALF)
    view = scene.cycle()
    assert scene.groups() == {"BE", group(1), group(2)}
    assert "ResctrlExhausted" in reasons(view)
    assert scene.tasks_of(3) <= scene.members("")  # its class has no group either
    scene.remove_pod(1)
    scene.cycle()
    assert scene.groups() == {"BE", group(2), group(3)}


def test_a_pod_without_a_group_of_its_own_is_in_that_of_its_class() -> None:
    scene = Scene(Machine(mb_closids=3))
    scene.set_class("BE", qos(0, 30))
    scene.add_pod(1, "BE", HALF)
    scene.add_pod(2, "BE", HALF)
    view = scene.cycle()
    assert scene.tasks_of(2) <= scene.members("BE")
    assert view.ready_groups == ("BE", group(1))


def test_groups_of_other_programs_are_counted_and_never_touched() -> None:
    scene = Scene(Machine(mb_closids=3))
    scene.host.make(f"/sys/fs/resctrl/{OTHERS}")
    scene.host.write(f"/sys/fs/resctrl/{OTHERS}/schemata", "L3:0=3\n")
    task = scene.add_pod(1, "BE")[0]
    scene.host.write(f"/sys/fs/resctrl/{OTHERS}/tasks", f"{task}\n")
    changed: list[str] = []
    scene.set_class("BE", qos(0, 30))
    scene.set_class("LS", qos(30, 100))
    scene.host.resctrl.before_change = lambda _, path: changed.append(path)
    view = scene.cycle(3)
    assert not [path for path in changed if path.startswith(OTHERS)]
    assert scene.members(OTHERS) == {task}
    assert (view.closids, view.foreign_groups) == (1, (OTHERS,))
    scene.restart("off")
    scene.cycle()
    assert scene.groups() == {OTHERS}


def test_a_group_with_the_agents_name_only_belongs_to_another_program() -> None:
    scene = Scene()
    scene.host.make("/sys/fs/resctrl/BE")
    tasks = scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle(2)
    assert scene.schemata("BE")["L3"] == {0: 0x7FF, 1: 0x7FF}
    assert set(tasks) <= scene.members("")
    assert reasons(view) == {"ResctrlForeignGroup"}
    assert view.group_of_class("BE", "test") == ""


def test_a_group_that_another_program_made_again_is_not_the_agents_any_more() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.host.remove("/sys/fs/resctrl/BE")
    scene.host.make("/sys/fs/resctrl/BE")
    view = scene.cycle()
    assert reasons(view) == {"ResctrlForeignGroup"}
    scene.restart("off")
    scene.cycle()
    assert scene.groups() == {"BE"}


def test_a_group_that_another_program_removed_is_made_again() -> None:
    scene = Scene()
    tasks = scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.host.remove("/sys/fs/resctrl/BE")
    scene.cycle(2)
    assert scene.members("BE") == set(tasks)


def test_values_that_another_program_changed_are_written_again_then_contested() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    for _ in range(5):
        scene.host.write("/sys/fs/resctrl/BE/schemata", "L3:0=1\n")
        view = scene.cycle()
    assert reasons(view) == {"ResctrlForeignWriter"}
    assert scene.schemata("BE")["L3"][0] == 1  # not fought for a minute
    scene.cycle(61)
    assert scene.schemata("BE")["L3"][0] == 0xF


def test_new_tasks_of_a_running_container_are_moved() -> None:
    scene = Scene()
    scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    late = scene.host.tasks.add()
    (tasks,) = scene.host.containers.values()
    tasks.add(late)
    scene.cycle()
    assert late in scene.members("BE")


def test_tasks_that_the_group_lacks_are_moved_in_their_order_each_by_itself() -> None:  # V46, R21
    full = {"L3": {0: 0xFF}}
    inputs = PlanInputs(
        capabilities=Capabilities(
            cache=CacheAllocation(lines=("L3",), full_mask=0xFF, closids=8, domains=(0,))
        ),
        classes={"BE": qos(0, 50)},
        pods=(ResctrlPod(uid=uid(1), qos="BE"),),
        pod_tasks={uid(1): frozenset((12, 3, 12, 7))},
        groups={
            "": ExistingGroup(is_own=True, values=full),
            "BE": ExistingGroup(is_own=True, values={"L3": {0: 0xF}}, tasks=frozenset({3})),
        },
    )
    actions = [(one.kind, one.path, one.text) for one in build_plan(inputs).actions]
    assert actions == [(ResctrlActionKind.MOVE, "BE", task) for task in ("7", "12")]


def test_tasks_of_groups_below_a_container_are_moved() -> None:
    scene = Scene()
    scene.add_pod(1, "BE")
    (container,) = scene.host.containers
    inner = scene.host.tasks.add()
    scene.host.containers[f"{container}/inner"] = {inner}
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    assert inner in scene.members("BE")


def test_a_task_that_ends_before_it_is_moved_is_no_failure() -> None:
    scene = Scene()
    first, second = scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))

    def end(operation: str, path: str) -> None:
        if (operation, path) == ("write", "BE/schemata"):
            del scene.host.tasks.parents[first]

    scene.host.resctrl.before_change = end
    view = scene.cycle()
    assert scene.members("BE") == {second}
    assert not view.problems


def test_of_hardware_without_bandwidth_only_the_cache_is_partitioned() -> None:
    scene = Scene(Machine(mb_domains=()))
    scene.set_class("BE", qos(0, 30, 30))
    view = scene.cycle()
    assert scene.schemata("BE") == {"L3": {0: 0xF, 1: 0xF}}
    assert (view.closids, reasons(view)) == (15, set())


def test_of_hardware_without_cache_allocation_only_the_bandwidth_is_partitioned() -> None:
    scene = Scene(Machine(l3_domains=(), rmids=0))
    scene.set_class("BE", qos(0, 30, 30))
    scene.cycle()
    assert scene.schemata("BE") == {"MB": {0: 30, 1: 30}}


def test_code_and_data_get_the_same_mask() -> None:
    scene = Scene(Machine(cdp=True), options="rw,cdp")
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle()
    values = scene.schemata("BE")
    assert values["L3CODE"] == values["L3DATA"] == {0: 0xF, 1: 0xF}
    assert view.mount_options == ("cdp", "rw")


def test_best_effort_pods_get_the_ways_that_devices_use_where_a_setting_says_so() -> None:
    scene = Scene(Machine(l3_shareable=0x600), shared_ways_first=True)
    scene.set_class("BE", qos(0, 30))
    scene.set_class("LSR", qos(30, 100))
    assert not scene.cycle().problems
    assert scene.schemata("BE")["L3"] == {0: 0x780, 1: 0x780}
    assert scene.schemata("LSR")["L3"] == {0: 0x7F, 1: 0x7F}


def test_amd_counts_bandwidth_in_eighths_of_its_own_unit() -> None:
    machine = Machine(
        mb_min=1,
        mb_gran=1,
        mb_max=2048,
        mb_linear=False,
        l3_domains=(0, 1, 8, 9),
        mb_domains=(0, 8),
    )
    scene = Scene(machine, vendor="AuthenticAMD")
    scene.set_class("BE", qos(0, 30, 30))
    scene.cycle()
    assert scene.schemata("BE")["MB"] == {0: 48, 8: 48}
    assert scene.schemata("BE")["L3"] == dict.fromkeys((0, 1, 8, 9), 0xF)


def test_with_mba_mbps_bandwidth_is_left_alone_until_that_of_a_domain_is_set() -> None:
    machine = Machine(mba_mbps=True)
    scene = Scene(machine, options="rw,mba_MBps")
    scene.set_class("BE", qos(0, 30, 30))
    view = scene.cycle()
    assert scene.schemata("BE")["MB"] == {0: MAX_MBPS, 1: MAX_MBPS}
    assert reasons(view) == {"ResctrlBandwidthUnknown"}
    scene = Scene(machine, options="rw,mba_MBps", domain_mbps=100_000)
    scene.set_class("BE", qos(0, 30, 30))
    assert not scene.cycle().problems
    assert scene.schemata("BE")["MB"] == {0: 30_000, 1: 30_000}


def test_values_that_the_kernel_rounds_are_written_once() -> None:
    scene = Scene(Machine(mb_gran=8, mb_linear=False))
    scene.set_class("BE", qos(0, 30, 35))
    scene.cycle()
    assert scene.schemata("BE")["MB"] == {0: 40, 1: 40}
    written = scene.manager.view.schemata_written
    assert scene.cycle(5).schemata_written == written


def test_without_a_file_system_the_state_says_so() -> None:
    scene = Scene()
    scene.host.unmount()
    scene.host.is_mounted = False
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle(2)
    assert view.state is StrategyState.UNSUPPORTED
    assert not view.problems


def test_the_file_system_is_mounted_only_where_a_setting_allows_it() -> None:
    scene = Scene(mount=True)
    scene.host.is_mounted = False
    scene.cycle()
    assert not scene.host.is_mounted  # nobody asks for a partition
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    assert scene.host.is_mounted
    assert scene.groups() == {"BE"}


def test_a_new_mount_is_filled_again() -> None:
    scene = Scene()
    tasks = scene.add_pod(1)
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.host.unmount()
    scene.cycle()
    scene.host.mount("/sys/fs/resctrl")
    scene.cycle(40)
    assert scene.members("BE") == set(tasks)


def test_an_unconfirmed_nodeslo_changes_nothing() -> None:
    scene = Scene()
    scene.add_pod(1)
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.is_slo_confirmed = False
    scene.clock.advance(3600)
    scene.set_class("BE", qos(0, 80))
    scene.set_class("LS", qos(0, 40))
    view = scene.cycle(2)
    assert scene.groups() == {"BE"}
    assert scene.schemata("BE")["L3"][0] == 0xF
    assert "not confirmed" in view.message


def test_after_a_restart_without_a_nodeslo_the_groups_of_classes_stay() -> None:
    scene = Scene()
    scene.add_pod(1)
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.is_slo_confirmed, scene.slo_taken_s = False, None
    scene.restart()
    view = scene.cycle(2)
    assert scene.groups() == {"BE"}
    assert view.state is StrategyState.FROZEN
    scene.is_slo_confirmed = True
    scene.classes.clear()
    scene.cycle()
    assert scene.groups() == set()


def test_plan_mode_changes_nothing_and_reports_its_actions() -> None:
    scene = Scene(mode="plan")
    scene.set_class("BE", qos(0, 30))
    scene.add_pod(1, "BE", HALF)
    scene.clock.advance(1)
    report = scene.manager.cycle(scene.snapshot, None)
    assert scene.groups() == set()
    kinds = [(action.kind, action.path) for action in report.view.planned]
    assert kinds == [
        (ResctrlActionKind.MAKE, "BE"),
        (ResctrlActionKind.WRITE, "BE"),
        (ResctrlActionKind.MAKE, group(1)),
        (ResctrlActionKind.WRITE, group(1)),
    ]
    assert {record.planned for record in report.audits} == {True}
    assert report.audits[1].new == "L3:0=f;1=f"
    assert report.audits[1].source == "NodeSLO class BE"
    scene.clock.advance(1)
    assert scene.manager.cycle(scene.snapshot, None).audits == ()


@pytest.mark.parametrize("mode", ["off", "plan"])
def test_a_mode_below_on_removes_what_was_made(mode: str) -> None:
    scene = Scene()
    tasks = scene.add_pod(1)
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.restart(mode)
    scene.cycle()
    assert scene.groups() == set()
    assert set(tasks) <= scene.members("")
    assert not scene.ledger.entries


def test_pods_are_monitored_if_a_setting_says_so() -> None:
    scene = Scene(monitor_pods=True)
    first, second = scene.add_pod(1, "BE"), scene.add_pod(2, "LS")
    scene.add_pod(3, "LS", HALF)  # its own group counts it already
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle()
    groups = scene.host.resctrl.groups
    assert {name: set(groups[name].monitored) for name in groups} == {
        "": {f"xpu-{scene.pods[2].uid}"},
        "BE": {f"xpu-{scene.pods[1].uid}"},
        group(3): set(),
    }
    resctrl = scene.host.resctrl
    assert set(resctrl.tasks("BE", f"xpu-{scene.pods[1].uid}")) == set(first)
    assert set(resctrl.tasks("", f"xpu-{scene.pods[2].uid}")) == set(second)
    assert view.monitored_pods == 2
    scene.remove_pod(1)
    scene.cycle()
    assert groups["BE"].monitored == {}
    scene.restart("off")
    scene.cycle()
    assert (groups[""].monitored, scene.ledger.entries) == ({}, {})


def test_monitoring_ids_that_are_short_are_reported() -> None:
    scene = Scene(Machine(rmids=4), monitor_pods=True)
    for number in range(6):
        scene.add_pod(number, "BE")
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle(2)
    assert len(scene.host.resctrl.groups["BE"].monitored) == view.monitored_pods == 2
    assert reasons(view) == {"ResctrlMonitorExhausted"}


def test_the_state_follows_a_nodeslo_that_is_confirmed_or_requests_nothing_more() -> None:
    scene = Scene()
    scene.is_slo_confirmed, scene.slo_taken_s = False, None
    assert scene.cycle(2).state is StrategyState.FROZEN
    scene.is_slo_confirmed = True
    assert scene.cycle().state is StrategyState.IDLE
    scene.set_class("BE", qos(0, 30))
    assert scene.cycle().state is StrategyState.ACTIVE
    scene.host.unmount()
    assert scene.cycle(40).state is StrategyState.UNSUPPORTED
    scene.classes.clear()
    assert scene.cycle().state is StrategyState.IDLE


def test_all_of_the_bandwidth_is_100_percent_even_if_the_root_group_has_less() -> None:
    scene = Scene()
    scene.host.write("/sys/fs/resctrl/schemata", "MB:0=50;1=50\n")
    scene.set_class("LSR", qos(0, 100, 100))
    scene.cycle()
    assert scene.schemata("LSR")["MB"] == {0: 100, 1: 100}


def test_a_group_whose_inode_is_not_readable_is_removed_at_once() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    real = scene.host.inode

    def refuse(path: str) -> int:
        raise HostFileError(path, errno.EIO)

    scene.host.inode = refuse  # type: ignore[method-assign]
    view = scene.cycle()
    assert (scene.groups(), scene.ledger.entries) == (set(), {})
    assert reasons(view) == {"ResctrlFailed"}
    scene.host.inode = real  # type: ignore[method-assign]
    scene.cycle(70)
    assert scene.groups() == {"BE"}
