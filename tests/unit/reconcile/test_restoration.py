from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.processes import OOM_SCORE_ADJ
from agent.cgroup.values import KernelFiles
from agent.clock import ManualClock
from agent.containers.cpu_quota import RATIO, NodeRatio, NormalizationHook
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.reconcile.desired_state import DesiredOomScore
from agent.reconcile.oom_scores import OomScores
from agent.reconcile.restoration import UNDO_AGAIN_S
from agent.snapshot.cluster import ClusterView, KubeletView, NodeView
from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView
from agent.snapshot.slo import NodeSloView
from tests.clustered import KUBELET
from tests.realgroups import UID, RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import CannedHook, Scene

pytestmark = [needs_v1, pytest.mark.root]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def cpus(text: str) -> Adjustment:
    return Adjustment(resources=LinuxResources(cpus=text))


def quota(quota_us: int) -> Adjustment:
    return Adjustment(resources=LinuxResources(quota_us=quota_us, period_us=100000))


def test_a_hook_that_is_switched_off_has_its_changes_taken_back(groups: RealGroups) -> None:
    hook, other = CannedHook(), CannedHook("batch_resources")
    hook.answers, other.answers = {"app": cpus("1")}, {None: quota(50000)}
    scene = Scene(groups, hook, other)
    assert scene.cycle().written == 2
    scene.modes["cpuset"] = "off"
    scene.again()
    scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"
    assert groups.get(scene.pod, "cpu.cfs_quota_us") == "50000"


