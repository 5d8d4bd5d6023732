"""The dashboards are what Grafana 10 takes, on any installation of it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import pytest

from tests.prometheus.observed import OBSERVE, Json, dashboards, panels

needs_sdk = pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None,
    reason="no grafana-foundation-sdk: requirements-dev.lock has it",
)
NAMES = ("agent", "colocation", "devices", "node", "scheduler")
SCHEMA_OF_GRAFANA_10 = range(37, 42)
COLUMNS = 24
UNITS = {  # as Grafana names them
    *("none", "short", "percentunit", "cores", "bytes", "Bps", "s", "watt", "celsius", "hertz"),
    *("cps", "reqps", "dateTimeFromNow"),
}
MAX_BYTES = 200_000  # a ConfigMap has a mebibyte; `kubectl apply` notes 262,144 bytes beside it


def test_there_is_a_dashboard_for_each_part() -> None:
    assert tuple(sorted(dashboards())) == NAMES


def test_dashboards_have_names_of_their_own() -> None:
    uids = [dashboard["uid"] for dashboard in dashboards().values()]
    titles = [dashboard["title"] for dashboard in dashboards().values()]
    assert len(set(uids)) == len(set(titles)) == len(uids)
    assert all(re.fullmatch(r"[a-z-]{1,40}", uid) for uid in uids)
    assert all("id" not in dashboard for dashboard in dashboards().values())  # of one installation


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_works_with_any_data_source(name: str) -> None:
    dashboard = dashboards()[name]
    variables = dashboard["templating"]["list"]
    assert variables[0]["type"] == "datasource"
    assert variables[0]["query"] == "prometheus"
    sources = [
        *(panel["datasource"] for panel in panels(dashboard)),
        *(target["datasource"] for panel in panels(dashboard) for target in panel["targets"]),
        *(variable["datasource"] for variable in variables[1:]),
    ]
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
    assert dashboard["schemaVersion"] in SCHEMA_OF_GRAFANA_10
    assert "__inputs" not in dashboard


@pytest.mark.parametrize("name", NAMES)
def test_variables_select_everything_at_first_and_each_is_used(name: str) -> None:
    dashboard = dashboards()[name]
    queried = [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert all(one["allValue"] == ".*" and one["includeAll"] for one in queried)
    names = {one["name"] for one in queried}
    text = " ".join(target["expr"] for panel in panels(dashboard) for target in panel["targets"])
    used = set(re.findall(r"\$([a-z]+)", text))
    assert used == names
    definitions = " ".join(one["definition"] for one in queried)
    assert set(re.findall(r"\$([a-z]+)", definitions)) <= names
    if name != "scheduler":
        assert {"cluster", "node"} <= names


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_numbers_and_places_of_their_own(name: str) -> None:
    dashboard = dashboards()[name]
    counts = Counter(panel["id"] for panel in dashboard["panels"])
    assert set(counts.values()) == {1}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    assert not [pair for pair in combinations(places, 2) if overlap(*pair)]


def overlap(one: Json, other: Json) -> bool:
    """Return whether two panels lie on each other."""
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_a_title_a_unit_and_queries(name: str) -> None:
    titles = Counter(panel["title"] for panel in panels(dashboards()[name]))
    # a number and the table of the same things may have one title
    assert max(titles.values()) <= 2
    for panel in panels(dashboards()[name]):
        assert panel["title"], panel
        letters = [target["refId"] for target in panel["targets"]]
        assert letters, panel["title"]
        assert len(set(letters)) == len(letters), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            units = [one["value"] for one in override["properties"] if one["id"] == "unit"]
            assert set(units) <= UNITS, panel["title"]
        for target in panel["targets"]:
            # a rate over a fixed time is empty where the scrape interval is longer
            assert not re.search(r"rate\([^$]*\[\d", target["expr"]), target["expr"]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_fits_into_a_configmap(name: str) -> None:
    assert (OBSERVE / "dashboards" / f"{name}.json").stat().st_size < MAX_BYTES


def differences(own: object, other: object, place: str = "") -> Iterator[str]:
    """Yield what another value lacks, or has otherwise; a value that says nothing may be left."""
    if isinstance(own, dict) and isinstance(other, dict):
        for key, value in own.items():
            if key in other:
                yield from differences(value, other[key], f"{place}.{key}")
            elif value not in (None, "", [], {}, False):
                yield f"{place}.{key}"
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for number, pair in enumerate(zip(own, other, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif own != other:
        yield f"{place}: {own!r}, {other!r}"


@needs_sdk
@pytest.mark.parametrize("name", NAMES)
def test_grafanas_own_types_have_every_field(name: str) -> None:
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    read = Dashboard.from_json(dashboards()[name])
    written = json.loads(encoder.JSONEncoder(sort_keys=True).encode(read))
    lost = [re.sub(r"\[\d+\]", "", one) for one in differences(dashboards()[name], written)]
    # Grafana writes it beside `query`; its types do not have it
    assert set(lost) == {".templating.list.definition"}


@pytest.mark.parametrize("name", NAMES)
def test_a_line_of_panels_leaves_no_gap(name: str) -> None:
    widths = Counter[int]()
    for panel in dashboards()[name]["panels"]:
        widths[panel["gridPos"]["y"]] += panel["gridPos"]["w"]
    assert set(widths.values()) == {COLUMNS}
