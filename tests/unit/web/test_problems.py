"""The first section of the page: each cause once, the worst first, with remedy, time and link."""

from __future__ import annotations

import json

from msgspec.structs import replace

from agent.runbook.problem import Problem
from agent.runbook.problems import find_problems
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import SelfCheck, SelfCheckReport
from agent.web.page.document import render_page
from agent.web.page.problems import MAX_GROUPS, group_problems, problems_section
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests.factory import BOOT_S, NOW_S
from tests.unit.web.busy_node import busy_snapshot, ruin
from tests.unit.web.test_server import get
from tests.unit.web.view import HOSTILE, StillView, eight_cards

RUNBOOK = build_runbook(load_vendors())
READY = SelfCheckReport((SelfCheck(name="a", ok=True),))


def problems_of(snapshot: NodeSnapshot) -> tuple[Problem, ...]:
    return find_problems(snapshot, RUNBOOK.find, NOW_S, BOOT_S)


def render(*problems: Problem) -> str:
    return problems_section(problems, READY)


def card_problem() -> Problem:
    """Return the problem of the failed card of a busy node."""
    return next(one for one in problems_of(busy_snapshot(4, pods=8)) if one.reason == "Xid79")


def test_a_failed_card_has_cause_impact_remedy_time_and_the_runbooks_anchor() -> None:
    vendor = busy_snapshot(4, pods=8).vendors[0]
    snapshot = busy_snapshot(4, pods=8)
    infos = tuple(one.info for one in snapshot.devices.value.devices)
    inventory = replace(vendor.inventory, value=Inventory(vendor="nvidia", devices=infos))
    page = render(*problems_of(replace(snapshot, vendors=(replace(vendor, inventory=inventory),))))
    first = page[: page.index("</li>")]
    for words in (
        "critical</span> GPU 2: the GPU has fallen off the bus",
        "<p>GPU has fallen off the bus</p>",
        "<b>Impact: </b>",
        "<b>What to do: </b>Reboot the node",
        '<span class="word">reboot</span>',
        "since 2026-01-02T03:02:05Z",
        'href="/runbook#nvidia-xid79"',
    ):
        assert words in first, words
    assert page.index("critical") < page.index("warning")


def test_equal_causes_of_several_devices_are_one_item_with_all_names() -> None:
    one = card_problem()
    names = [f"GPU {index}" for index in range(10)]
    problems = [
        replace(one, subject=name, name=name, since_s=BOOT_S - index)
        for index, name in enumerate(names)
    ]
    (group,) = group_problems(problems)
    assert group.names == f"{', '.join(names[:8])} and 2 more"
    assert group.since_s == BOOT_S - 9
    assert render(*problems).count("<li ") == 1


def test_different_messages_of_one_cause_name_their_subjects() -> None:
    one = card_problem()
    other = replace(one, subject="b", name="GPU 7", message="power is off")
    page = render(one, other)
    assert "<p>GPU 2: GPU has fallen off the bus</p><p>GPU 7: power is off</p>" in page


def test_more_causes_than_fit_are_counted_and_linked() -> None:
    one = card_problem()
    page = render(*(replace(one, reason=f"Reason{index}") for index in range(MAX_GROUPS + 3)))
    assert page.count("<li ") == MAX_GROUPS
    assert '<a href="/api/v1/problems">3 more kinds of problems, as JSON</a>' in page


def test_changes_are_announced_and_ages_are_not() -> None:
    page = render(card_problem())
    assert 'aria-live="polite"' in page
    assert " ago" not in page


def test_without_problems_the_page_says_so_unless_the_agent_is_not_ready() -> None:
    assert "Nothing is wrong that the agent can see." in render()
    late = SelfCheckReport((SelfCheck(name="loop:collect", ok=False),))
    section = problems_section((), late)
    assert "Nothing is wrong" not in section
    assert "not ready yet" in section


def test_names_in_backticks_are_code_and_nothing_becomes_markup() -> None:
    one = replace(card_problem(), remedy=f"see `xpu-agent devices` {HOSTILE}", message=HOSTILE)
    page = render(one)
    assert "See <code>xpu-agent devices</code> &lt;script&gt;" in page
    assert HOSTILE not in page
    assert "`" in render(replace(one, remedy="an odd ` backtick"))


def test_all_problems_are_available_as_json() -> None:
    view = StillView(busy_snapshot(4, pods=8))
    status, _, body = get("/api/v1/problems", view)
    listed = json.loads(body)["problems"]
    assert status == 200
    assert [one["reason"] for one in listed] == [
        one.reason for one in find_problems(view.snapshot(), view.runbook.find, *view.now_s())
    ]
    assert {"subject", "severity", "remedy", "action", "anchor", "since_s"} <= listed[0].keys()


def test_a_critical_problem_of_anything_makes_the_head_red() -> None:
    snapshot = eight_cards()
    cards = [ruin(one) for one in snapshot.devices.value.devices[:1]]
    view = replace(snapshot.devices.value, devices=(*cards, *snapshot.devices.value.devices[3:]))
    page = render_page(StillView(replace(snapshot, devices=replace(snapshot.devices, value=view))))
    assert 'class="head failed"' in page
    refused = busy_snapshot(1, pods=4)  # its only card is well, and one pod gets none
    devices = replace(refused.devices.value, devices=refused.devices.value.devices[:1])
    page = render_page(StillView(replace(refused, devices=replace(refused.devices, value=devices))))
    assert "devices out of service" not in page[: page.index("<main")]
    assert 'class="head failed"' in page
