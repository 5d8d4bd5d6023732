"""Small decisions of the servers: names, when a list is due, how long to wait, what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.deviceplugin.context import PluginTiming
from agent.deviceplugin.kubelet_folder import (
    FolderState,
    is_agent_socket,
    is_path_too_long,
    plugin_folder,
    socket_name,
)
from agent.deviceplugin.resources import KubeletDevice
from agent.deviceplugin.servicer import MAX_RESULTS, ResourceCounters, list_delay_s
from agent.snapshot.device_plugin import ALLOCATION_BUCKETS_S
from tests.kubelet.rules import choose_devices, hints, is_extended_resource_name, split

FOLDER = plugin_folder("/var/lib/kubelet/")
A, B, SICK = KubeletDevice(id="a"), KubeletDevice(id="b"), KubeletDevice(id="a", healthy=False)


@given(st.text(max_size=400), st.integers(1, 10**9))
def test_every_resource_has_a_socket_whose_path_the_system_takes(name: str, number: int) -> None:
    created = socket_name(name, number)
    assert is_agent_socket(created)
    assert "/" not in created
    assert not is_path_too_long(f"{FOLDER}/{created}")


def test_long_names_with_one_beginning_stay_apart() -> None:
    first, second = (socket_name(f"{'a' * 60}.example/{tail}", 1) for tail in ("x", "y"))
    assert first != second
    assert socket_name("nvidia.com/gpu", 3) == "xpu-agent-nvidia.com-gpu.3.sock"


@pytest.mark.parametrize(
    ("sent", "devices", "now_s", "due_s"),
    [
        (None, (), 0.0, 0.0),
        ((A,), (A,), 100.0, None),
        ((A,), (SICK,), 100.1, 0.0),  # worse
        ((SICK,), (A,), 100.1, 0.0),  # better
        ((A, B), (A,), 100.1, 0.0),  # gone
        ((A,), (A, B), 100.25, 0.75),  # more
        ((A,), (A, B), 101.5, 0.0),
        ((A,), (KubeletDevice(id="a", numa_nodes=(1,)),), 100.5, 0.5),
        ((A, B), (B, A), 100.5, 0.5),
    ],
)
def test_a_list_is_due(
    sent: tuple[KubeletDevice, ...] | None,
    devices: tuple[KubeletDevice, ...],
    now_s: float,
    due_s: float | None,
) -> None:
    assert list_delay_s(sent, 100.0, devices, now_s, 1.0) == due_s


def test_waits_double_up_to_half_a_minute_and_are_spread_by_a_tenth() -> None:
    pace = PluginTiming()
    middle = [
        pace.retry_delay_s(failures, lambda low, high: (low + high) / 2) for failures in range(1, 8)
    ]
    assert middle == [1, 2, 4, 8, 16, 30, 30]
    assert pace.retry_delay_s(10**6, lambda low, _: low) == pytest.approx(27)
    assert pace.retry_delay_s(10**6, lambda _, high: high) == pytest.approx(33)


@pytest.mark.parametrize(
    ("before", "now", "replaced"),
    [
        (FolderState(), FolderState(), False),
        (FolderState(), FolderState(folder=(1, 2)), True),
        (FolderState(folder=(1, 2)), FolderState(), False),
        (FolderState(folder=(1, 2)), FolderState(folder=(1, 2), socket=(1, 3, 4)), True),
        (FolderState(folder=(1, 2), socket=(1, 3, 4)), FolderState(folder=(1, 2)), False),
        (
            FolderState(folder=(1, 2), socket=(1, 3, 4)),
            FolderState(folder=(1, 2), socket=(1, 3, 5)),  # the inode number came again
            True,
        ),
    ],
)
def test_another_kubelet_is_distinguished_from_an_absent_one(
    before: FolderState, now: FolderState, replaced: bool
) -> None:
    assert before.is_replaced_by(now) is replaced


def test_buckets_add_up_and_results_are_bounded() -> None:
    counts = ResourceCounters("nvidia.com/gpu")
    for index in range(1000):
        counts.count_allocation(f"Reason{index}", 0.001)
    counts.count_allocation("Reason0", 11.0)
    statistics = counts.statistics()
    assert statistics.latency.buckets[ALLOCATION_BUCKETS_S.index(0.001)] == 1000
    assert statistics.latency.buckets[-1] == 1001
    assert len(statistics.allocations) == MAX_RESULTS + 1
    assert sum(count for _, count in statistics.allocations) == 1001


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("huawei.com/Ascend910", True),
        ("rdma/hca", True),
        ("gpu", False),
        ("kubernetes.io/gpu", False),
        ("x.kubernetes.io/gpu", False),
        ("requests.nvidia.com/gpu", False),
        ("nvidia.com/gpu.", False),
        ("nvidia.com/" + "g" * 64, False),
        ("Nvidia.com/gpu", False),
        ("a/b/c", False),
    ],
)
def test_the_strict_kubelets_rule_of_names(name: str, good: bool) -> None:
    assert is_extended_resource_name(name) is good


def test_the_strict_kubelet_chooses_as_the_real_one() -> None:
    nodes = {f"g{n}": frozenset({n // 2}) for n in range(4)} | {"x": frozenset[int]()}
    assert hints({"x": frozenset()}, {"x"}, 1) is None
    one, two = frozenset({0}), frozenset({1})
    assert hints(nodes, {"g0", "g2", "g3"}, 2) == [(two, True), (one | two, False)]
    parts = split(nodes, {"g1", "g2", "g3", "x"}, two)
    assert parts == ({"g2", "g3"}, {"g1"}, {"x"})
    assert choose_devices(parts, 1, lambda _: {"g3"}) == ["g3"]
    assert sorted(choose_devices(parts, 3, lambda _: {"x"})) == ["g2", "g3", "x"]
    assert sorted(choose_devices(parts, 4, lambda _: set())) == ["g1", "g2", "g3", "x"]
