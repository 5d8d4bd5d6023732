"""The status page as a whole: what it shows first, its structure, its size, and its colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from msgspec.structs import replace

from agent.config.sources import LoadedSettings, decode_settings
from agent.snapshot.device import Health, HealthState
from agent.snapshot.node import NodeSnapshot
from agent.web.page.agent_section import HIDDEN, setting_rows
from agent.web.page.document import StatusPage, render_page, stylesheet
from agent.web.page.pods import MAX_ROWS
from agent.web.page.svg import STYLE
from tests import factory
from tests.unit.web.busy_node import busy_snapshot, ruin
from tests.unit.web.view import HOSTILE, StillView, eight_cards

VOID = {"meta", "link", "br", "input", "img"}
MAX_PAGE_BYTES = 100_000


class Outline(HTMLParser):
    """Elements with attributes in order; refuses tags that do not match."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def named(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name in names]


def pages(snapshot: NodeSnapshot) -> dict[str, str]:
    page = StatusPage(StillView(snapshot))
    return {
        "status": "".join(page.render()),
        "pods": "".join(page.render_pods()),
        "settings": "".join(page.render_settings()),
        "objects": "".join(page.render_objects()),
        "runbook": "".join(page.render_runbook()),
        "distances": "".join(page.render_distances()),
    }


SNAPSHOTS = {
    "empty": NodeSnapshot(node=factory.snapshot().node),
    "plain": eight_cards(),
    "busy": busy_snapshot(),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_every_page_is_well_formed_with_landmarks_headings_and_unique_ids(name: str) -> None:
    for document in pages(SNAPSHOTS[name]).values():
        outline = Outline(document)
        ids = [one["id"] for _, one in outline.elements if one.get("id")]
        assert len(ids) == len(set(ids))
        assert [len(outline.named(mark)) for mark in ("header", "main", "footer")] == [1, 1, 1]
        assert len(outline.named("h1")) == 1
        levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch("h[1-6]", tag)]
        assert all(after - before <= 1 for before, after in pairwise(levels))
        names = [one for one in outline.named("section") if one["aria-labelledby"] not in ids]
        assert names == []


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_every_link_inside_the_page_leads_somewhere(name: str) -> None:
    document = pages(SNAPSHOTS[name])["status"]
    outline = Outline(document)
    ids = {one.get("id") for _, one in outline.elements}
    inner = [str(one["href"]) for one in outline.named("a") if str(one["href"]).startswith("#")]
    assert [link for link in inner if link[1:] not in ids] == []


def test_tables_have_captions_and_headings_of_rows_and_columns() -> None:
    outline = Outline(pages(SNAPSHOTS["busy"])["status"])
    assert len(outline.named("caption")) == len(outline.named("table"))
    assert {one.get("scope") for one in outline.named("th")} == {"row", "col"}
    boxes = [one for one in outline.named("div") if one.get("class") == "scroll"]
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in boxes)


def test_no_asset_of_another_place_and_no_handler_in_the_markup() -> None:
    for document in pages(SNAPSHOTS["busy"]).values():
        outline = Outline(document)
        sources = [one["src"] for _, one in outline.elements if "src" in one]
        assert sources == ["/page.js"]
        assert not [name for _, one in outline.elements for name in one if name.startswith("on")]
        assert "http:" not in document.replace("http://www.w3.org/2000/svg", "")
        assert "https:" not in document


def test_a_page_that_the_browser_reloads_has_no_script() -> None:
    assert "<script" not in render_page(StillView(eight_cards()), 5)


def test_the_page_of_a_large_node_stays_small_and_says_what_it_leaves_out() -> None:
    rendered = pages(busy_snapshot(16, nics=4, pods=250))
    assert len(rendered["status"].encode()) < MAX_PAGE_BYTES
    assert f"{MAX_ROWS} of 250 pods" in rendered["status"]
    assert 'href="/pods">all 250 pods' in rendered["status"]
    assert rendered["pods"].count('<tr id="pod-') == 250


def test_a_larger_node_adds_no_pod_to_the_first_page() -> None:
    few, many = (len(pages(busy_snapshot(8, pods=n))["status"]) for n in (60, 600))
    assert many - few < 2000


