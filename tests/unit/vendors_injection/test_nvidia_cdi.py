from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.errors import ParseError
from agent.snapshot.allocation import AllocationRefused
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices
from agent.wire_formats.cdi_specs import decode_spec, stale_reason
from plugins.vendors.nvidia.injection.edits import edits
from tests.unit.vendors_injection.made import HAMI, POD, UUIDS, allocation_of, gpu, mig, nvidia_host

CARDS = tuple(gpu(minor) for minor in range(3))
EGL = "/usr/lib/x86_64-linux-gnu/libnvidia-egl-wayland.so.1.1.13"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06"


def spec(*devices: tuple[str, str], kind: str = "nvidia.com/gpu", **changes: object) -> CdiSpec:
    """A spec of names with their nodes, separated by blanks."""
    cdi_spec = CdiSpec(
        path=f"/etc/cdi/{kind.replace('/', '-')}.yaml",
        kind=kind,
        devices=tuple(CdiDevice(name=name, nodes=tuple(n.split())) for name, n in devices),
    )
    return replace(cdi_spec, **changes)


def host(*specs: CdiSpec, **changes: object) -> HostDevices:
    return nvidia_host(cdi=specs, cdi_enabled=True, **changes)  # type: ignore[arg-type]  # as above


ALL = ("all", "/dev/nvidia0 /dev/nvidia1 /dev/nvidia2")


@pytest.mark.parametrize(
    ("specs", "names"),
    [
        pytest.param(
            [spec(("0", "/dev/nvidia1"), ("1", "/dev/nvidia0"), ALL)],
            ("nvidia.com/gpu=0",),
            id="V48",
        ),
        ([spec(("0", "/dev/nvidia1"), (UUIDS[1], ""))], ("nvidia.com/gpu=0",)),
        ([spec((UUIDS[1], ""), ("0", "/dev/nvidia1"))], (f"nvidia.com/gpu={UUIDS[1]}",)),
        ([spec(("gpu1", "/dev/nvidia1 /dev/dri/card1"))], ("nvidia.com/gpu=gpu1",)),
        (
            [spec(("1", "/dev/nvidia1"), kind="k8s.device-plugin.nvidia.com/gpu"), spec(ALL)],
            ("k8s.device-plugin.nvidia.com/gpu=1",),
        ),
        ([spec(("1", "/dev/nvidia1"), kind="x.nvidia.com/gpu")], ("x.nvidia.com/gpu=1",)),
    ],
)
def test_a_name_counts_by_uuid_or_by_its_own_nodes(
    specs: list[CdiSpec], names: tuple[str, ...]
) -> None:
    result = edits(CARDS, allocation_of(UUIDS[1]), POD, host(*specs))
    assert result.cdi == names
    assert (result.nodes, result.env, result.mounts) == ((), (), ())


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [spec(ALL)],
        [spec(("1:0", "/dev/nvidia1 /dev/nvidia-caps/nvidia-cap12"))],
        [spec(("1", "/dev/nvidia1"), kind="management.nvidia.com/gpu")],
        [spec(("1", "/dev/nvidia1"), kind="nvidia.com/nic")],
        [spec(("1", "/dev/nvidia1"), kind="notnvidia.com/gpu")],
        [spec(("1", "/dev/nvidia1")), spec(("1", "/dev/nvidia2"))],
        [spec(("1", "/dev/nvidia1"), mounts=("/gone",))],
    ],
    ids=["none", "all", "slice", "management", "class", "vendor", "twice", "stale"],
)
def test_what_is_not_surely_the_card_is_not_used(specs: list[CdiSpec]) -> None:
    assert edits(CARDS, allocation_of(UUIDS[1]), POD, host(*specs)).cdi == ()
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        edits(CARDS, allocation_of(UUIDS[1]), POD, host(*specs, settings={"injection": "cdi"}))


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        (UUIDS[1], "/dev/nvidia0 /dev/dri/card0"),
        (UUIDS[1], "/dev/nvidia1 /dev/nvidia2"),
        ("MIG-00000001", "/dev/nvidia1 /dev/nvidia-caps/nvidia-cap12"),
        (
            "MIG-00000001",
            "/dev/nvidia0 /dev/nvidia-caps/nvidia-cap21 /dev/nvidia-caps/nvidia-cap22",
        ),
    ],
)
def test_a_uuid_with_the_nodes_of_another_card_is_not_used(name: str, nodes: str) -> None:
    """The numbers of cards change at a boot without one of them, and the file stays."""
    cards = (gpu(0, partitions=(mig(1, 12, 13),)), gpu(1))
    old = spec((name, nodes))
    result = edits(cards, allocation_of(name), POD, host(old))
    assert result.cdi == ()
    with pytest.raises(
        AllocationRefused, match=f"{name} has nodes of another card: run nvidia-ctk"
    ):
        edits(cards, allocation_of(name), POD, host(old, settings={"injection": "cdi"}))
    new = spec((name, nodes), ("7", "/dev/nvidia1"))
    if name == UUIDS[1]:
        assert edits(cards, allocation_of(name), POD, host(new)).cdi == ("nvidia.com/gpu=7",)


