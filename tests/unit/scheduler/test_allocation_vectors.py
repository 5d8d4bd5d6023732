"""Which devices the worked vectors of Koordinator's unit tests give."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.allocator import (
    DeviceChoices,
    NodeRefused,
    NodeState,
    Rules,
    allocate,
    check_request,
    filter_node,
    has_local_choice,
)
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    DeviceTable,
)
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import DeviceRequest, InvalidRequest, device_request
from plugins.scheduler.devices.scores import ScoringStrategy
from tests.unit.scheduler.vectors import FAKE_W, NODES, NPU, RDMA_NAME, gpu, holding, nic

MOST = ScoringStrategy(type="MostAllocated")
GIB = 1 << 30
GENERAL = ("general", "fakeG")
JOINT = {"deviceTypes": ["gpu", "rdma"]}
SAME = {**JOINT, "requiredScope": "SamePCIe"}
HONOR = {
    "node.koordinator.sh/gpu-model": "H800",
    "node.koordinator.sh/gpu-partition-policy": "Honor",
}
PREFER = {"node.koordinator.sh/gpu-model": "H100"}


def pod(
    amounts: dict[str, int],
    joint: object = None,
    *,
    functions: tuple[str, ...] | None = GENERAL,
    scope: str = "",
    exclusive: str = "",
    strategy: str = "",
) -> DeviceRequest:
    """Return the request of a pod of the vectors: NICs with a label, and functions of a class."""
    rdma: dict[str, object] = {"selector": {"matchLabels": FAKE_W}}
    if functions is not None:
        expression = {"key": "type", "operator": "In", "values": list(functions)}
        rdma["vfSelector"] = {"matchExpressions": [expression]}
    card: dict[str, object] = {"requiredTopologyScope": scope} if scope else {}
    if exclusive:
        card["exclusivePolicy"] = rdma["exclusivePolicy"] = exclusive
    if strategy:
        rdma["allocateStrategy"] = strategy
    annotations = {
        "scheduling.koordinator.sh/device-allocate-hint": json.dumps({"gpu": card, "rdma": rdma})
    }
    if joint is not None:
        annotations["scheduling.koordinator.sh/device-joint-allocate"] = json.dumps(joint)
    request = device_request(amounts, annotations)
    assert request is not None
    return request


def cards(count: int, rdma: int = 1) -> dict[str, int]:
    return {"nvidia.com/gpu": count, RDMA_NAME: rdma}


HALF = {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, RDMA_NAME: 1}


def short(grant: DeviceChoices) -> str:
    """Return `0-3 | 1=…:00.2`: minors of GPUs, and NICs with functions and amounts above 1."""
    gpus = ",".join(str(one.device.minor) for one in grant if one.device.kind == GPU)
    nics = []
    for one in grant:
        if one.device.kind == RDMA:
            function = f"={one.function.bus_id}" if one.function is not None else ""
            amount = one.amounts[RDMA_NAME]
            nics.append(f"{one.device.minor}{function}" + (f"x{amount}" if amount > 1 else ""))
    return f"{gpus} | {' '.join(nics)}"


def allocate_on(
    table: DeviceTable,
    request: DeviceRequest,
    allocated_devices: Iterable[AllocatedDevice] = (),
    labels: dict[str, str] | None = None,
    strategy: ScoringStrategy | None = None,
    rules: Rules | None = None,
) -> DeviceChoices:
    node = NodeState(
        name="node", labels=labels or {}, table=table, usage=sum_usage([allocated_devices], table)
    )
    filter_node(node, request, rules or Rules())
    return allocate(node, request, rules or Rules(), strategy=strategy)


G = "0000:1f:00.2", "0000:90:00.2", "0000:51:00.2", "0000:b9:00.2"
ALL_G = [f"{i + 1}={bus}" for i, bus in enumerate(G)]
VF_ONLY = {RDMA_NAME: 1}
STRICT = Rules(enforces_exclusive_policy=True)
NO_FUNCTION = "Insufficient rdma VirtualFunctions"
NO_JOINT = "node(s) Device Joint-Allocate rules violation"
NO_SIZE = "node(s) Unsupported number of GPU requests"
H = ["0000:09:00", "0000:7f:00", "0000:a3:00", "0000:c7:00", "0001:08:00", "0001:7e:00",
     "0001:a2:00", "0001:c6:00"]  # fmt: skip


def h(*minors: int, function: int = 3) -> str:
    return " ".join(f"{minor}={H[minor - 1]}.{function}" for minor in minors)


# number: node, request, in use (GPUs, functions, NICs), labels, strategy, rules; result
VECTORS: dict[str, tuple[str, DeviceRequest, dict[str, object], str]] = {
    "A01": ("A0", pod(cards(1), JOINT), {}, NO_FUNCTION),
    "A02": ("A0", pod(VF_ONLY), {}, NO_FUNCTION),
    "A03": ("A", pod(VF_ONLY), {}, f" | {ALL_G[0]}"),
    "A04": ("A", pod(cards(1), JOINT), {}, f"0 | {ALL_G[0]}"),
    "A05": ("A", pod(cards(2), JOINT), {}, f"0,1 | {ALL_G[0]}"),
    "A06": ("A", pod(cards(3), JOINT), {}, f"0,1,2 | {' '.join(ALL_G[:2])}"),
    "A07": ("A", pod(cards(4), JOINT), {}, f"0,1,2,3 | {' '.join(ALL_G[:2])}"),
    "A08": ("A", pod(cards(6), JOINT), {}, f"0,1,2,3,4,5 | {' '.join(ALL_G[:3])}"),
    "A09": ("A", pod(cards(8), JOINT), {}, f"0,1,2,3,4,5,6,7 | {' '.join(ALL_G)}"),
    "A10": ("A", pod(cards(2), JOINT), {"gpus": [0], "functions": G[:1]}, f"2,3 | {ALL_G[1]}"),
    "A11": (
        "A",
        pod(cards(3), JOINT),
        {"gpus": [0], "functions": G[:1]},
        f"1,2,3 | 1=0000:1f:00.3 {ALL_G[1]}",
    ),
    "A12": ("B", pod(cards(4), JOINT), {}, "0,1,2,3 | 1=0000:20:00.0"),
    "A13": (
        "C",
        pod(cards(4), JOINT),
        {"gpus": range(4), "functions": ["0000:20:00.0"]},
        "4,5,6,7 | 3=0000:22:00.0 4=0000:23:00.0",
    ),
    "A14": (
        "D",
        pod(cards(4, 400), JOINT),
        {"gpus": range(4), "functions": ["0000:20:00.0"]},
        "4,5,6,7 | 3=0000:22:00.0x100 4=0000:23:00.0x100 7=0001:22:00.0x100 8=0001:23:00.0x100",
    ),
    "A15": (
        "E",
        pod(cards(4, 400), JOINT),
        {},
        "0,1,2,3 | 0=0000:20:00.0x100 3=0000:23:00.0x100 4=0000:24:00.0x100 5=0000:25:00.0x100",
    ),
    "A16": (
        "F",
        pod(cards(4), JOINT, functions=None, strategy="ApplyForAll"),
        {},
        "0,1,2,3 | 1 2 3 4",
    ),
    "A17": ("A", pod(cards(1), SAME, exclusive="PCIeLevel"), {"rules": STRICT}, f"0 | {ALL_G[0]}"),
    "A18": (
        "A",
        pod(cards(2), SAME, exclusive="PCIeLevel"),
        {"rules": STRICT},
        f"0,1 | {ALL_G[0]}",
    ),
    "A19": (
        "A",
        pod(cards(3), SAME, exclusive="PCIeLevel"),
        {"rules": STRICT},
        f"0,1,2 | {' '.join(ALL_G[:2])}",
    ),
    "A20": (
        "A",
        pod(cards(4), SAME, exclusive="PCIeLevel"),
        {"rules": STRICT},
        f"0,1,2,3 | {' '.join(ALL_G[:2])}",
    ),
    "A21": ("A", pod(cards(2), SAME), {"gpus": [0], "nics": [1]}, f"2,3 | {ALL_G[1]}"),
    "A22": ("A", pod(cards(3), SAME), {"gpus": [0], "nics": [1]}, NO_JOINT),
    "A23": ("H", pod(VF_ONLY, functions=("fakeC",)), {"labels": HONOR}, " | 1=0000:09:02.2"),
    "A24": ("H", pod(cards(1), JOINT), {"labels": HONOR}, f"0 | {h(1)}"),
    "A25": ("H", pod(cards(2), JOINT), {"labels": HONOR}, f"0,1 | {h(1, 2)}"),
    "A26": ("H", pod(cards(3), JOINT), {"labels": HONOR}, NO_SIZE),
    "A27": ("H", pod(cards(4), JOINT), {"labels": HONOR}, f"0,1,2,3 | {h(1, 2, 3, 4)}"),
    "A28": ("H", pod(cards(6), JOINT), {"labels": HONOR}, NO_SIZE),
    "A29": ("H", pod(cards(8), JOINT), {"labels": HONOR}, f"0,1,2,3,4,5,6,7 | {h(*range(1, 9))}"),
    "A30": (
        "H",
        pod(cards(2), JOINT),
        {"labels": HONOR, "gpus": [2, 3], "functions": ["0000:09:00.3", "0000:7f:00.3"]},
        f"0,1 | {h(1, 2, function=4)}",
    ),
    "A31": (
        "H",
        pod(cards(2), JOINT),
        {"labels": HONOR, "gpus": [4], "functions": ["0001:08:00.3"]},
        f"6,7 | {h(7, 8)}",
    ),
    "A32": (
        "H",
        pod(cards(1), JOINT),
        {"labels": HONOR, "gpus": [4], "functions": ["0001:08:00.3"]},
        f"5 | {h(6)}",
    ),
    "A33": (
        "H",
        pod(cards(3), JOINT),
        {"labels": PREFER, "gpus": [2, 3], "functions": ["0000:09:00.3", "0000:7f:00.3"]},
        f"4,5,6 | {h(5, 6, 7)}",
    ),
    "A34": ("A", pod(cards(1), SAME), {"gpus": [5], "functions": G[2:3]}, "4 | 3=0000:51:00.3"),
    "A35": ("A", pod(cards(2), SAME), {"gpus": [5], "nics": [3]}, f"6,7 | {ALL_G[3]}"),
    "A36": (
        "A",
        pod(cards(2), SAME, scope="PCIe"),
        {"gpus": [5], "functions": G[2:3]},
        f"6,7 | {ALL_G[3]}",
    ),
    "A37": (
        "A",
        pod(cards(4), SAME, scope="NUMANode"),
        {"gpus": [5], "functions": G[2:3]},
        f"0,1,2,3 | {' '.join(ALL_G[:2])}",
    ),
    "A38": (
        "A",
        pod(cards(4), SAME, scope="NUMANode"),
        {"gpus": [0, 5], "functions": [G[0], G[2]]},
        "Insufficient Topology Scoped GPU Devices",
    ),
    "A39": (
        "A",
        pod(HALF, SAME),
        {"gpus": [5], "functions": G[2:3], "strategy": MOST},
        "4 | 3=0000:51:00.3",
    ),
    "A40": (
        "A",
        pod(HALF, SAME),
        {"gpus": [5], "functions": G[2:3], "strategy": MOST, "half": 7},
        f"7 | {ALL_G[3]}",
    ),
}


@pytest.mark.parametrize("number", VECTORS)
def test_devices_of_the_vector(number: str) -> None:
    name, request, state, expected = VECTORS[number]
    table, state = NODES[name], dict(state)
    options = {key: state.pop(key) for key in ("labels", "strategy", "rules") if key in state}
    half = state.pop("half", None)
    entries = holding(table, **state)  # type: ignore[arg-type]  # GPUs, functions and NICs of a row
    if half is not None:
        amounts = ((GPU_CORE, 50), (GPU_MEMORY_RATIO, 50), (GPU_MEMORY, 83201216 * 512))
        entries = (*entries, AllocatedDevice(type=GPU, minor=half, resources=amounts))  # type: ignore[arg-type]  # a minor
    try:
        result = short(allocate_on(table, request, entries, **options))  # type: ignore[arg-type]  # of a row
    except NodeRefused as refused:
        result = refused.reason
    assert result == expected


NPU_LABELS = {
    "node.koordinator.sh/gpu-vendor": "huawei",
    "node.koordinator.sh/gpu-model": "Ascend-310P",
}


def npu_pod(core: int, cpu: int, dvpp: int, memory_gib: int) -> DeviceRequest:
    request = device_request(
        {
            "koordinator.sh/gpu.shared": 1,
            "huawei.com/npu-core": core,
            "huawei.com/npu-cpu": cpu,
            "huawei.com/npu-dvpp": dvpp,
            GPU_MEMORY: memory_gib * GIB,
        }
    )
    assert request is not None
    return request


def half_npus(*minors: int) -> tuple[AllocatedDevice, ...]:
    half = (("huawei.com/npu-core", 4), ("huawei.com/npu-cpu", 4), ("huawei.com/npu-dvpp", 50))
    amounts = (*half, (GPU_MEMORY, 12 * GIB), (GPU_MEMORY_RATIO, 50))
    return tuple(AllocatedDevice(type=GPU, minor=minor, resources=amounts) for minor in minors)


MOST_MEMORY = ScoringStrategy(type="MostAllocated", weights={GPU_MEMORY: 1})


def test_a_small_template_goes_to_the_npu_that_is_used_already() -> None:
    (grant,) = allocate_on(NODES["N"], npu_pod(1, 1, 12, 3), half_npus(0), NPU_LABELS, MOST_MEMORY)
    assert (grant.device.minor, grant.template) == (0, "vir01")
    assert grant.amounts[GPU_MEMORY_RATIO] == 12


def test_a_template_that_does_not_fit_on_a_used_npu_goes_to_an_idle_one() -> None:
    (grant,) = allocate_on(
        NODES["N"], npu_pod(4, 4, 100, 12), half_npus(0), NPU_LABELS, MOST_MEMORY
    )
    assert (grant.device.minor, grant.template) == (1, "vir04_4c_dvpp")


def test_a_template_is_refused_where_all_npus_are_too_full() -> None:
    with pytest.raises(NodeRefused, match="Insufficient GPU Devices"):
        allocate_on(NODES["N"], npu_pod(4, 4, 100, 12), half_npus(*range(8)), NPU_LABELS)


def test_a_template_is_refused_on_a_node_of_another_model() -> None:
    with pytest.raises(NodeRefused, match="no matched GPU shared resource template") as refused:
        allocate_on(NODES["A"], npu_pod(4, 4, 100, 12))
    assert refused.value.is_final


SMALL = {GPU_CORE: 100, GPU_MEMORY: 8 * GIB, GPU_MEMORY_RATIO: 100}


def small_cards(*minors: int) -> DeviceTable:
    return DeviceTable(
        node="node", devices={GPU: tuple(gpu(m, "", 0, SMALL, placed=False) for m in minors)}
    )


def half_cards(*minors: int) -> tuple[AllocatedDevice, ...]:
    amounts = ((GPU_CORE, 50), (GPU_MEMORY, 4 * GIB), (GPU_MEMORY_RATIO, 50))
    return tuple(AllocatedDevice(type=GPU, minor=minor, resources=amounts) for minor in minors)


def half_card() -> DeviceRequest:
    request = device_request({GPU_CORE: 50, GPU_MEMORY_RATIO: 50})
    assert request is not None
    return request


@pytest.mark.parametrize(
    ("used", "strategy", "minor"),
    [((), None, 1), ((1, 2), ScoringStrategy(), 3), ((3, 4), MOST, 3)],
    ids=["A45", "A46", "A47"],
)
def test_half_a_card(used: tuple[int, ...], strategy: ScoringStrategy | None, minor: int) -> None:
    (grant,) = allocate_on(
        small_cards(1, 2, 3, 4), half_card(), half_cards(*used), strategy=strategy
    )
    assert grant.device.minor == minor
    assert grant.amounts == {GPU_CORE: 50, GPU_MEMORY: 4 * GIB, GPU_MEMORY_RATIO: 50}


def test_a_sick_card_is_not_chosen() -> None:
    sick = gpu(1, "", 0, {}, placed=False)
    table = DeviceTable(node="node", devices={GPU: (sick, *small_cards(2).of(GPU))})
    (grant,) = allocate_on(table, half_card())
    assert grant.device.minor == 2


def test_half_a_nic_goes_to_the_first_one() -> None:
    table = DeviceTable(node="node", devices={RDMA: (nic(1, "a", "", 0), nic(2, "b", "", 0))})
    request = device_request({RDMA_NAME: 50})
    assert request is not None
    (grant,) = allocate_on(table, request)
    assert (grant.device.minor, dict(grant.amounts)) == (1, {RDMA_NAME: 50})


def test_a_resource_that_the_device_does_not_have_is_refused_unless_koordinator_is_imitated() -> (
    None
):
    table = DeviceTable(
        node="node", devices={GPU: (gpu(0, "", 0, {GPU_MEMORY_RATIO: 100}, placed=False),)}
    )
    with pytest.raises(NodeRefused, match="Insufficient gpu devices"):
        allocate_on(table, half_card())
    compatible = Rules(upstream_compatible=True)
    assert len(allocate_on(table, half_card(), rules=compatible)) == 1


def test_an_exclusive_request_avoids_switches_in_use_where_the_policy_is_enforced() -> None:
    request = pod(cards(1), exclusive="PCIeLevel")
    entries = holding(NODES["A"], gpus=[0])
    assert short(allocate_on(NODES["A"], request, entries)).startswith("1 |")
    assert short(allocate_on(NODES["A"], request, entries, rules=STRICT)).startswith("2 |")


def test_a_node_without_a_device_object_is_left_to_the_kubelet_only_for_its_own_resources() -> None:
    node = NodeState(name="node")
    card = device_request({"nvidia.com/gpu": 1})
    assert card is not None
    filter_node(node, card)
    assert allocate(node, card) == ()
    with pytest.raises(NodeRefused, match=r"node\(s\) missing Device"):
        filter_node(node, half_card())


def test_a_shared_pod_needs_a_node_with_its_isolation_provider() -> None:
    request = device_request(
        {GPU_CORE: 50, GPU_MEMORY_RATIO: 50},
        {},
        {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
    )
    assert request is not None
    with pytest.raises(NodeRefused, match="GPUIsolationProviderHAMICore not found") as refused:
        allocate_on(small_cards(1), request)
    assert refused.value.is_final
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    assert len(allocate_on(small_cards(1), request, labels=labels)) == 1


def test_npus_of_the_vectors_have_all_amounts() -> None:
    assert NODES["N"].of(GPU)[0].total == NPU


def test_a_request_that_matches_no_template_of_any_model_is_invalid() -> None:
    with pytest.raises(InvalidRequest, match="no matched GPU shared resource template"):
        check_request(npu_pod(3, 3, 3, 3))
    check_request(npu_pod(1, 1, 12, 3))


def test_joint_pods_get_cards_whose_root_has_a_free_nic() -> None:
    table, request = NODES["A"], pod(cards(2, 100), JOINT, functions=None)
    entries = holding(table, nics=[1])
    assert short(allocate_on(table, request, entries)) == "2,3 | 2x100"
    compatible = allocate_on(table, request, entries, rules=Rules(upstream_compatible=True))
    assert short(compatible) == "0,1 | 2x100"


def test_joint_pods_get_cards_whose_root_has_a_free_function() -> None:
    table, request = NODES["A"], pod(cards(1), JOINT)
    bus_ids = [
        function.bus_id
        for group in table.of(RDMA)[0].function_groups
        for function in group.functions
    ]
    entries = holding(table, functions=bus_ids)
    assert short(allocate_on(table, request, entries)) == f"2 | {ALL_G[1]}"


def test_a_node_has_a_local_choice_while_enough_cards_have_a_nic_on_their_root() -> None:
    table = NODES["A"]

    def is_local(count: int, allocated_devices: Iterable[AllocatedDevice], **joint: str) -> bool:
        request = pod(cards(count, 100), {**JOINT, **joint}, functions=None)
        state = NodeState(name="node", table=table, usage=sum_usage([allocated_devices], table))
        return has_local_choice(state, request)

    assert is_local(8, ())
    assert is_local(6, holding(table, nics=[1]))
    assert not is_local(7, holding(table, nics=[1]))
    assert not is_local(1, (), requiredScope="SamePCIe")  # a node without refuses it
    alone = NodeState(name="node", table=table)
    assert not has_local_choice(alone, pod(cards(1, 100), functions=None))
