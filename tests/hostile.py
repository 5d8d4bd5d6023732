"""Hypothesis strategies for devices as no sane vendor would describe them."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.model.device import (
    Device,
    DeviceKind,
    DevicePartition,
    Health,
    HealthState,
    Placement,
    VendorDevice,
    VfGroup,
    VirtualFunction,
)
from agent.topology.pci import PciLink

texts = st.text(st.characters(), max_size=80)  # lone surrogates and control characters too
numbers = st.integers(-(2**40), 2**40)
minors = st.none() | st.integers(-2, 20) | numbers
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
times = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 4e9)

healths = st.builds(
    Health, state=st.sampled_from(HealthState), reason=texts, message=texts, since_s=times
)
vf_groups = st.builds(
    VfGroup,
    labels=pairs,
    vfs=st.lists(st.builds(VirtualFunction, bus_id=texts, minor=numbers), max_size=3).map(tuple),
)
partitions = st.builds(DevicePartition, uuid=texts, profile=texts)
resources = st.lists(
    st.tuples(texts, texts | st.sampled_from(("100", "81559Mi", "1e3", "-", "1Zi"))), max_size=3
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
    bus_id=st.none() | texts | st.sampled_from(("0000:01:00.0", "0000:02:00.0")),
    uuid=st.none() | texts,
    minor=minors,
    model=st.none() | texts,
    memory_bytes=st.none() | numbers,
    module_id=st.none() | numbers,
    managed=st.booleans(),
    health=healths,
    resources=resources,
    labels=pairs,
    facts=pairs | st.tuples(st.tuples(st.just("unschedulable"), texts)),
    partitions=st.lists(partitions, max_size=2).map(tuple),
    vf_groups=st.lists(vf_groups, max_size=2).map(tuple),
)
devices = st.builds(Device, info=vendor_devices, place=places, pcie_scope_id=texts)
device_sets = st.lists(devices, max_size=6).map(tuple)