@pytest.mark.parametrize("nodes", ["/dev/nvidia0", "/dev/nvidia1"])
def test_while_a_cards_number_is_unknown_no_name_with_nodes_is_surely_the_card(nodes: str) -> None:
    cards = (gpu(0), replace(gpu(1), vendor_minor=None, nodes=()))
    named = host(spec((UUIDS[1], nodes)), settings={"injection": "cdi"})
    with pytest.raises(AllocationRefused):
        edits(cards, allocation_of(UUIDS[1]), POD, named)
    without_nodes = host(spec((UUIDS[1], "/dev/dxg")), settings={"injection": "cdi"})
    assert edits(cards, allocation_of(UUIDS[1]), POD, without_nodes).cdi


def test_all_cards_of_a_grant_are_named_in_one_kind_or_not_at_all() -> None:
    half = spec(("0", "/dev/nvidia0"))
    whole = spec(("0", "/dev/nvidia0"), ("1", "/dev/nvidia1"), kind="x.nvidia.com/gpu")
    result = edits(CARDS, allocation_of(UUIDS[1], UUIDS[0]), POD, host(half, whole))
    assert result.cdi == ("x.nvidia.com/gpu=0", "x.nvidia.com/gpu=1")


def test_a_slice_is_named_by_parent_and_capabilities() -> None:
    card = gpu(0, partitions=(mig(1, 12, 13),))
    caps = "/dev/nvidia0 /dev/nvidia-caps/nvidia-cap12 /dev/nvidia-caps/nvidia-cap"
    named_spec = spec(("0", "/dev/nvidia0"), ("0:0", f"{caps}14"), ("0:1", f"{caps}13"))
    assert edits((card,), allocation_of("MIG-00000001"), POD, host(named_spec)).cdi == (
        "nvidia.com/gpu=0:1",
    )


def test_a_slice_whose_capabilities_are_unknown_is_not_taken_for_its_card() -> None:
    card = gpu(0, partitions=(mig(1),))
    whole = spec(("0", "/dev/nvidia0"))
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        edits(
            (card,), allocation_of("MIG-00000001"), POD, host(whole, settings={"injection": "cdi"})
        )
    named_spec = spec(("MIG-00000001", ""))
    result = edits((card,), allocation_of("MIG-00000001"), POD, host(named_spec))
    assert result.cdi == ("nvidia.com/gpu=MIG-00000001",)


def test_channels_and_limits_come_along_with_names() -> None:
    grant = replace(
        allocation_of(UUIDS[0], amounts={"ratio": 50, "memory": 1 << 30}), channels=(2,)
    )
    paths = ["/usr/local/vgpu/libvgpu.so"]
    pod = replace(POD, labels=HAMI)
    result = edits(CARDS, grant, pod, host(spec((UUIDS[0], "")), paths=paths))
    assert result.cdi == (f"nvidia.com/gpu={UUIDS[0]}", "nvidia.com/imex-channel=2")
    assert dict(result.env)["CUDA_DEVICE_MEMORY_LIMIT"] == str(1 << 30)


@pytest.mark.parametrize(
    ("mounts", "paths", "driver", "words"),
    [
        ((LIBRARY,), {LIBRARY}, "570.124.06", ""),
        ((LIBRARY,), {LIBRARY}, None, ""),
        ((LIBRARY,), {LIBRARY}, "580.65.06", "the loaded driver is 580.65.06"),
        ((LIBRARY,), set(), "570.124.06", "is gone"),
        (("/usr/bin/nvidia-smi",), {"/usr/bin/nvidia-smi"}, "580.65.06", ""),
        ((EGL,), {EGL}, "580.65.06", ""),  # it counts on its own
    ],
)
def test_a_spec_of_another_driver_is_stale(
    mounts: tuple[str, ...], paths: set[str], driver: str | None, words: str
) -> None:
    reason = stale_reason(spec(mounts=mounts), frozenset(paths), driver)
    assert words in reason
    assert bool(reason) is bool(words)


def test_a_spec_is_decoded_from_its_yaml() -> None:
    plain = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"mounts": [{"hostPath": LIBRARY}, {"containerPath": "/x"}, 7]},
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, None]}},
            {"name": "bad name"},
            {"name": "bare"},
            "odd",
        ],
    }
    assert decode_spec("/etc/cdi/n.yaml", plain) == CdiSpec(
        path="/etc/cdi/n.yaml",
        kind="nvidia.com/gpu",
        devices=(CdiDevice(name="0", nodes=("/dev/nvidia0",)), CdiDevice(name="bare")),
        mounts=(LIBRARY,),
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("kind", "devices", "containerEdits", "name", "deviceNodes", "mounts")),
            inner | st.just("nvidia.com/gpu"),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_a_hostile_spec_is_decoded_or_refused(plain: object) -> None:
    try:
        decode_spec("/etc/cdi/x.yaml", plain)
    except ParseError:
        return
