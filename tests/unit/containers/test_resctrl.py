"""A pod's part of cache and bandwidth, and its class only where that is there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.containers.resctrl import (
    GROUP_MISSING,
    RESCTRL,
    ResctrlHook,
    ResctrlRequest,
    group_name,
    parse_resctrl_request,
)
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookStage
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import ResctrlGroup, ResctrlView
from agent.wire_formats.annotations import AnnotationError
from tests.unit.containers.scene import UID, ask, pod, scene, to_json

GROUP = f"koordlet-{UID}"
WISH = (
    '{"llc":{"schemata":{"range":[20,80]},"schemataPerCache":[{"cacheID":1,"range":[20,50]}]},'
    '"mb":{"schemata":{"percent":20}}}'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            WISH,
            ResctrlRequest(cache=(20, 80), caches=((1, (20, 50)),), bandwidth_percent=20),
            id="V42",
        ),
        pytest.param(
            '{"llc":{"schemataPerCache":[{"range":[0,50]}]}}',
            ResctrlRequest(caches=((0, (0, 50)),)),
            id="V43, and no id is 0",
        ),
        pytest.param(
            '{"MB":{"SchemataPerCache":[{"cacheid":2,"Percent":7},{"cacheid":2,"percent":9}]}}',
            ResctrlRequest(bandwidths_percent=((2, 9),)),
            id="keys without regard to case, the last counts",
        ),
        pytest.param('{"mb":{"schemata":{"percent":0}}}', ResctrlRequest(), id="0 is none"),
        pytest.param('{"llc":{"schemata":{"range":[1]}}}', ResctrlRequest(), id="one end is none"),
        pytest.param("{}", ResctrlRequest(), id="nothing"),
        pytest.param('{"llc":null,"mb":{"schemata":null}}', ResctrlRequest(), id="null"),
    ],
)
def test_the_request_of_a_pod(text: str, expected: ResctrlRequest) -> None:
    assert parse_resctrl_request(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"llc":[]}',
        '{"llc":{"schemata":{"range":[30,30]}}}',
        '{"llc":{"schemata":{"range":[-10,100]}}}',
        '{"llc":{"schemata":{"range":[0,101]}}}',
        '{"llc":{"schemata":{"range":[0,true]}}}',
        '{"llc":{"schemata":{"range":[0,1e99]}}}',
        '{"llc":{"schemata":{"range":"0-100"}}}',
        '{"mb":{"schemata":{"percent":101}}}',
        '{"mb":{"schemata":{"percent":-1}}}',
        '{"mb":{"schemata":{"percent":NaN}}}',
        '{"mb":{"schemataPerCache":{}}}',
        '{"mb":{"schemataPerCache":[7]}}',
        '{"mb":{"schemataPerCache":[{"cacheID":-1,"percent":5}]}}',
        '{"mb":{"schemataPerCache":[{"cacheID":99999999999999999999,"percent":5}]}}',
        to_json({"mb": {"schemataPerCache": [{}] * 1025}}),
        '{"llc":' + '{"llc":' * 2000,
    ],
)
def test_a_hostile_wish_is_refused_whole(text: str) -> None:
    with pytest.raises(AnnotationError, match="resctrl"):
        parse_resctrl_request(text)


def test_the_class_is_that_of_a_group_that_exists() -> None:
    request = ask(HookStage.CREATE, pod(annotations={RESCTRL: WISH}))
    there = scene(groups=("BE", GROUP))
    assert ResctrlHook().adjust(request, there) == Adjustment(rdt_class=GROUP)


def test_without_its_group_a_pod_gets_no_class_and_that_is_reported() -> None:  # V45
    request = ask(HookStage.CREATE, pod(annotations={RESCTRL: WISH}))
    result = ResctrlHook().adjust(request, scene(groups=("BE",)))
    assert result.rdt_class is None
    assert [note.reason for note in result.edits.notes] == [GROUP_MISSING]


@pytest.mark.parametrize("annotations", [{}, {RESCTRL: "{}"}])
def test_a_pod_without_a_request_gets_nothing(annotations: dict[str, str]) -> None:
    request = ask(HookStage.CREATE, pod(annotations=annotations))
    assert ResctrlHook().adjust(request, scene(groups=(GROUP,))) == NO_ADJUSTMENT


@pytest.mark.parametrize("uid", ["", "../../x", "a/b", "A" * 36, "a" * 33, UID + "\n"])
def test_a_uid_that_is_none_names_no_group(uid: str) -> None:
    assert group_name(uid) is None


def partitioned(ready: tuple[str, ...], **class_groups: str) -> NodeSnapshot:
    """A node whose agent made these groups."""
    groups = tuple(ResctrlGroup(name=name) for name in (*ready, GROUP))
    view = ResctrlView(
        mode="on",
        groups=groups,
        class_groups=tuple(sorted(class_groups.items())),
        ready_groups=ready,
    )
    return replace(scene(groups=("BE", GROUP)), resctrl=view)


@pytest.mark.parametrize(
    ("qos", "place", "expected"),
    [
        ("BE", "Bu", "BE"),
        ("LS", "Bu", "BE"),  # classes of equal values share a group
        ("", "BE", "BE"),
        ("LSR", "G", None),  # the root group
        ("SYSTEM", "Bu", None),
        ("LSE", "G", None),
    ],
)
def test_a_container_starts_in_the_group_of_its_class(
    qos: str, place: str, expected: str | None
) -> None:
    node = partitioned(("BE",), BE="BE", LS="BE", LSR="")
    request = ask(HookStage.CREATE, pod(qos, place))
    assert ResctrlHook().adjust(request, node).rdt_class == expected


def test_no_container_starts_in_a_group_whose_values_are_not_written() -> None:
    node = partitioned((), BE="BE")
    assert ResctrlHook().adjust(ask(HookStage.CREATE, pod("BE")), node) == NO_ADJUSTMENT
    request = ask(HookStage.CREATE, pod("BE", annotations={RESCTRL: WISH}))
    result = ResctrlHook().adjust(request, node)
    assert result.rdt_class is None
    assert [note.reason for note in result.edits.notes] == [GROUP_MISSING]


def test_without_a_group_of_its_own_a_pod_starts_in_that_of_its_class() -> None:
    node = partitioned(("BE",), BE="BE")
    request = ask(HookStage.CREATE, pod("BE", annotations={RESCTRL: WISH}))
    result = ResctrlHook().adjust(request, node)
    assert result.rdt_class == "BE"
    assert [note.reason for note in result.edits.notes] == [GROUP_MISSING]


def test_the_group_of_a_pod_is_requested_before_its_sandbox() -> None:
    request = ask(HookStage.RUN_POD, pod(annotations={RESCTRL: WISH}), container=None)
    assert ResctrlHook().adjust(request, scene()) == Adjustment(rdt_class=GROUP)
    request = ask(HookStage.RUN_POD, pod("BE"), container=None)
    assert ResctrlHook().adjust(request, scene()) == NO_ADJUSTMENT
