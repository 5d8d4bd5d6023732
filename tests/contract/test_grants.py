"""What every vendor promises of what it gives to containers."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import VendorDevice
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import HostDevices, RdmaFunction
from agent.snapshot.vendor import DeviceVendor, InjectsDevices
from tests.contract.sources import Source, ask, of_every_source, of_every_vendor, vendor_named
from tests.hostile import texts, vendor_devices

POD = ContainerSpec(name="worker", pod_uid="6f6f0000-0000-4000-8000-000000000001")


def means(devices: tuple[VendorDevice, ...]) -> HostDevices:
    """Have all that the devices say they need."""
    nodes = [node for device in devices for node in device.nodes]
    slices = [node for d in devices for part in d.partitions for node in part.nodes]
    functions = tuple(
        RdmaFunction(address=d.bus_id, names=("mlx5_0",), verbs=d.nodes[:1])
        for d in devices
        if d.bus_id
    )
    return HostDevices(nodes=tuple(dict.fromkeys([*nodes, *slices])), functions=functions)


def answer(
    vendor: DeviceVendor,
    devices: tuple[VendorDevice, ...],
    grant: DeviceAllocation,
    pod: ContainerSpec = POD,
) -> ContainerEdits | str:
    assert isinstance(vendor, InjectsDevices)
    try:
        return vendor.edits(devices, grant, pod, means(devices))
    except AllocationRefused as refused:
        return str(refused)


def entry_of(device: VendorDevice) -> AllocatedDevice:
    return AllocatedDevice(type=device.kind.wire_type, id=device.uuid or "", minor=device.minor)


@of_every_source
def test_equal_grants_give_equal_edits(source: Source) -> None:
    vendor, devices = vendor_named(source.vendor), ask(source).inventory.devices
    for device in devices:
        grant = DeviceAllocation(devices=(entry_of(device),))
        first = answer(vendor, devices, grant)
        assert answer(vendor, devices, grant) == first
        hash(first)  # plain frozen data


@of_every_source
def test_a_granted_device_gives_something_or_is_refused_and_two_give_different_things(
    source: Source,
) -> None:
    vendor, devices = vendor_named(source.vendor), ask(source).inventory.devices
    inputs = []
    for device in devices:
        # nothing names a device without a number and a node: that of a recording without a tape
        if device.managed and device.minor is not None and device.nodes:
            result = answer(vendor, devices, DeviceAllocation(devices=(entry_of(device),)))
            assert result != ContainerEdits()
            assert result
            inputs.append(result)
    texts = [one for one in inputs if isinstance(one, str)]
    assert all(texts)
    edits = [one for one in inputs if isinstance(one, ContainerEdits)]
    assert len(set(edits)) == len(edits), "two devices give a container the same"


@of_every_source
def test_nothing_granted_gives_nothing(source: Source) -> None:
    vendor, devices = vendor_named(source.vendor), ask(source).inventory.devices
    stranger = DeviceAllocation(devices=(AllocatedDevice(type="gpu", id="somebody-elses"),))
    for grant in (DeviceAllocation(), stranger):
        assert answer(vendor, devices, grant) == ContainerEdits()


@of_every_vendor
def test_what_a_vendor_needs_of_the_host_are_plain_absolute_paths(name: str) -> None:
    vendor = vendor_named(name)
    assert isinstance(vendor, InjectsDevices)
    needs = vendor.host_query(vendor_named(name).description.settings())
    assert vendor.host_query(vendor_named(name).description.settings()) == needs
    assert all(path.startswith("/dev/") for path in needs.nodes)
    for path in (*needs.nodes, *needs.paths, *([needs.mount_list] if needs.mount_list else [])):
        folder, _, last = path.rpartition("/")
        assert path.startswith("/")
        assert last
        assert "*" not in folder
        assert ".." not in path.split("/")


entries = st.builds(
    AllocatedDevice,
    type=st.sampled_from(("gpu", "rdma", "fpga")),
    id=texts | st.just(""),
    minor=st.none() | st.integers(-2, 20),
    resources=st.lists(st.tuples(texts, st.integers(-(2**70), 2**70)), max_size=2).map(tuple),
    vfs=st.lists(texts, max_size=2).map(tuple),
    template=texts,
    partition=st.just("") | texts,
)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
pods = st.builds(
    ContainerSpec,
    name=texts,
    pod_uid=texts,
    env=pairs,
    runtime_handler=texts | st.sampled_from(("nvidia", "ascend", "cambricon")),
    labels=pairs | st.just((("koordinator.sh/gpu-isolation-provider", "HAMi-core"),)),
    annotations=pairs | st.just((("xpu-agent.io/gpu-isolation", "mps"),)),
)


@of_every_vendor
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    devices=st.lists(vendor_devices, max_size=3).map(tuple),
    grant=st.builds(DeviceAllocation, devices=st.lists(entries, max_size=3).map(tuple)),
    pod=pods,
)
def test_hostile_devices_grants_and_pods_are_answered_or_refused_with_a_reason(
    name: str, devices: tuple[VendorDevice, ...], grant: DeviceAllocation, pod: ContainerSpec
) -> None:
    vendor = vendor_named(name)
    own = map(entry_of, devices)
    for requests in (grant, DeviceAllocation(devices=tuple(own))):
        first = answer(vendor, devices, requests, pod)
        assert answer(vendor, devices, requests, pod) == first
