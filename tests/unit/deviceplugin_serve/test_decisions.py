"""Small decisions of the servers: names, when a list is due, how long to wait, what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.deviceplugin.base import Listed
from agent.deviceplugin.kubelet.folder import FolderSeen
from agent.deviceplugin.serve.figures import BOUNDS_S, MAX_RESULTS, ResourceCounts
from agent.deviceplugin.serve.listing import due_in_s
from agent.deviceplugin.serve.names import is_ours, plugin_folder, socket_name, too_long
from agent.deviceplugin.serve.site import Pace
from tests.kubelet.rules import hints, is_extended_resource_name, split, taken

FOLDER = plugin_folder("/var/lib/kubelet/")
A, B, SICK = Listed(id="a"), Listed(id="b"), Listed(id="a", healthy=False)


@given(st.text(max_size=400), st.integers(1, 10**9))
def test_every_resource_has_a_socket_whose_path_the_system_takes(name: str, number: int) -> None:
    made = socket_name(name, number)
    assert is_ours(made)
    assert "/" not in made
    assert not too_long(f"{FOLDER}/{made}")


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
        ((A,), (Listed(id="a", numa_nodes=(1,)),), 100.5, 0.5),
        ((A, B), (B, A), 100.5, 0.5),
    ],
)
def test_a_list_is_due(
    sent: tuple[Listed, ...] | None, devices: tuple[Listed, ...], now_s: float, due_s: float | None
) -> None:
    assert due_in_s(sent, 100.0, devices, now_s, 1.0) == due_s


def test_waits_double_up_to_half_a_minute_and_are_spread_by_a_tenth() -> None:
    pace = Pace()
    middle = [pace.after(failures, lambda low, high: (low + high) / 2) for failures in range(1, 8)]
    assert middle == [1, 2, 4, 8, 16, 30, 30]
    assert pace.after(10**6, lambda low, _: low) == pytest.approx(27)
    assert pace.after(10**6, lambda _, high: high) == pytest.approx(33)


@pytest.mark.parametrize(
    ("before", "now", "replaced"),
    [
        (FolderSeen(), FolderSeen(), False),
        (FolderSeen(), FolderSeen(folder=(1, 2)), True),
        (FolderSeen(folder=(1, 2)), FolderSeen(), False),
        (FolderSeen(folder=(1, 2)), FolderSeen(folder=(1, 2), socket=(1, 3, 4)), True),
        (FolderSeen(folder=(1, 2), socket=(1, 3, 4)), FolderSeen(folder=(1, 2)), False),
        (
            FolderSeen(folder=(1, 2), socket=(1, 3, 4)),
            FolderSeen(folder=(1, 2), socket=(1, 3, 5)),  # the inode number came again
            True,
        ),
    ],
)
def test_another_kubelet_is_told_from_one_that_is_gone(
    before: FolderSeen, now: FolderSeen, replaced: bool
) -> None:
    assert before.replaced(now) is replaced


def test_buckets_add_up_and_results_are_bounded() -> None:
    counts = ResourceCounts("nvidia.com/gpu")
    for index in range(1000):
        counts.allocated(f"Reason{index}", 0.001)
    counts.allocated("Reason0", 11.0)
    found = counts.figures()
    assert found.buckets[BOUNDS_S.index(0.001)] == 1000
    assert found.buckets[-1] == 1001
    assert len(found.allocations) == MAX_RESULTS + 1
    assert sum(count for _, count in found.allocations) == 1001


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
    assert taken(parts, 1, lambda _: {"g3"}) == ["g3"]
    assert sorted(taken(parts, 3, lambda _: {"x"})) == ["g2", "g3", "x"]
    assert sorted(taken(parts, 4, lambda _: set())) == ["g1", "g2", "g3", "x"]
