"""Hypothesis strategies for devices as no sane vendor would describe them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from agent.snapshot.device import (
    Device,
    DeviceCondition,
    DeviceKind,
    DeviceLink,
    DeviceNode,
    DevicePartition,
    DevicePort,
    Health,
    HealthState,
    Placement,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.inventory import DeviceGroup, Inventory, Problem
from agent.snapshot.pci import PciLink

few = settings(max_examples=40)  # making such devices takes longer than looking at them
texts = st.text(st.characters(), max_size=80)  # lone surrogates and control characters too
numbers = st.integers(-(2**40), 2**40)
minors = st.none() | st.integers(-2, 20) | numbers
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
times = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 4e9)

healths = st.builds(
    Health,
    state=st.sampled_from(HealthState),
    reason=texts,
    message=texts,
    since_s=times,
    changes=numbers,
    last_event=texts,
    certain=st.booleans(),
)
conditions = st.builds(
    DeviceCondition,
    type=texts | st.sampled_from(("Healthy", "Schedulable", "Degraded", "a.b/C", "x" * 200)),
    status=st.booleans(),
    reason=texts,
    message=texts,
    since_s=times,
)
nodes = st.builds(DeviceNode, path=texts, major=numbers, minor=numbers)
ports = st.builds(
    DevicePort,
    number=numbers,
    state=st.none() | numbers,
    state_name=st.none() | texts,
    rate_mbps=st.none() | numbers,
    netdev=st.none() | texts,
)
vf_groups = st.builds(
    VirtualFunctionGroup,
    labels=pairs,
    vfs=st.lists(st.builds(VirtualFunction, bus_id=texts, minor=numbers), max_size=3).map(tuple),
)
partitions = st.builds(
    DevicePartition,
    uuid=texts,
    profile=texts,
    memory_bytes=st.none() | numbers,
    instance=st.none() | numbers,
    compute_instance=st.none() | numbers,
    start=st.none() | numbers,
    size=st.none() | numbers,
    cores=st.none() | numbers,
    nodes=st.lists(nodes, max_size=2).map(tuple),
    health=healths,
)
free_slices = st.lists(st.tuples(texts, st.lists(numbers, max_size=3).map(tuple)), max_size=2).map(
    tuple
)
addresses = st.sampled_from(("0000:01:00.0", "0000:02:00.0", "0000:ff:1f.7"))
resources = st.lists(
    st.tuples(
        texts | st.sampled_from(("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory")),
        texts | st.sampled_from(("100", "81559Mi", "1e3", "-", "1Zi", "0", "-5", "0Mi")),
    ),
    max_size=3,
).map(tuple)
places = st.builds(
    Placement,
    numa_node=numbers,
    numa_source=texts,
    socket=numbers,
    path=st.lists(texts, max_size=3).map(tuple),
    switch=st.none() | texts,
    chip=st.none() | texts,
    link=st.builds(PciLink, speed=st.none() | numbers, width=st.none() | numbers),
    acs=st.none() | st.just((0, None)),
)
vendor_devices = st.builds(
    VendorDevice,
    kind=st.sampled_from(DeviceKind),
    vendor=texts,
    bus_id=st.none() | texts | addresses,
    uuid=st.none() | texts | st.sampled_from(("GPU-same", "0000:01:00.0")),
    minor=minors,
    vendor_minor=minors,
    model=st.none() | texts,
    memory_bytes=st.none() | numbers,
    module_id=st.none() | numbers,
    managed=st.booleans(),
    health=healths,
    resources=resources,
    labels=pairs,
    facts=pairs | st.tuples(st.tuples(st.just("unschedulable"), texts)),
    nodes=st.lists(nodes, max_size=2).map(tuple),
    ports=st.lists(ports, max_size=2).map(tuple),
    conditions=st.lists(conditions, max_size=3).map(tuple),
    partitions=st.lists(partitions, max_size=2).map(tuple),
    free_slices=free_slices,
    vf_groups=st.lists(vf_groups, max_size=2).map(tuple),
)
devices = st.builds(Device, info=vendor_devices, place=places, pcie_scope_id=texts)
device_sets = st.lists(devices, max_size=6).map(tuple)

links = st.builds(DeviceLink, a=texts | addresses, b=texts | addresses, type=texts, count=numbers)
groups = st.builds(
    DeviceGroup,
    keys=st.lists(texts | addresses, max_size=3).map(tuple),
    link_type=texts,
    bandwidth_bytes_per_s=st.none() | numbers,
)
problems = st.builds(Problem, reason=texts, message=texts)


def inventories(vendor: str) -> st.SearchStrategy[Inventory]:
    """Return inventories of one vendor."""
    return st.builds(
        Inventory,
        vendor=st.just(vendor),
        devices=st.lists(vendor_devices, max_size=4).map(tuple),
        links=st.lists(links, max_size=3).map(tuple),
        driver_version=st.none() | texts,
        library=st.none() | texts,
        facts=pairs,
        problems=st.lists(problems, max_size=2).map(tuple),
        groups=st.lists(groups, max_size=3).map(tuple),
        group_policy=st.none() | texts | st.sampled_from(("Prefer", "Honor")),
    )
