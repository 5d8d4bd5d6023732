"""Limits of block IO: of best-effort pods together, of single pods, and the cost model of disks.

What is written are the lines of Koordinator's `pkg/koordlet/qosmanager/plugins/blkio` on version 1,
and the files of the IO controller that have the same effect on version 2. A block whose disk is not
known does not affect the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from agent.cgroup import device_values as devices
from agent.cgroup.device_values import NO_LINE, DeviceFile, DeviceLine, device_line
from agent.cgroup.keys import device_key
from agent.cgroup.paths import qos_directory
from agent.cgroup.write_plan import DesiredValue
from agent.errors import ParseError
from agent.qos.strategy import NOT_REQUESTED, QosInputs, QosPod, StrategyPlan
from agent.slo.decoder import VALUE_READERS, SloDecoder, fold_names
from agent.snapshot.node import are_same_objects
from agent.snapshot.pod import KubeQos
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import BlkioQos, BlockDeviceConfig, IoConfig, NodeSlo
from agent.snapshot.usage import BlockDevice, StorageUsage
from agent.wire_formats.annotations import POD_BLOCK_IO, AnnotationError, parse_json_object

ROOT = "/"
CLASS_SOURCE = "NodeSLO spec.resourceQOSStrategy"
BE_SOURCE = f"{CLASS_SOURCE}.beClass.blkioQOS"
ROOT_SOURCE = f"{CLASS_SOURCE}.cgroupRoot.blkioQOS"
RUNNING = "Running"
DEFAULT_PERCENT, DEFAULT_LATENCY_US = 95, 3000  # of the latency target
DEFAULT_WEIGHT = 100
WHOLE_DISK_KINDS_BELOW = ("part", "lvm")  # of these the disks below are limited
MAX_LEVELS = 8  # of devices that are built on others
MAX_PROBLEMS = 8  # that the message names
RECHECK_S = 60.0  # files may appear: a controller that is enabled later
NOT_READ = "block devices are not read (yet): collect.storage"


class DiskMap(msgspec.Struct, frozen=True):
    """The disks of the node without their counters, and the devices of volumes that are mounted."""

    devices: Mapping[str, BlockDevice]  # by name
    volume_groups: Mapping[str, tuple[str, ...]]
    volumes: Mapping[tuple[str, str], tuple[str, ...]]  # devices by pod uid and directory


_PLACE = re.compile(r".*/pods/([^/]+)/volumes/[^/]+/([^/]+)(?:/mount)?")


def disk_map(storage: StorageUsage) -> DiskMap:
    """Return the disks and the volumes of pods."""
    volumes: dict[tuple[str, str], tuple[str, ...]] = {}
    for mount in storage.mounts:
        match = _PLACE.fullmatch(mount.path)
        if match is not None:
            place = match[1], match[2]
            volumes[place] = (*volumes.get(place, ()), mount.device)
    devices = (msgspec.structs.replace(device, counters=None) for device in storage.devices)
    return DiskMap({device.name: device for device in devices}, storage.volume_groups, volumes)


class BlockIoState(msgspec.Struct, frozen=True):
    """The last plan, and the inputs that it was computed from."""

    inputs: tuple[object, ...] = ()
    storage: StorageUsage | None = None
    disks: DiskMap | None = None  # of the storage
    computed_s: float = 0.0
    plan: StrategyPlan = NOT_REQUESTED


_Line = tuple[DeviceFile, Mapping[str, str]]


def _group_lines(config: IoConfig, version: int) -> Iterator[_Line]:
    """Yield the lines of best-effort pods or of one pod; a limit of 0 is none."""
    read_iops, write_iops = _iops(config.read_iops), _iops(config.write_iops)
    read_bps, write_bps = config.read_bps or 0, config.write_bps or 0
    if version == 1:
        yield devices.READ_IOPS, {"": str(read_iops)}
        yield devices.READ_BPS, {"": str(read_bps)}
        yield devices.WRITE_IOPS, {"": str(write_iops)}
        yield devices.WRITE_BPS, {"": str(write_bps)}
        yield devices.WEIGHT_V1, {"": str(config.io_weight_percent or DEFAULT_WEIGHT)}
        return
    limits = {"rbps": read_bps, "wbps": write_bps, "riops": read_iops, "wiops": write_iops}
    yield devices.LIMITS, {name: str(limit or "max") for name, limit in limits.items()}
    if config.io_weight_percent is not None:
        yield devices.WEIGHT, {"": str(config.io_weight_percent)}


def _iops(limit: int | None) -> int:
    """Return the limit; 0 for one that exceeds what the kernel can count."""
    return limit if limit is not None and limit <= devices.MAX_IOPS else 0


def _root_lines(config: IoConfig, version: int) -> Iterator[_Line]:
    """Yield the latency targets and the cost model of a disk."""
    yield (
        devices.LATENCY_V1 if version == 1 else devices.LATENCY,
        {
            "enable": "1",
            "ctrl": "user",
            "rpct": _number(config.read_latency_percent, DEFAULT_PERCENT),
            "rlat": _number(config.read_latency, DEFAULT_LATENCY_US),
            "wpct": _number(config.write_latency_percent, DEFAULT_PERCENT),
            "wlat": _number(config.write_latency, DEFAULT_LATENCY_US),
        },
    )
    if version == 1:
        yield devices.MODEL_V1, _model(config)
    else:
        yield devices.MODEL, {"model": "linear", **_model(config)}


def _model(config: IoConfig) -> Mapping[str, str]:
    """Return the cost model. A number that is not set is 0, which is out of its range."""
    if not config.enable_user_model:
        return {"ctrl": devices.AUTOMATIC}
    return {
        "ctrl": "user",
        "rbps": _number(config.model_read_bps, 0),
        "rseqiops": _number(config.model_read_seq_iops, 0),
        "rrandiops": _number(config.model_read_rand_iops, 0),
        "wbps": _number(config.model_write_bps, 0),
        "wseqiops": _number(config.model_write_seq_iops, 0),
        "wrandiops": _number(config.model_write_rand_iops, 0),
    }


def _latency_lines(config: IoConfig, version: int) -> Iterator[_Line]:
    """Yield the latency that the kernel protects by slowing other groups; version 2 only."""
    latencies = [us for us in (config.read_latency, config.write_latency) if us]
    if version == 2 and latencies:
        yield devices.LATENCY_TARGET, {"target": str(min(latencies))}


def _number(value: int | None, default: int) -> str:
    return str(default if value is None else value)


class _Target(msgspec.Struct, frozen=True):
    """A group whose lines are asked for, the devices of each block, and the field that asks."""

    cgroup: str
    source: str
    blocks: tuple[BlockDeviceConfig, ...]
    lines: Callable[[IoConfig, int], Iterator[_Line]]
    pod: QosPod | None = None


class BlockIoStrategy:
    """Limits the IO of best-effort pods and of pods that ask for it, as NodeSLO and pods say."""

    name = "block_io"

    def __init__(self, *, uses_latency_targets: bool = False) -> None:
        """`uses_latency_targets`: also protect latency-sensitive pods, on version 2."""
        self._uses_latency_targets = uses_latency_targets

    def start(self) -> BlockIoState:
        """Return the state before the first cycle."""
        return BlockIoState()

    def plan(self, inputs: QosInputs, state: BlockIoState) -> tuple[StrategyPlan, BlockIoState]:
        """Return the lines of all configured disks; the last plan while no input is another."""
        storage = None if inputs.usage is None else inputs.usage.storage
        resource_qos = inputs.slo.resource_qos
        sources = (
            resource_qos.be_class.blkio,
            resource_qos.ls_class.blkio,
            resource_qos.lsr_class.blkio,
            resource_qos.cgroup_root.blkio,
            inputs.pods,
            inputs.layout,
            inputs.cluster.volume_names,
        )
        if storage is None:
            if not any(True for _ in self._targets(inputs, [])):
                return NOT_REQUESTED, BlockIoState()
            plan = msgspec.structs.replace(
                state.plan, state=StrategyState.WAITING, message=NOT_READ
            )
            return plan, state
        is_same = are_same_objects(sources, state.inputs)
        if is_same and storage is state.storage:
            return state.plan, state
        disks = disk_map(storage)
        if is_same and disks == state.disks and inputs.now_s - state.computed_s < RECHECK_S:
            return state.plan, msgspec.structs.replace(state, storage=storage)
        planner = _Planner(inputs, disks, self.name)
        targets = tuple(self._targets(inputs, planner.problems))
        plan = planner.plan(targets)
        if plan == state.plan:
            plan = state.plan  # the same object costs less later
        return plan, BlockIoState(sources, storage, disks, inputs.now_s, plan)

    def _targets(self, inputs: QosInputs, problems: list[str]) -> Iterator[_Target]:
        yield from _limited_targets(inputs, problems)
        if self._uses_latency_targets and inputs.layout.version == 2:
            yield from _protected_targets(inputs)
        else:
            problems += _unused_classes(inputs.slo)


def _limited_targets(inputs: QosInputs, problems: list[str]) -> Iterator[_Target]:
    """Yield the groups that NodeSLO and pods ask limits for."""
    resource_qos, layout = inputs.slo.resource_qos, inputs.layout
    root, best_effort = resource_qos.cgroup_root.blkio, resource_qos.be_class.blkio
    if root is not None:
        yield _Target(ROOT, ROOT_SOURCE, root.blocks if root.enable else (), _root_lines)
    if best_effort is not None:
        blocks = best_effort.blocks if best_effort.enable else ()
        directory = qos_directory(layout, KubeQos.BEST_EFFORT)
        yield _Target(directory, BE_SOURCE, blocks, _group_lines)
    for pod in inputs.pods:
        text = pod.view.annotation(POD_BLOCK_IO)
        if text is None or not pod.label or not pod.cgroup or pod.view.phase != RUNNING:
            continue
        name = f"{pod.view.namespace}/{pod.view.name}"
        try:
            blocks = annotated_blocks(text)
        except AnnotationError as error:
            problems.append(f"Pod {name}: {error}")
            continue
        source = f"Pod {name} annotation {POD_BLOCK_IO}"
        yield _Target(pod.cgroup, source, blocks, _group_lines, pod)


def _protected_targets(inputs: QosInputs) -> Iterator[_Target]:
    """Yield the group of burstable pods, and guaranteed pods with CPUs of their own.

    The kernel compares groups that have the same parent: these are beside best-effort pods.
    """
    ls, lsr = inputs.slo.resource_qos.ls_class.blkio, inputs.slo.resource_qos.lsr_class.blkio
    if ls is not None and ls.enable:
        directory = qos_directory(inputs.layout, KubeQos.BURSTABLE)
        yield _Target(directory, f"{CLASS_SOURCE}.lsClass.blkioQOS", ls.blocks, _latency_lines)
    if lsr is None or not lsr.enable:
        return
    for pod in inputs.pods:
        is_beside = pod.cgroup.rpartition("/")[0] == inputs.layout.root
        if pod.qos_class in ("LSE", "LSR") and is_beside and pod.view.phase == RUNNING:
            source = f"{CLASS_SOURCE}.lsrClass.blkioQOS"
            yield _Target(pod.cgroup, source, lsr.blocks, _latency_lines, pod)


def _unused_classes(slo: NodeSlo) -> Iterator[str]:
    qos = slo.resource_qos
    for name, blkio in (("lsrClass", qos.lsr_class.blkio), ("lsClass", qos.ls_class.blkio)):
        if blkio is not None and blkio.enable:
            yield f"blkioQOS of {name} has no effect: only beClass is limited"


@lru_cache(maxsize=1024)  # pods of one controller have the same text
def annotated_blocks(text: str) -> tuple[BlockDeviceConfig, ...]:
    """Return the blocks of a pod's annotation; an empty text has none.

    Raise `AnnotationError` for a text that Koordinator cannot decode, and for a wrong value in it.
    """
    if not text:
        return ()
    try:
        members = parse_json_object(text)
    except AnnotationError as error:
        raise AnnotationError(f"{POD_BLOCK_IO}: {error}") from error
    decoder = SloDecoder(VALUE_READERS)
    decoded = decoder.overlay(BlkioQos(), fold_names(BlkioQos, members), POD_BLOCK_IO)
    if decoder.invalid_fields:
        first = decoder.invalid_fields[0]
        raise AnnotationError(f"{first.path} {first.why}")
    return decoded.blocks


class _Planner:
    """Computes one plan."""

    def __init__(self, inputs: QosInputs, disks: DiskMap, owner: str) -> None:
        self._inputs = inputs
        self._disk_map = disks
        self._devices = disks.devices
        self._owner = owner
        self.problems: list[str] = []
        self._missing: set[str] = set()  # files that the kernel or the group does not have
        self._costed: set[str] = set()  # disks for which this plan switches cost control on
        self._values: dict[tuple[str, str], DesiredValue] = {}

    def plan(self, targets: tuple[_Target, ...]) -> StrategyPlan:
        """Return the lines of all groups; a later block of the same disk wins."""
        for target in targets:
            for block in target.blocks:
                self._add_block(target, block)
        problems = [*self.problems[:MAX_PROBLEMS]]
        if self._missing:
            problems.append(f"not on this kernel: {', '.join(sorted(self._missing))}")
        return StrategyPlan(
            values=tuple(self._values.values()),
            state=self._state(targets),
            message="; ".join(problems),
            figures=(("disks", float(len({value.key.device for value in self._values.values()}))),)
            if self._values
            else (),
        )

    def _state(self, targets: tuple[_Target, ...]) -> StrategyState:
        if self._values:
            return StrategyState.ACTIVE
        if self._missing:
            return StrategyState.UNSUPPORTED
        return (
            StrategyState.ACTIVE if any(target.blocks for target in targets) else StrategyState.IDLE
        )

    def _add_block(self, target: _Target, block: BlockDeviceConfig) -> None:
        disks = self._disks(target, block)
        if not disks:
            self.problems.append(f"{target.source}: no disk of {block.type} {block.name!r}")
        for disk in disks:
            for file, values in target.lines(block.io_cfg, self._inputs.layout.version):
                self._add_line(target, disk, file, values)

    def _add_line(
        self, target: _Target, disk: str, file: DeviceFile, values: Mapping[str, str]
    ) -> None:
        key = device_key(file, disk)
        try:
            value = key.check(file.version, device_line(file, values))
        except ParseError as error:
            self.problems.append(f"{target.source}: {error}")
            return
        if self._inputs.current.value(target.cgroup, key) is None:
            if value != NO_LINE:
                self._missing.add(file.name)
            return
        if file is devices.LATENCY:
            self._costed.add(disk)
        if file is devices.LATENCY_TARGET and self._has_cost_control(disk):
            self.problems.append(
                f"{target.source}: {devices.LATENCY.name} of the root controls {disk} already"
            )
            return
        if file is devices.WEIGHT and not self._has_cost_control(disk):
            self.problems.append(
                f"{target.source}: the weight has no effect on {disk}: {devices.LATENCY.name} of"
                " the root does not control it"
            )
            return
        text = key.text(file.version, value)
        desired = DesiredValue(
            cgroup=target.cgroup,
            key=key,
            value=value,
            owner=self._owner,
            message=f"set {file.name} to {text}",
            source=target.source,
        )
        self._values[desired.target] = desired

    def _has_cost_control(self, disk: str) -> bool:
        """Return whether the kernel weighs the IO of a disk: it refuses weights otherwise."""
        if disk in self._costed:
            return True
        line = self._inputs.current.value(ROOT, device_key(devices.LATENCY, disk))
        return isinstance(line, DeviceLine) and ("enable", "1") in line.fields

    def _disks(self, target: _Target, block: BlockDeviceConfig) -> tuple[str, ...]:
        """Return the numbers of the whole disks of a block; none if they are not known."""
        names: Iterable[str]
        if block.type == "device":
            names = self._named_device(block.name)
        elif block.type == "volumegroup":
            names = self._disk_map.volume_groups.get(block.name, ())
        else:
            names = () if target.pod is None else self._volume_devices(target.pod, block.name)
        disks = {number: None for name in names for number in self._whole_disks(name, MAX_LEVELS)}
        return tuple(disks)

    def _named_device(self, name: str) -> tuple[str, ...]:
        """Return the device of `/dev/sda1`, `sda1` or `/dev/mapper/group-volume`."""
        short = name.removeprefix("/dev/")
        if short in self._devices:
            return (short,)
        mapped = short.removeprefix("mapper/")
        return tuple(
            device.name for device in self._devices.values() if device.mapper_name == mapped
        )

    def _volume_devices(self, pod: QosPod, name: str) -> tuple[str, ...]:
        """Return the device on which a volume of a pod is mounted."""
        volume = next((one for one in pod.view.volumes if one.name == name), None)
        if volume is None:
            return ()
        directory = volume.name
        if volume.claim:
            claim = f"{pod.view.namespace}/{volume.claim}"
            directory = self._inputs.cluster.volume_names.get(claim, "")
        return self._disk_map.volumes.get((pod.uid, directory), ())

    def _whole_disks(self, name: str, levels: int) -> Iterator[str]:
        """Yield the numbers of the disks of a device: the kernel refuses partitions."""
        device = self._devices.get(name)
        if device is None or not levels:
            return
        if device.kind not in WHOLE_DISK_KINDS_BELOW:
            yield device.number
            return
        for below in self._below(device):
            yield from self._whole_disks(below, levels - 1)

    def _below(self, device: BlockDevice) -> tuple[str, ...]:
        group = self._disk_map.volume_groups.get(device.volume_group, ())
        return group if device.kind == "lvm" and group else device.parents
