"""Settings: sources, their order, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.config.reference import effective_rows, reference_rows, setting_entries, setting_value
from agent.config.settings import Settings, settings_type
from agent.config.sources import DEFAULT_FILE, choose_file, load_settings, read_settings_file
from agent.errors import BadConfig
from tests.vendors import DESCRIPTIONS, decode


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_environment_wins_over_file_and_flag_over_both(tmp_path: Path) -> None:
    file = written(tmp_path, "publish: {pcie_scope: switch, interval_s: 5}\nlog: {level: debug}\n")
    environment = {"XPU_AGENT_PUBLISH__INTERVAL_S": "7", "XPU_AGENT_LOG__LEVEL": "error"}
    loaded = load_settings(
        file, environment, {"log.level": ("--log-level", "warning")}, DESCRIPTIONS
    )
    settings = loaded.settings
    assert (settings.publish.pcie_scope, settings.publish.interval_s) == ("switch", 7.0)
    assert settings.log.level == "warning"
    origins = {row["key"]: row["origin"] for row in effective_rows(loaded)}
    assert origins["publish.pcie_scope"] == f"file {file}"
    assert origins["publish.interval_s"] == "environment XPU_AGENT_PUBLISH__INTERVAL_S"
    assert origins["log.level"] == "flag --log-level"
    assert origins["collect.interval_s"] == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("publsh: {}", "publsh: unknown key (did you mean 'publish'?)"),
        ("publish: {pcie_scop: root}", "publish.pcie_scop: unknown key (did you mean 'pcie_scope'"),
        ("publish: {pcie_scope: rot}", "'rot' is not one of root, switch (did you mean 'root'?)"),
        ("collect: {interval_s: 0}", "collect.interval_s: 0 is not in 0.1 to 60 s"),
        ("collect: {interval_s: 61}", "collect.interval_s: 61 is not in 0.1 to 60 s"),
        ("collect: {interval_s: .nan}", "collect.interval_s: must be a number"),
        ("collect: {interval_s: yes}", "collect.interval_s: must be a number"),
        ("collect: {pods: 3}", "collect.pods: must be true or false"),
        ("collect: 5", "collect: must be a mapping"),
        ("discovery: {numa_overrides: {a: 1}}", "numa_overrides: must be a list of mappings"),
        pytest.param(
            f"collect: {{interval_s: {'9' * 400}}}",
            "collect.interval_s: must be a number",
            id="a number beyond every float",
        ),
        ("node:\n  state_dir: |\n    /a\n", r"node.state_dir: '/a\n' has a character that cannot"),
        (
            "metrics: {client: 1}\nmetrics: {pods: false}",
            "config.yaml:2: not YAML: 'metrics' is th",
        ),
        ("metrics:\n  pods: true\n  pods: false", "config.yaml:3: not YAML: 'pods' is there twice"),
        ("- a", "must be a mapping of sections"),
        ("a: [", "config.yaml:1: not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadConfig) as refused:
        load_settings(written(tmp_path, text), {}, {}, DESCRIPTIONS)
    assert message in str(refused.value)


def test_a_key_beside_a_merged_mapping_with_the_same_key_is_no_repetition(tmp_path: Path) -> None:
    text = """
metrics: &on {pods: true}
publish: {device: true}
collect: &off
  <<: *on
  pods: false
