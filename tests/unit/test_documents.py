"""What the documents name exists: pages, commands, targets, settings, metrics, reasons, paths."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
import yaml

from agent.cli import parser as agent_parser
from agent.cli.reference import exported_alias_tables, exported_families
from agent.config.reference import reference_rows
from agent.config.sources import ENVIRONMENT_PREFIX
from agent.workers.load import vendor_descriptions
from plugins.scheduler import cli as scheduler_cli
from tests.unit.test_source_checks import load

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(path for path in (ROOT / "SECURITY.md", ROOT / "CHANGELOG.md") if path.exists()),
]
GENERATED = {"metrics.md", "configuration.md"}  # tables of names that their generators know
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
PROMPT = re.compile(r"(?:^|-- |\$\(|bin/)(xpu-agent|xpu-scheduler|make|python -m)(?=\s|$)")
PATHS = re.compile(r"^(?:tests|daemonset|fixtures|bench|docs|proto|\.ci)/[\w./-]+$")
METRIC = re.compile(r"^(xpu_[a-z0-9_]+)(?:\{.*\})?$")
REASON = re.compile(r"^[A-Z][a-z]+(?:[A-Z][A-Za-z]*)+$")
SHELL_END = {"|", ">", ">>", "<", "&&", "||", ";", "&", "2>&1"}
# suffixes of histograms, and families of the scheduler, which has its own registry
SUFFIXES = ("_bucket", "_sum", "_count")


class Line(msgspec.Struct, frozen=True):
    """One line of code of a document."""

    document: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


@cache
def anchors(document: Path) -> frozenset[str]:
    """Return the anchors of a page as GitHub makes them."""
    text = FENCE.sub("", text_of(document))
    names: set[str] = set(ANCHOR.findall(text))
    for heading in HEADING.findall(text):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while f"{slug}-{number}" in names or (number == 0 and slug in names):
            number += 1
        names.add(f"{slug}-{number}" if number else slug)
    return frozenset(names)


def block_lines(document: Path) -> Iterator[Line]:
    """Yield the lines of code blocks, fenced or indented, with continuations joined."""
    fenced = False
    joined = ""
    after_blank = True
    for line in text_of(document).splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        is_indented = line.startswith("    ") and (after_blank or fenced)
        after_blank = not line.strip() or is_indented
        if not (fenced or is_indented):
            continue
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        yield Line(document.name, joined)
        joined = ""


def inline_codes(document: Path) -> Iterator[Line]:
    text = FENCE.sub("", text_of(document))
    for code in CODE.findall(text):
        yield Line(document.name, code)


def commands(lines: Iterable[Line]) -> Iterator[tuple[Line, str, list[str]]]:
    """Yield the commands of ours in lines: the line, the program, its words."""
    for line in lines:
        match = PROMPT.search(line.text)
        if match is None or "…" in line.text:
            continue
        text = line.text[match.start(1) :]
        if match[0].startswith("$("):
            text = text.partition(")")[0]
        lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = []
        for word in lexer:
            if word in SHELL_END:
                break
            words.append(word)
        program = match[1]
        yield line, program, words[len(program.split()) :]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_pages_and_sections_that_exist(document: Path) -> None:
    dead = []
    for target in LINK.findall(FENCE.sub("", text_of(document))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


def test_commands_in_code_blocks_are_accepted_by_their_parsers() -> None:
    parsers = {
        "xpu-agent": agent_parser.build_parser(),
        "xpu-scheduler": scheduler_cli.build_parser(),
    }
    checked, refused = 0, []
    for line, program, words in commands(
        line for document in DOCUMENTS for line in block_lines(document)
    ):
        if program not in parsers or not words:
            continue
        checked += 1
        try:
            parsers[program].parse_args(words)
        except SystemExit as end:
            if end.code:
                refused.append(str(line))
    assert refused == []
    assert checked > 20


def test_commands_in_sentences_exist_with_their_flags() -> None:
    parsers = {
        "xpu-agent": subcommands(agent_parser.build_parser()),
        "xpu-scheduler": subcommands(scheduler_cli.build_parser()),
    }
    checked, unknown = 0, []
    for line, program, words in commands(
        line for document in DOCUMENTS for line in inline_codes(document)
    ):
        if program not in parsers or not words or not re.fullmatch(r"[a-z-]+", words[0]):
            continue
        checked += 1
        command = parsers[program].get(words[0])
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        if command is None or any(flag not in command.format_help() for flag in flags):
            unknown.append(str(line))
    assert unknown == []
    assert checked > 20


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(
        dict(action.choices)
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )


def test_targets_of_make_and_modules_of_python_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = (
        line
        for document in DOCUMENTS
        for of in (block_lines, inline_codes)
        for line in of(document)
    )
    unknown = []
    for line, program, words in commands(lines):
        if program == "make" and line.text.lstrip().startswith("make"):
            names = [word for word in words if "=" not in word and not word.startswith(("-", "."))]
            names = [name for name in names if re.fullmatch(r"[\w-]+", name)]
            unknown += [f"{line}: {name}" for name in names if name not in targets]
        if program == "python -m" and words:
            folder = ROOT / words[0].replace(".", "/")
            ours = words[0].partition(".")[0] in ("agent", "plugins", "tests", "bench", "fixtures")
            if ours and not (folder.is_dir() or folder.with_suffix(".py").is_file()):
                unknown.append(str(line))
    assert unknown == []


def test_settings_in_sentences_exist() -> None:
    keys = {row["key"] for row in reference_rows(vendor_descriptions())}
    prefixes = {key[:end] for key in keys for end in (at.start() for at in re.finditer(r"\.", key))}
    sections = {key.partition(".")[0] for key in keys}
    checked, unknown = 0, []
    for document in DOCUMENTS:
        for line in inline_codes(document):
            name = re.split(r"[:=\s]", line.text)[0]
            if name.startswith(ENVIRONMENT_PREFIX):
                name = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            if not re.fullmatch(r"[a-z_]+(?:\.[a-z0-9_]+)+", name):
                continue
            if name.partition(".")[0] not in sections or is_another_name(name):
                continue
            checked += 1
            if name not in keys | prefixes:
                unknown.append(str(line))
    assert unknown == []
    assert checked > 80


def is_another_name(name: str) -> bool:
    """Return whether a dotted name that begins as a section is a file, or a bench."""
    is_bench = (ROOT / "bench" / f"{name.replace('.', '/')}.py").exists()
    return is_bench or name.endswith((".yaml", ".json", ".md", ".log", ".sock", ".kubernetes.io"))


def test_the_pod_of_the_migration_from_hami_gets_its_share_of_a_labelled_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_of(ROOT / "docs" / "migration-hami.md")
    (block,) = re.findall(r"^    metadata:\n(?:    .*\n)+", text, re.MULTILINE)
    body: Any = yaml.safe_load(textwrap.dedent(block))
    body["metadata"]["name"] = "half"
    pod = tmp_path / "pod.yaml"
    pod.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **body}))
    cluster = tmp_path / "cluster"
    shutil.copytree(ROOT / "fixtures" / "cluster", cluster)
    arguments = ["simulate", "--cluster", str(cluster), "--pod", str(pod), "-o", "json"]
    assert scheduler_cli.main(arguments) == 1  # no node has the label
    capsys.readouterr()
    nodes = list(yaml.safe_load_all((cluster / "nodes.yaml").read_text()))
    for node in nodes:
        if node["metadata"]["name"] == "h100-0":
            (label,) = re.findall(r"kubectl label node NODE (\S+)=(\S+)", text)
            node["metadata"]["labels"] |= dict([label])
    (cluster / "nodes.yaml").write_text(yaml.safe_dump_all(nodes))
    assert scheduler_cli.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == "h100-0"


def test_every_setting_is_one_row_with_a_cell_for_each_column() -> None:
    rows = reference_rows(vendor_descriptions())
    lines = load("write_configuration_reference").section_tables(rows).splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("| `")]
    assert {len(of_row) for of_row in cells} == {6}
    assert [of_row[0].strip(" `") for of_row in cells] == [row["key"] for row in rows]


def test_metrics_in_sentences_are_exported() -> None:
    families = {family.name for family in exported_families()}
    families |= {alias.name for table in exported_alias_tables() for alias in table.metrics}
    scheduler = "\n".join(path.read_text() for path in (ROOT / "plugins/scheduler").rglob("*.py"))
    checked, unknown = 0, []
    for document in DOCUMENTS:
        for line in inline_codes(document) if document.name not in GENERATED else ():
            match = METRIC.match(line.text)
            if match is None or match[1].endswith("_"):
                continue
            checked += 1
            name = match[1]
            base = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), name)
            quoted = name.removesuffix("_total")
            if not {name, base} & families and quoted not in scheduler:
                unknown.append(str(line))
    assert unknown == []
    assert checked > 40


# names that our sources do not have: of Koordinator, and one that the code puts together
NAMES_OF_OTHERS = """
AdminLoglevel BatchResource BlkIOReconcile CgroupReconcile CoreSched GroupIdentity
LoadAwareSchedulingArgs RdtResctrl SystemConfig
"""


def test_reasons_in_sentences_are_in_the_sources() -> None:
    words: set[str] = set(NAMES_OF_OTHERS.split())
    for folder in ("agent", "plugins", "daemonset", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json", ".toml") and path != Path(__file__):
                words.update(re.findall(r"[A-Z][A-Za-z0-9]+", path.read_text(encoding="utf-8")))
    checked, unknown = 0, []
    for document in DOCUMENTS:
        for line in inline_codes(document) if document.name not in GENERATED else ():
            if REASON.match(line.text):
                checked += 1
                if line.text not in words:
                    unknown.append(str(line))
    assert unknown == []
    assert checked > 100


def test_paths_of_the_repository_in_sentences_exist() -> None:
    unknown = [
        str(line)
        for document in DOCUMENTS
        for line in inline_codes(document)
        if PATHS.match(line.text)
        and "acme" not in line.text  # the new vendor of examples
        and not (ROOT / line.text).exists()
    ]
    assert unknown == []