@pytest.mark.parametrize(
    ("ready", "health", "state"),
    [
        (True, Health(), "healthy"),
        (True, Health(state=HealthState.SUSPECT, reason="Odd"), "suspect"),
        (True, Health(reason="DriverStalled", certain=False), "suspect"),
        (True, Health(state=HealthState.FAILED, reason="Xid79"), "failed"),
        (True, Health(state=HealthState.PROBING, reason="Xid79"), "failed"),
        (False, Health(), "failed"),
    ],
)
def test_the_head_has_the_worst_state_of_agent_and_devices(
    ready: bool, health: Health, state: str
) -> None:
    base = eight_cards()
    view = replace(
        base.devices.value, devices=(factory.gpu(0, health=health), *base.devices.value.devices[3:])
    )
    snapshot = replace(base, devices=replace(base.devices, value=view))
    outline = Outline(render_page(StillView(snapshot, ready=ready)))
    (head,) = (one for one in outline.named("header"))
    assert head["class"] == f"head {state}"


def test_a_device_that_is_not_managed_does_not_colour_the_head() -> None:
    card = replace(ruin(factory.gpu(0)).info, managed=False)
    snapshot = eight_cards()
    devices = (replace(factory.gpu(0), info=card),)
    view = replace(snapshot.devices.value, devices=devices, links=())
    page = render_page(StillView(replace(snapshot, devices=replace(snapshot.devices, value=view))))
    assert 'class="head failed"' not in page


def test_a_card_shows_load_heat_power_owner_and_processes() -> None:
    page = render_page(StillView(busy_snapshot(8)))
    card = page[page.index('id="card-0000-11-00.0"') :]
    card = card[: card.index("</li><li class=")]
    for words in (
        "GPU 1",
        "40 %",  # busy
        "41.0 GiB of 79.6 GiB",
        "50 °C",  # of the hottest sensor
        "319 of 700 W",
        "NVLink",
        "team-a/train-1",
        "2 processes",
        "<code>4002</code> · 20.0 GiB · 20 % · team-a/train-1",
    ):
        assert words in card, words
    assert card.count("<svg ") == 4


def test_values_that_are_too_old_are_not_shown_as_present() -> None:
    snapshot = busy_snapshot(4, pods=20)
    vendor = snapshot.vendors[0]
    old = replace(vendor, samples=replace(vendor.samples, taken_s=factory.NOW_S - 1000))
    page = render_page(StillView(replace(snapshot, vendors=(old,))))
    assert "40 %" not in page
    assert "<span>–</span>" in page


def test_pods_show_what_was_granted_injected_enforced_and_verified() -> None:
    page = render_page(StillView(busy_snapshot(8)))
    table = page[page.index('<section id="pods"') :]
    rows = table[: table.index("</section>")].split("<tr ")[1:]
    assert "DeviceTaken" in rows[0] or "DeviceTaken" in rows[1]
    missing = next(row for row in rows if "train-4<" in row)
    for words in (
        "GPU 4; core 100, memory 80.0 GiB",
        "by the runtime (NRI)",
        "6 values",
        "cpu.shares",
        "missing",
    ):
        assert words in missing, words
    wrong = [n for n, row in enumerate(rows) if "DeviceTaken" in row or "missing" in row]
    assert wrong == [0, 1]


def test_a_slow_link_and_the_traffic_are_drawn() -> None:
    page = render_page(StillView(busy_snapshot(8)))
    picture = page[page.index('<section id="topology"') : page.index('<section id="devices"')]
    assert '<tspan class="slow">x4 of x16 </tspan>' in picture
    assert re.search(r"NVLink \d+↑ \d+↓ · PCIe", picture)
    assert "NVSwitch: 8 devices, 18 links, every pair" in picture


def test_the_history_of_a_device_is_with_the_device() -> None:
    page = render_page(StillView(busy_snapshot(8)))
    row = page[page.index('<tr id="device-0000-12-00.0"') :]
    row = row[: row.index("</tr>")]
    assert "3 changes of health since the start, last event Xid79" in row
    assert row.count("GPU has fallen off the bus, time") == 5
    other = page[page.index('<tr id="device-0000-13-00.0"') :]
    assert "changes of health" not in other[: other.index("</tr>")]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("api.token", "abc", HIDDEN),
        ("metrics.basic_auth.password", "abc", HIDDEN),
        ("api.token", '""', '""'),
        ("api.token_file", "/var/run/token", "/var/run/token"),
        ("api.kubeconfig", "https://user:pass@host/", "https://…@host/"),
    ],
)
def test_secrets_of_settings_are_never_shown(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str, shown: str
) -> None:
    rows = [{"key": key, "value": value, "origin": "file x"}]
    monkeypatch.setattr("agent.web.page.agent_section.effective_rows", lambda _: rows)
    loaded = LoadedSettings(decode_settings({}), {key: "file x"})
    assert [row["value"] for row in setting_rows(loaded)] == [shown]