page: {<<: *off}
"""
    read = read_settings_file(written(tmp_path, text))
    assert (read["collect"], read["page"]) == ({"pods": False}, {"pods": False})


def test_a_variable_that_is_no_text_is_refused() -> None:
    variables = {"XPU_AGENT_NODE__NAME": "a\udcff"}
    with pytest.raises(BadConfig, match=r"node\.name: .* has a character that cannot be printed"):
        load_settings(None, variables, {}, DESCRIPTIONS)


def test_a_wrong_variable_is_refused_with_its_name() -> None:
    with pytest.raises(
        BadConfig, match=r"environment XPU_AGENT_COLLECT__INTERVAL: collect\.interval"
    ):
        load_settings(None, {"XPU_AGENT_COLLECT__INTERVAL": "1"}, {}, DESCRIPTIONS)


@pytest.mark.parametrize(
    ("text", "aliases"),
    [
        ("dcgm,hami", ("dcgm", "hami")),
        (" dcgm , hami\n", ("dcgm", "hami")),
        ("dcgm", ("dcgm",)),
        ("dcgm,", ("dcgm",)),
        ("", ()),
        (" ", ()),
    ],
)
def test_a_list_of_a_variable_may_have_blanks_around_its_items(
    tmp_path: Path, text: str, aliases: tuple[str, ...]
) -> None:
    name = "XPU_AGENT_METRICS__ALIASES"
    assert load_settings(None, {name: text}, {}, DESCRIPTIONS).settings.metrics.aliases == aliases
    file = written(tmp_path, yaml.safe_dump({"metrics": {"aliases": text}}))
    assert load_settings(file, {}, {}, DESCRIPTIONS).settings.metrics.aliases == aliases


def test_blanks_around_the_items_of_a_list_in_a_file_are_dropped(tmp_path: Path) -> None:
    file = written(tmp_path, 'metrics: {aliases: [" dcgm", "hami "]}')
    aliases = load_settings(file, {}, {}, DESCRIPTIONS).settings.metrics.aliases
    assert aliases == ("dcgm", "hami")


@pytest.mark.parametrize(
    ("text", "number"), [("dcgm,,hami", 2), (",dcgm", 1), ("dcgm,", 2), ("dcgm, ,hami", 2)]
)
def test_an_empty_item_of_a_list_in_a_file_is_refused_with_its_number(
    tmp_path: Path, text: str, number: int
) -> None:
    file = written(tmp_path, yaml.safe_dump({"metrics": {"aliases": text.split(",")}}))
    with pytest.raises(BadConfig, match=f"metrics.aliases: item {number} is empty"):
        load_settings(file, {}, {}, DESCRIPTIONS)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        load_settings(tmp_path / "none.yaml", {}, {}, DESCRIPTIONS)


def test_yaml_switch_words_name_a_choice(tmp_path: Path) -> None:
    file = written(tmp_path, "discovery: {vendors: {nvidia: off, rdma: on}}")
    discovery = load_settings(file, {}, {}, DESCRIPTIONS).settings.discovery
    switches = {one.name: discovery.switch(one) for one in DESCRIPTIONS}
    assert [switches[name] for name in ("nvidia", "rdma", "fake")] == ["off", "on", "auto"]


def test_every_setting_is_documented_and_its_default_is_allowed() -> None:
    for entry in setting_entries(settings_type(DESCRIPTIONS)):
        assert entry.rule.doc
        assert not entry.rule.doc.endswith(".")
        assert setting_value(decode({}), entry.key) == entry.default
    assert len(reference_rows(DESCRIPTIONS)) == len(
        list(setting_entries(settings_type(DESCRIPTIONS)))
    )
    for row in effective_rows(load_settings(None, {}, {}, DESCRIPTIONS)):
        section, _, name = row["key"].rpartition(".")
        data: object = {name: yaml.safe_load(row["value"])}
        for part in reversed(section.split(".")):
            data = {part: data}
        decode(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["publish", "collect", "interval_s", "rdma", "vf_pools", "x"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_any_data_gives_settings_or_a_clear_refusal(data: object) -> None:
    with contextlib.suppress(BadConfig):
        assert isinstance(decode(data), Settings)


def test_the_file_of_the_flag_is_read_else_the_node_s_own_if_it_is_there(tmp_path: Path) -> None:
    default = tmp_path / "config.yaml"
    assert choose_file(None, default) is None
    default.touch()
    assert choose_file(None, default) == default
    assert choose_file("other.yaml", default) == Path("other.yaml")
    assert str(DEFAULT_FILE) == "/etc/xpu-agent/config.yaml"
