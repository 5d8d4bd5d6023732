"""Limits of block IO: Koordinator's lines on version 1, and what they become on version 2."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from agent.cgroup import device_values as devices
from agent.cgroup.device_values import NO_LINE
from agent.cgroup.keys import CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.qos.block_io import BlockIoStrategy
from agent.qos.strategy import QosInputs, QosPod, StrategyPlan
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import ClusterView
from agent.snapshot.cpu import CpuSet
from agent.snapshot.pod import KubeQos, PodView, PodVolume
from agent.snapshot.self_check import StrategyState
from agent.snapshot.usage import BlockDevice, DiskCounters, Mount, StorageUsage, UsageSample
from tests.realgroups import UID

V1 = CgroupLayout(
    version=1,
    driver="cgroupfs",
    mounts=(("blkio", "/sys/fs/cgroup/blkio"),),
    unified=None,
    root="/kubepods",
)
V2 = CgroupLayout(
    version=2, driver="cgroupfs", mounts=(), unified="/sys/fs/cgroup", root="/kubepods"
)
BEST_EFFORT, POD = "/kubepods/besteffort", f"/kubepods/pod{UID}"
VOLUMES = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~csi"
STORAGE = StorageUsage(
    devices=(
        BlockDevice(name="vda", number="253:0", kind="disk", size_bytes=1),
        BlockDevice(name="vdb", number="253:16", kind="disk", size_bytes=1),
        BlockDevice(name="vdb1", number="253:17", kind="part", size_bytes=1, parents=("vdb",)),
        BlockDevice(
            name="dm-0",
            number="254:0",
            kind="lvm",
            size_bytes=1,
            mapper_name="data-one",
            parents=("vdb1",),
            volume_group="data",
        ),
        BlockDevice(
            name="dm-1",
            number="254:1",
            kind="crypt",
            size_bytes=1,
            mapper_name="safe",
            parents=("vdb1",),
        ),
    ),
    volume_groups={"data": ("vdb1",)},
    mounts=(
        Mount(path=f"{VOLUMES}/pvc-1/mount", device="dm-0", filesystem="ext4"),
        Mount(path=f"{VOLUMES}/scratch/mount", device="vda", filesystem="xfs"),
    ),
)
LIMITS = {
    "ioWeightPercent": 40,
    "readIOPS": 1024,
    "writeIOPS": 1024,
    "readBPS": 1048576,
    "writeBPS": 1048576,
}
MODEL = {
    "enableUserModel": True,
    "modelReadBPS": 3324911720,
    "modelReadSeqIOPS": 168274,
    "modelReadRandIOPS": 352545,
    "modelWriteBPS": 2765819289,
    "modelWriteSeqIOPS": 367565,
    "modelWriteRandIOPS": 339390,
}
LATENCIES = {
    "readLatency": 1000,
    "writeLatency": 1000,
    "readLatencyPercent": 90,
    "writeLatencyPercent": 90,
}
MODEL_TEXT = (
    "rbps=3324911720 rseqiops=168274 rrandiops=352545 wbps=2765819289 wseqiops=367565"
    " wrandiops=339390"
)
HTML = {
    "blocks": [{"name": "html", "type": "podvolume", "ioCfg": {"readIOPS": 1024, "writeIOPS": 512}}]
}


class Files:
    """Files that all exist, without a line, unless a test says otherwise."""

    def __init__(self, *absent: str) -> None:
        self.absent = absent
        self.lines: dict[tuple[str, str], CgroupValue] = {}

    def value(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        if key.name.partition(" ")[0] in self.absent:
            return None
        return self.lines.get((cgroup, key.name), NO_LINE)

    def original(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:  # noqa: ARG002 - as its Protocol
        return None

    def effective_cpus(self, cgroup: str) -> CpuSet | None:  # noqa: ARG002 - as its Protocol
        return None


def pod(annotation: object = None, **changes: object) -> QosPod:
    """Return a pod that asks for limits."""
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    values: dict[str, object] = {
        "uid": UID,
        "qos": KubeQos.BURSTABLE,
        "name": "web",
        "namespace": "shop",
        "cgroup": POD,
        "phase": "Running",
        "annotations": (("koordinator.sh/blkioQOS", text),),
        "volumes": (PodVolume(name="html", claim="html-claim"), PodVolume(name="scratch")),
        **changes,
    }
    view = PodView(**values)  # type: ignore[arg-type]
    return QosPod(
        view=view, label="LS", qos_class="LS", priority_class="koord-prod", is_active=True
    )


def inputs(
    *pods: QosPod,
    slo: object = None,
    layout: CgroupLayout = V1,
    storage: StorageUsage | None = STORAGE,
    files: Files | None = None,
    volume_names: Mapping[str, str] = {"shop/html-claim": "pvc-1"},
) -> QosInputs:
    """Return the inputs of one cycle."""
    return QosInputs(
        now_s=1.0,
        slo=overlay_spec({"resourceQOSStrategy": slo or {}}).slo,
        usage=UsageSample(storage=storage),
        pods=pods,
        has_pods=True,
        cluster=ClusterView(volume_names=volume_names),
        layout=layout,
        current=files or Files(),
    )


def usage_of(devices: tuple[BlockDevice, ...]) -> UsageSample:
    """Return a new sample with these devices."""
    return UsageSample(storage=replace(STORAGE, devices=devices))


def plan_of(qos_inputs: QosInputs) -> StrategyPlan:
    """Return the first plan."""
    return BlockIoStrategy().plan(qos_inputs, BlockIoStrategy().start())[0]


def lines(qos_inputs: QosInputs) -> dict[tuple[str, str], str]:
    """Return the desired line of each group and file."""
    return {
        (value.cgroup, value.key.name.partition(" ")[0]): value.key.text(
            qos_inputs.layout.version, value.value
        )
        for value in plan_of(qos_inputs).values
    }


def best_effort(*blocks: Mapping[str, object]) -> dict[str, object]:
    return {"beClass": {"blkioQOS": {"enable": True, "blocks": list(blocks)}}}


def root(io_cfg: object) -> dict[str, object]:
    block = {"name": "/dev/vdb", "type": "device", "ioCfg": io_cfg}
    return {"cgroupRoot": {"blkioQOS": {"enable": True, "blocks": [block]}}}


GROUP = {"name": "data", "type": "volumegroup", "ioCfg": LIMITS}


def test_best_effort_pods_are_limited_on_the_disk_of_a_volume_group() -> None:  # I1
    assert lines(inputs(slo=best_effort(GROUP))) == {
        (BEST_EFFORT, "blkio.throttle.read_iops_device"): "253:16 1024",
        (BEST_EFFORT, "blkio.throttle.read_bps_device"): "253:16 1048576",
        (BEST_EFFORT, "blkio.throttle.write_iops_device"): "253:16 1024",
        (BEST_EFFORT, "blkio.throttle.write_bps_device"): "253:16 1048576",
        (BEST_EFFORT, "blkio.cost.weight"): "253:16 40",
    }


@pytest.mark.parametrize(
    ("layout", "config", "qos", "model"),
    [
        (
            V1,
            {**LATENCIES, **MODEL},
            "253:16 enable=1 ctrl=user rpct=90 rlat=1000 wpct=90 wlat=1000",
            f"253:16 ctrl=user {MODEL_TEXT}",
        ),  # I2
        (
            V1,
            {},
            "253:16 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000",
            "253:16 ctrl=auto",
        ),  # I3
        (
            V2,
            {**LATENCIES, **MODEL},
            "253:16 enable=1 ctrl=user rpct=90.00 rlat=1000 wpct=90.00 wlat=1000",
            f"253:16 ctrl=user model=linear {MODEL_TEXT}",
        ),
        (
            V2,
            {},
            "253:16 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000",
            "253:16 ctrl=auto",
        ),
    ],
)
def test_the_root_has_the_latency_targets_and_the_cost_model_of_a_disk(
    layout: CgroupLayout, config: object, qos: str, model: str
) -> None:
    prefix = "blkio" if layout.version == 1 else "io"
    assert lines(inputs(slo=root(config), layout=layout)) == {
        ("/", f"{prefix}.cost.qos"): qos,
        ("/", f"{prefix}.cost.model"): model,
    }


def test_a_pod_is_limited_on_the_disk_of_its_volume() -> None:  # I4
    assert lines(inputs(pod(HTML))) == {
        (POD, "blkio.throttle.read_iops_device"): "253:16 1024",
        (POD, "blkio.throttle.read_bps_device"): "253:16 0",
        (POD, "blkio.throttle.write_iops_device"): "253:16 512",
        (POD, "blkio.throttle.write_bps_device"): "253:16 0",
        (POD, "blkio.cost.weight"): "253:16 100",
    }


def test_version_2_has_one_line_for_all_limits_of_a_disk() -> None:  # I6
    files = Files()
    files.lines["/", "io.cost.qos 253:16"] = devices.parse_fields(devices.LATENCY, "enable=1")
    assert lines(inputs(slo=best_effort(GROUP), layout=V2, files=files)) == {
        (BEST_EFFORT, "io.max"): "253:16 rbps=1048576 wbps=1048576 riops=1024 wiops=1024",
        (BEST_EFFORT, "io.weight"): "253:16 40",
    }


def test_version_2_has_no_limit_where_a_pod_names_none() -> None:  # I7
    assert lines(inputs(pod(HTML), layout=V2)) == {
        (POD, "io.max"): "253:16 rbps=max wbps=max riops=1024 wiops=512"
    }


@pytest.mark.parametrize(
    ("line", "limit", "is_written"),
    [("253:16 2048", "0", True), ("253:1 2048", "0", False), ("253:16 2048", "2048", False)],
)
def test_a_limit_of_0_is_written_only_where_there_is_a_line(  # I5
    line: str, limit: str, is_written: bool
) -> None:
    number = "253:16"
    key = devices.device_line(devices.READ_IOPS, {"": limit})
    current = devices.parse_device_line(devices.READ_IOPS, number, f"{line}\n".encode())
    assert (not devices.is_same_line(devices.READ_IOPS, key, current)) is is_written


@pytest.mark.parametrize(
    ("block", "disks"),
    [
        ({"name": "vdb"}, ["253:16"]),
        ({"name": "/dev/vdb1"}, ["253:16"]),
        ({"name": "/dev/mapper/data-one"}, ["253:16"]),
        ({"name": "/dev/mapper/safe"}, ["254:1"]),
        ({"name": "data", "type": "volumegroup"}, ["253:16"]),
        ({"name": "sdz"}, []),
        ({"name": "none", "type": "volumegroup"}, []),
        ({"name": "html", "type": "podvolume"}, []),  # that is of pods
    ],
)
def test_a_block_names_whole_disks(block: dict[str, object], disks: list[str]) -> None:
    plan = plan_of(inputs(slo=best_effort({**block, "ioCfg": {"readBPS": 5}}), layout=V2))
    assert [value.key.device for value in plan.values] == disks
    assert bool(plan.message) is not bool(disks)


@pytest.mark.parametrize(
    ("volume", "names", "disks"),
    [
        ("html", {"shop/html-claim": "pvc-1"}, ["253:16"]),
        ("html", {}, []),
        ("html", {"other/html-claim": "pvc-1"}, []),
        ("html", {"shop/html-claim": "pvc-2"}, []),  # mounted on another node
        ("scratch", {}, ["253:0"]),
        ("logs", {}, []),
    ],
)
def test_the_volume_of_a_pod_is_found_by_its_mount(
    volume: str, names: dict[str, str], disks: list[str]
) -> None:
    block = {"name": volume, "type": "podvolume", "ioCfg": {"readBPS": 5}}
    plan = plan_of(inputs(pod({"blocks": [block]}), layout=V2, volume_names=names))
    assert [value.key.device for value in plan.values] == disks


def test_a_block_whose_disk_is_unknown_does_not_affect_the_others() -> None:
    plan = plan_of(
        inputs(slo=best_effort({"name": "sdz", "ioCfg": {"readBPS": 5}}, GROUP), layout=V1)
    )
    assert len(plan.values) == 5
    assert "'sdz'" in plan.message


@pytest.mark.parametrize(
    ("annotation", "count"),
    [
        ("", 0),
        ("{", 0),
        ("[]", 0),
        ({"blocks": [{"name": "vdb", "ioCfg": {"readIOPS": "many"}}]}, 0),
        ({"blocks": [{"name": "vdb", "ioCfg": {"readIOPS": -1}}]}, 0),
        ({"BLOCKS": [{"Name": "vdb", "iocfg": {"READIOPS": 5}}]}, 1),
        ({"blocks": [{"name": "vdb", "iocfg": {"readIOPS": 5}, "later": 1}]}, 1),
        ({"blocks": None}, 0),
    ],
)
def test_the_annotation_of_a_pod_is_read_as_go_reads_it(annotation: object, count: int) -> None:
    assert len(lines(inputs(pod(annotation), layout=V2))) == count


@pytest.mark.parametrize(
    "change", [{"phase": "Pending"}, {"phase": "Succeeded"}, {"cgroup": ""}, {"annotations": ()}]
)
def test_a_pod_that_does_not_run_is_left_alone(change: dict[str, object]) -> None:
    assert plan_of(inputs(pod(HTML, **change))).values == ()


def test_a_pod_without_a_qos_label_is_left_alone() -> None:
    one = pod(HTML)
    unlabelled = QosPod(
        view=one.view, label="", qos_class="LS", priority_class="koord-prod", is_active=True
    )
    assert plan_of(inputs(unlabelled)).values == ()


def test_what_the_kernel_lacks_is_reported_and_the_rest_is_limited() -> None:
    files = Files("blkio.cost.weight")
    plan = plan_of(inputs(slo=best_effort(GROUP), files=files))
    assert len(plan.values) == 4
    assert (plan.state, plan.message) == (
        StrategyState.ACTIVE,
        "not on this kernel: blkio.cost.weight",
    )


def test_without_any_of_the_files_the_strategy_is_unsupported() -> None:
    files = Files("io.max", "io.weight")
    plan = plan_of(inputs(slo=best_effort(GROUP), layout=V2, files=files))
    assert (plan.values, plan.state) == ((), StrategyState.UNSUPPORTED)


def test_a_weight_without_cost_control_of_the_disk_is_reported() -> None:
    plan = plan_of(inputs(slo=best_effort(GROUP), layout=V2))
    assert [value.key.name for value in plan.values] == ["io.max 253:16"]
    assert "the weight has no effect on 253:16" in plan.message


def test_a_weight_comes_with_the_cost_control_of_the_same_node_slo() -> None:
    slo = {**root({}), **best_effort(GROUP)}
    assert (BEST_EFFORT, "io.weight") in lines(inputs(slo=slo, layout=V2))


def test_a_model_without_all_numbers_is_not_written() -> None:
    plan = plan_of(inputs(slo=root({"enableUserModel": True, "modelReadBPS": 5}), layout=V2))
    assert [value.key.name for value in plan.values] == ["io.cost.qos 253:16"]
    assert "io.cost.model" in plan.message


def test_more_operations_than_the_kernel_counts_are_no_limit() -> None:
    block = {"name": "vdb", "ioCfg": {"readIOPS": 1 << 32, "writeIOPS": 7}}
    assert lines(inputs(slo=best_effort(block), layout=V2)) == {
        (BEST_EFFORT, "io.max"): "253:16 rbps=max wbps=max riops=max wiops=7"
    }


def test_latency_sensitive_classes_have_no_limits_and_that_is_reported() -> None:
    slo = {"lsClass": {"blkioQOS": {"enable": True, "blocks": [GROUP]}}}
    plan = plan_of(inputs(slo=slo))
    assert plan.values == ()
    assert "lsClass" in plan.message


@pytest.mark.parametrize(
    "slo", [{}, {"beClass": {"blkioQOS": {"enable": False, "blocks": [GROUP]}}}]
)
def test_nothing_is_desired_without_a_request(slo: object) -> None:
    plan = plan_of(inputs(slo=slo))
    assert (plan.values, plan.state) == ((), StrategyState.IDLE)


def test_without_the_list_of_devices_the_last_lines_stay() -> None:
    strategy, slo = BlockIoStrategy(), best_effort(GROUP)
    first, state = strategy.plan(inputs(slo=slo), strategy.start())
    waiting, state = strategy.plan(inputs(slo=slo, storage=None), state)
    assert waiting.values is first.values
    assert waiting.state is StrategyState.WAITING
    again, _ = strategy.plan(inputs(slo=slo), state)
    assert again is first
    idle, _ = strategy.plan(inputs(storage=None), state)
    assert (idle.values, idle.state) == ((), StrategyState.IDLE)


def test_an_unchanged_plan_is_the_same_object() -> None:
    strategy, one = BlockIoStrategy(), inputs(slo=best_effort(GROUP))
    first, state = strategy.plan(one, strategy.start())
    second, later = strategy.plan(one, state)
    assert (second is first, later is state) == (True, True)


def test_every_line_names_the_field_that_requests_it() -> None:
    slo = {**root({}), **best_effort(GROUP)}
    sources = {value.cgroup: value.source for value in plan_of(inputs(pod(HTML), slo=slo)).values}
    assert sources == {
        "/": "NodeSLO spec.resourceQOSStrategy.cgroupRoot.blkioQOS",
        BEST_EFFORT: "NodeSLO spec.resourceQOSStrategy.beClass.blkioQOS",
        POD: "Pod shop/web annotation koordinator.sh/blkioQOS",
    }


def test_new_counters_of_the_same_disks_change_nothing() -> None:
    strategy, one = BlockIoStrategy(), inputs(slo=best_effort(GROUP))
    first, state = strategy.plan(one, strategy.start())
    counters = DiskCounters(reads=1, read_bytes=1, writes=1, written_bytes=1, busy_ms=1)
    used = tuple(replace(device, counters=counters) for device in STORAGE.devices)
    second, _ = strategy.plan(replace(one, usage=usage_of(used)), state)
    assert second is first


def test_a_controller_that_is_enabled_later_is_used_within_a_minute() -> None:
    strategy, files = BlockIoStrategy(), Files("io.max")
    one = inputs(slo=best_effort(GROUP), layout=V2, files=files)
    first, state = strategy.plan(one, strategy.start())
    files.absent = ()
    again = replace(one, usage=usage_of(STORAGE.devices))
    assert strategy.plan(again, state)[0] is first
    later = replace(again, now_s=62.0)
    assert strategy.plan(later, state)[0].values != ()


def latency_lines(qos_inputs: QosInputs) -> tuple[dict[str, str], str]:
    """Return the desired line of each group with the option, and the message."""
    strategy = BlockIoStrategy(uses_latency_targets=True)
    plan, _ = strategy.plan(qos_inputs, strategy.start())
    return {value.cgroup: value.key.text(2, value.value) for value in plan.values}, plan.message


TARGETS = {
    "lsClass": {
        "blkioQOS": {
            "enable": True,
            "blocks": [{"name": "vdb", "ioCfg": {"readLatency": 5000, "writeLatency": 2000}}],
        }
    },
    "lsrClass": {
        "blkioQOS": {"enable": True, "blocks": [{"name": "vdb1", "ioCfg": {"readLatency": 900}}]}
    },
}


def test_with_the_option_latency_sensitive_groups_beside_best_effort_are_protected() -> None:  # O6
    pinned = replace(pod(annotations=()), qos_class="LSR")
    burstable = replace(pod(annotations=(), cgroup=f"/kubepods/burstable/pod{UID}"), qos_class="LS")
    result, message = latency_lines(inputs(pinned, burstable, slo=TARGETS, layout=V2))
    assert result == {
        "/kubepods/burstable": "253:16 target=2000",
        POD: "253:16 target=900",
    }
    assert message == ""


def test_no_latency_is_protected_where_the_cost_model_controls_the_disk() -> None:
    files = Files()
    files.lines["/", "io.cost.qos 253:16"] = devices.parse_fields(devices.LATENCY, "enable=1")
    result, message = latency_lines(inputs(slo=TARGETS, layout=V2, files=files))
    assert result == {}
    assert "io.cost.qos of the root controls 253:16 already" in message


def test_a_kernel_without_latency_targets_is_named() -> None:
    result, message = latency_lines(inputs(slo=TARGETS, layout=V2, files=Files("io.latency")))
    assert (result, message) == ({}, "not on this kernel: io.latency")


def test_version_1_has_no_latency_targets_and_that_is_reported() -> None:
    result, message = latency_lines(inputs(slo=TARGETS, layout=V1))
    assert result == {}
    assert "lsClass has no effect" in message