def test_a_value_that_another_program_wrote_is_checked_seldom(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    scene.modes["cpuset"] = "off"
    scene.again()
    groups.put(scene.container, "cpuset.cpus", "0")
    for _ in range(30):
        scene.cycle()
    audits = [audit.message for audit in scene.reconciler.audits]
    assert audits == ["put back: foreign"]
    groups.put(scene.container, "cpuset.cpus", "1")
    scene.cycle(UNDO_AGAIN_S)
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"


def cpus_of(scene: Scene) -> list[str]:
    cgroups = (scene.pod, scene.container, scene.sandbox)
    return [scene.groups.get(cgroup, "cpuset.cpus") for cgroup in cgroups]


def refuse_containers(scene: Scene, hook: str) -> None:
    """Switch the hook off that set containers, whose pod has too few CPUs for their originals."""
    scene.modes[hook] = "off"
    scene.renew()
    for _ in range(5):
        scene.cycle()
    assert cpus_of(scene) == ["1"] * 3
    # nothing is tried again without a reason
    assert [audit.restore for audit in scene.reconciler.audits if audit.restore] == ["refused"] * 2


def test_containers_have_their_cpus_again_in_the_cycle_that_restores_their_pod(
    groups: RealGroups,
) -> None:
    hook, other = CannedHook("of_pods"), CannedHook("of_containers")
    hook.answers, other.answers = {None: cpus("1")}, {"app": cpus("1"), "": cpus("1")}
    scene = Scene(groups, hook, other)
    scene.cycle()
    refuse_containers(scene, "of_containers")
    scene.modes["of_pods"] = "off"
    scene.renew()
    scene.cycle()
    assert cpus_of(scene) == ["0-1"] * 3
    assert scene.ledger.entries == {}


def test_containers_have_their_cpus_again_when_another_program_widens_their_pod(
    groups: RealGroups,
) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1"), "": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    groups.put(scene.pod, "cpuset.cpus", "1")
    refuse_containers(scene, "cpuset")
    groups.put(scene.pod, "cpuset.cpus", "0-1")
    scene.cycle()
    assert cpus_of(scene) == ["0-1"] * 3


def test_a_value_that_is_not_desired_any_more_is_restored_after_a_while(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    scene.cycle(61.0)
    hook.answers = {}
    scene.renew()
    for _ in range(11):
        assert groups.get(scene.container, "cpuset.cpus") == "1"
        scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"
    assert scene.ledger.entries == {}


def test_values_of_a_pod_for_which_no_hook_was_called_stay(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    scene.cycle(61.0)
    scene.renew(pods=SnapshotPart((), 1.0))
    for _ in range(20):
        scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == "1"
    assert len(scene.ledger.entries) == 1


@pytest.mark.parametrize(
    ("kubelet", "is_unchanged"),
    [
        pytest.param(SnapshotPart(None, None, "refused"), True, id="it does not answer"),
        pytest.param(
            SnapshotPart(KubeletView(cpu_manager_policy="none"), 1.0), True, id="half of it"
        ),
        pytest.param(SnapshotPart(KUBELET, 1.0), False, id="it told"),
        pytest.param(SnapshotPart(None), False, id="it is not asked"),
    ],
)
def test_cpus_stay_as_they_are_while_nobody_knows_whom_they_belong_to(
    groups: RealGroups, kubelet: SnapshotPart[KubeletView | None], is_unchanged: bool
) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1"), None: quota(50000)}
    scene = Scene(groups, hook)
    scene.cycle()
    hook.answers = {}
    scene.again()
    scene.cycle()
    scene.cycle(61.0)
    now: SnapshotPart[NodeView | None] = SnapshotPart(None, scene.clock.monotonic())
    slo = SnapshotPart(NodeSloView(), scene.clock.monotonic())
    scene.renew(cluster=ClusterView(is_clustered=True, node=now, slo=slo, kubelet=kubelet))
    for _ in range(15):
        scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == ("1" if is_unchanged else "0-1")
    assert groups.get(scene.pod, "cpu.cfs_quota_us") == "-1"


def test_hooks_that_are_silent_right_after_a_start_take_nothing_back(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    hook.answers = {}
    scene.again()
    for _ in range(30):
        scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == "1"


def test_entries_of_groups_that_are_gone_are_dropped(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    assert len(scene.ledger.entries) == 1
    groups.path("cpuset", scene.container).rmdir()
    scene.renew(pods=SnapshotPart((), 1.0))
    scene.cycle(31.0)
    assert scene.ledger.entries == {}


def test_a_new_group_in_the_place_of_one_that_is_gone_has_its_own_original(
    groups: RealGroups,
) -> None:
    hook = CannedHook("batch_resources")
    hook.answers = {"app": Adjustment(resources=LinuxResources(shares=2))}
    scene = Scene(groups, hook)
    groups.put(scene.container, "cpu.shares", "512")
    scene.cycle()
    for controller in ("cpu", "cpuset", "memory"):
        groups.path(controller, scene.container).rmdir()
    assert groups.container(scene.pod, 1) == scene.container
    groups.put(scene.container, "cpu.shares", "768")
    scene.cycle()
    assert groups.get(scene.container, "cpu.shares") == "2"
    (entry,) = scene.ledger.entries.values()
    assert entry.original == "768"
    assert entry.inode == groups.path("cpu", scene.container).stat().st_ino


def test_a_value_that_the_runtime_set_for_the_agent_is_restored_as_requested(
    groups: RealGroups,
) -> None:
    hook = CannedHook("batch_resources")
    hook.answers = {"app": Adjustment(resources=LinuxResources(quota_us=-1, shares=2))}
    scene = Scene(groups, hook)
    groups.put(scene.container, "cpu.shares", "2")
    requested = LinuxResources(quota_us=150000, shares=512)
    scene.reconciler.record_request(UID, "app", requested, ((hook.name, hook.answers["app"]),))
    assert scene.cycle().written == 0
    scene.modes["batch_resources"] = "off"
    scene.again()
    scene.cycle()
    assert groups.get(scene.container, "cpu.shares") == "512"
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "150000"


def test_a_resize_during_the_agents_value_is_restored(groups: RealGroups) -> None:
    hook = CannedHook("batch_resources")
    hook.answers = {"app": Adjustment(resources=LinuxResources(quota_us=-1, shares=2))}
    scene = Scene(groups, hook)
    groups.put(scene.container, "cpu.cfs_quota_us", "200000")
    scene.cycle()
    # the runtime never writes what the kubelet asks for: our answer has our value
    scene.reconciler.record_request(UID, "app", LinuxResources(quota_us=400000), runs=True)
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "-1"
    scene.modes["batch_resources"] = "off"
    scene.again()
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "400000"
    assert groups.get(scene.container, "cpu.shares") == "1024"


@pytest.mark.parametrize("runs", [False, True])
def test_a_request_that_means_nothing_costs_only_itself(groups: RealGroups, runs: bool) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("0-1"), None: quota(50000)}
    scene = Scene(groups, hook)
    requested = LinuxResources(cpus="all of them", shares=1)
    answers = ((hook.name, cpus("0-1")),)
    scene.reconciler.record_request(UID, "app", requested, answers, runs=runs)
    assert scene.cycle().written == 1
    assert groups.get(scene.pod, "cpu.cfs_quota_us") == "50000"


def test_every_process_of_a_container_gets_its_score_and_the_first_back(
    groups: RealGroups,
) -> None:
    hook = CannedHook("oom_score")
    hook.answers = {"app": Adjustment(oom_score_adj=321)}
    scene = Scene(groups, hook)
    pids = groups.sleeper(scene.container), groups.sleeper(groups.make(f"{scene.container}/in"))
    before = score(pids[0])
    outside = groups.sleeper(scene.sandbox)
    scene.cycle()
    assert [score(pid) for pid in (*pids, outside)] == ["321", "321", before]
    hook.answers = {}
    scene.cycle(61.0)
    scene.renew()
    for _ in range(12):
        scene.cycle()
    assert [score(pid) for pid in pids] == [before, before]


def test_a_score_that_may_not_be_written_is_reported_without_the_process(
    groups: RealGroups,
) -> None:
    class NotPermitted(KernelFiles):
        def write(self, path: str, text: str) -> None:  # noqa: ARG002 - as its Protocol
            raise HostFileError(path, errno.EPERM)

    scores = OomScores(NotPermitted(LiveHostFiles()), ChangeLedger(None, ""), ManualClock())
    scene = Scene(groups)
    wish = DesiredOomScore(cgroup=scene.container, value=321, owner="oom_score")
    problems = set()
    for seconds in (0.0, 61.0):
        groups.sleeper(scene.container)
        scores.apply(scores.prepare([wish], groups.layout, seconds), seconds)
        problems.add(scores.problem)
    assert problems == {"/proc/PID/oom_score_adj: Operation not permitted"}


def test_an_earlier_container_of_the_name_is_not_taken_for_the_one_that_was_answered(
    groups: RealGroups,
) -> None:
    hook = CannedHook("batch_resources")
    hook.answers = {"app": Adjustment(resources=LinuxResources(shares=2))}
    scene = Scene(groups, hook)
    groups.put(scene.container, "cpu.shares", "2")
    scene.cycle()
    answers = ((hook.name, hook.answers["app"]),)
    scene.reconciler.record_request(UID, "app", LinuxResources(shares=512), answers)
    scene.cycle()  # the old one is still there
    assert scene.ledger.entries == {}
    new = groups.container(scene.pod, 3)
    groups.put(new, "cpu.shares", "2")
    view = ContainerView(id=new.rpartition("/")[2], name="app", cgroup=new)
    scene.renew(pods=SnapshotPart((scene.view(containers=(view,)),), 1.0))
    scene.cycle()
    (entry,) = scene.ledger.entries.values()
    assert (entry.path, entry.original) == (new, "512")


def score(pid: int) -> str:
    with open(f"/proc/{pid}/{OOM_SCORE_ADJ}") as file:  # noqa: PTH123 - a kernel file
        return file.read().strip()


def test_a_quota_that_was_scaled_at_creation_is_not_scaled_again(groups: RealGroups) -> None:
    scene = Scene(groups, NormalizationHook(NodeRatio()))
    node = NodeView(name="node", uid="node", annotations=((RATIO, "1.2"),))
    scene.renew(cluster=ClusterView(node=SnapshotPart(node, 1.0)))
    groups.put(scene.container, "cpu.cfs_quota_us", "166667")  # as the runtime was answered
    answers = (("cpu_normalization", quota(166667)),)
    scene.reconciler.record_request(UID, "app", LinuxResources(quota_us=200000), answers)
    for _ in range(3):
        scene.cycle()
        assert groups.get(scene.container, "cpu.cfs_quota_us") == "166667"
    scene.modes["cpu_normalization"] = "off"
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "200000"


def scaled_scene(groups: RealGroups) -> Scene:
    """Return a node whose CPUs do 1.2 times the work, with a container of two CPUs."""
    scene = Scene(groups, NormalizationHook(NodeRatio()))
    node = NodeView(name="node", uid="node", annotations=((RATIO, "1.2"),))
    scene.renew(cluster=ClusterView(node=SnapshotPart(node, 1.0)))
    groups.put(scene.container, "cpu.cfs_quota_us", "200000")
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "166667"
    return scene


def test_a_scaled_quota_follows_a_resize_that_the_hooks_answered(groups: RealGroups) -> None:
    scene = scaled_scene(groups)
    groups.put(scene.container, "cpu.cfs_quota_us", "250000")  # as the runtime was answered
    scene.reconciler.record_request(UID, "app", LinuxResources(quota_us=300000), runs=True)
    assert [scene.cycle().written for _ in range(3)] == [0, 0, 0]
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "250000"
    scene.modes["cpu_normalization"] = "off"
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "300000"


def test_a_scaled_quota_follows_a_resize_that_went_past_the_hooks(groups: RealGroups) -> None:
    scene = scaled_scene(groups)
    groups.put(scene.container, "cpu.cfs_quota_us", "300000")
    scene.cycle()
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "250000"
    assert scene.cycle().written == 0
    scene.modes["cpu_normalization"] = "off"
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "300000"


def ratio_view(text: str = "1.2") -> ClusterView:
    node = NodeView(name="node", uid="node", annotations=((RATIO, text),))
    return ClusterView(node=SnapshotPart(node, 1.0))


def test_a_quota_whose_ratio_changes_before_the_first_cycle_is_scaled_once(
    groups: RealGroups,
) -> None:
    scene = Scene(groups, NormalizationHook(NodeRatio()))
    groups.put(scene.container, "cpu.cfs_quota_us", "166667")  # as the runtime was answered
    answers = (("cpu_normalization", quota(166667)),)
    scene.reconciler.record_request(UID, "app", LinuxResources(quota_us=200000), answers)
    scene.renew(cluster=ratio_view("1.6"))
    for _ in range(3):
        scene.cycle()
        assert groups.get(scene.container, "cpu.cfs_quota_us") == "125000"
        scene.again()  # hooks are asked again
    scene.modes["cpu_normalization"] = "off"
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "200000"


def test_cpus_that_change_before_the_first_cycle_are_restored_as_requested(
    groups: RealGroups,
) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    groups.put(scene.container, "cpuset.cpus", "0")  # as the runtime was answered
    answers = ((hook.name, cpus("0")),)
    scene.reconciler.record_request(UID, "app", LinuxResources(cpus="0-1"), answers)
    scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == "1"
    scene.modes["cpuset"] = "off"
    scene.again()
    scene.cycle()
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"


def test_an_answer_that_no_hook_gives_any_more_before_the_first_cycle_is_taken_back(
    groups: RealGroups,
) -> None:
    hook = CannedHook()
    scene = Scene(groups, hook)
    groups.put(scene.container, "cpuset.cpus", "0")  # as the runtime was answered
    answers = ((hook.name, cpus("0")),)
    scene.reconciler.record_request(UID, "app", LinuxResources(cpus="0-1"), answers)
    scene.cycle()
    for _ in range(12):
        scene.cycle(10.0)
        scene.renew()
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_limit_that_a_resize_adds_is_scaled_once(groups: RealGroups, is_late: bool) -> None:
    scene = Scene(groups, NormalizationHook(NodeRatio()))
    scene.renew(cluster=ratio_view())
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "-1"
    scene.reconciler.record_request(UID, "app", LinuxResources(quota_us=200000), runs=True)
    if is_late:  # the runtime writes what it was answered after the next cycle
        scene.cycle()
    groups.put(scene.container, "cpu.cfs_quota_us", "166667")
    for _ in range(4):
        scene.cycle()
        assert groups.get(scene.container, "cpu.cfs_quota_us") == "166667"
        scene.renew()  # hooks are asked again
    scene.again()
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "166667"
    scene.renew(cluster=ratio_view("1.6"))
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "125000"
    scene.modes["cpu_normalization"] = "off"
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "200000"


def test_a_limit_that_resizes_remove_and_add_again_is_scaled_once(groups: RealGroups) -> None:
    scene = scaled_scene(groups)
    for requested, answered in ((-1, -1), (300000, 250000)):
        scene.reconciler.record_request(UID, "app", LinuxResources(quota_us=requested), runs=True)
        groups.put(scene.container, "cpu.cfs_quota_us", str(answered))
        for _ in range(4):
            scene.cycle()
            assert groups.get(scene.container, "cpu.cfs_quota_us") == str(answered)
            scene.renew()  # hooks are asked again
    scene.modes["cpu_normalization"] = "off"
    scene.cycle()
    assert groups.get(scene.container, "cpu.cfs_quota_us") == "300000"