def test_settings_that_are_not_defaults_are_shown_with_their_origin() -> None:
    settings = decode_settings({"collect": {"interval_s": 7}})
    loaded = LoadedSettings(settings, {"collect.interval_s": f"file {HOSTILE}"})
    view = StillView(eight_cards(), settings=loaded)
    page = render_page(view)
    part = page[page.index('<section id="settings"') :]
    part = part[: part.index("</section>")]
    assert "<code>collect.interval_s</code></th><td>7</td><td>file &lt;script&gt;" in part
    assert part.count("<tr>") == 2
    everything = "".join(StatusPage(view).render_settings())
    assert "publish.report_interval_s" in everything


@pytest.mark.parametrize("where", ["pod", "namespace", "model", "message", "process"])
def test_hostile_names_stay_text(where: str) -> None:
    snapshot = busy_snapshot(4, pods=8)
    devices = list(snapshot.devices.value.devices)
    if where == "model":
        devices[0] = replace(devices[0], info=replace(devices[0].info, model=HOSTILE))
    if where == "message":
        devices[0] = ruin(devices[0], HOSTILE)
    view = replace(snapshot.devices.value, devices=tuple(devices))
    pods = snapshot.pods.value
    if where in ("pod", "namespace"):
        field = "name" if where == "pod" else "namespace"
        pods = tuple(replace(pod, **{field: HOSTILE}) for pod in pods)
    if where == "process":
        pods = tuple(
            replace(pod, containers=tuple(replace(one, name=HOSTILE) for one in pod.containers))
            for pod in pods
        )
    changed = replace(
        snapshot,
        devices=replace(snapshot.devices, value=view),
        pods=replace(snapshot.pods, value=pods),
    )
    for document in pages(changed).values():
        assert HOSTILE not in document
        assert "<script>" not in document
        Outline(document)


# ---- colours

TEXT_COLOURS = ("fg", "quiet", "good", "warn", "watch", "bad", "none")
BACKGROUNDS = ("bg", "panel")
AA = 4.5


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes() -> dict[str, dict[str, str]]:
    """Return the colours of the style sheet by palette: the first is light, the second is dark."""
    found = [
        dict(re.findall(r"--(\w+): ?(#[0-9a-f]{6});", block))
        for block in re.findall(r":root ?\{(.*?)\}", stylesheet(), re.DOTALL)
    ]
    light, dark, paper = found
    return {"light": light, "dark": {**light, **dark}, "paper": {**light, **paper}}


@pytest.mark.parametrize("palette", ["light", "dark", "paper"])
@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("colour", TEXT_COLOURS)
def test_text_has_enough_contrast_in_every_palette(
    palette: str, background: str, colour: str
) -> None:
    colours = palettes()[palette]
    assert contrast(colours[colour], colours[background]) >= AA


def svg_palettes() -> dict[str, dict[str, str]]:
    light, _, dark = STYLE.partition("@media (prefers-color-scheme:dark){")
    fills = r"((?:\.\w+,?)+)\{[^}]*?fill:(#[0-9a-f]{3,6})"
    both = []
    for css in (light, dark):
        colours = {}
        for names, colour in re.findall(fills, css):
            full = colour if len(colour) == 7 else "#" + "".join(2 * one for one in colour[1:])
            colours.update(dict.fromkeys(re.findall(r"\.(\w+)", names), full))
        both.append(colours)
    return {"light": both[0], "dark": {**both[0], **both[1]}}


@pytest.mark.parametrize("palette", ["light", "dark"])
def test_text_of_the_picture_has_enough_contrast(palette: str) -> None:
    colours = svg_palettes()[palette]
    pairs = [
        *((name, "panel") for name in ("head", "sub", "bridge")),
        *((name, "card") for name in ("title", "sub", "slow")),
        ("bartext", "bar"),
        *(("sign", state) for state in ("healthy", "suspect", "probing", "failed", "unmanaged")),
    ]
    low = {
        pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2)
        for pair in pairs
        if contrast(colours[pair[0]], colours[pair[1]]) < (3.0 if pair[0] == "sign" else AA)
    }
    assert low == {}
