"""The checks of the sources that `make lint` runs: they refuse what they are there for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / ".ci"


def load(name: str) -> ModuleType:
    """Load a module of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "back",
    [
        "import agent.a\n",
        "from agent.a import A\n",
        "from agent import a\n",
        "from .a import A\n",
        "def call():\n    from agent.a import A\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from agent.a import A\n",
        "MODULE = 'agent.a:A'\n",
        "def call(a: 'agent.a.A'): ...\n",
    ],
)
def test_two_files_that_import_each_other_are_a_circle_however_they_do(
    tmp_path: Path, back: str
) -> None:
    checks = load("check_circles")
    write(tmp_path, {"agent/a.py": "from agent.b import B\n", "agent/b.py": back})
    assert checks.find_circles(checks.import_graph(tmp_path)) == [["agent.a", "agent.b"]]


def test_a_circle_over_a_package_and_a_plug_in_is_found_and_a_chain_is_none(
    tmp_path: Path,
) -> None:
    checks = load("check_circles")
    write(
        tmp_path,
        {
            "agent/a/__init__.py": "from agent.b import B\n",
            "agent/b.py": "from plugins.c import C\n",
            "plugins/c.py": "import agent.a\n",
            "agent/d.py": "from agent.b import B\nimport agent.e\n",
            "agent/e.py": "NAME = 'no module'\n",
        },
    )
    assert checks.find_circles(checks.import_graph(tmp_path)) == [
        ["agent.a", "agent.b", "plugins.c"]
    ]


def test_long_files_full_folders_and_deep_folders_are_refused(tmp_path: Path) -> None:
    checks = load("check_tree")
    write(tmp_path, {"agent/a/b/c/d/deep.py": "", "agent/long.py": "x = 1\n" * 601})
    write(tmp_path, {f"plugins/full/m{number}.py": "" for number in range(21)})
    write(tmp_path, {"agent/a/b/c/fine.py": "x = 1\n" * 600, "tests/a/b/c/d/e/deep.py": ""})
    sources = [path.relative_to(tmp_path) for path in checks.hand_written(tmp_path)]
    offences = checks.find_offences(tmp_path, sources)
    assert [line.partition(":")[0] for line in offences] == [
        "agent/a/b/c/d/",
        "agent/long.py",
        "plugins/full/",
    ]


@pytest.mark.parametrize("name", ["check_tree", "check_circles"])
def test_the_checks_pass_on_the_repository(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    limit = sys.getrecursionlimit()
    try:
        assert load(name).main() == 0, capsys.readouterr().out
    finally:
        sys.setrecursionlimit(limit)


def test_a_document_that_names_a_module_that_is_gone_is_refused(tmp_path: Path) -> None:
    tree = load("check_tree")
    write(
        tmp_path,
        {
            "agent/a.py": "class A: ...\ndef run(): ...\n",
            "docs/good.md": "`agent/a.py`, `agent.a.run`, agent.a.A. xpu-agent.io/model "
            "/run/xpu-agent/lock `plugins/vendors/acme`",
            "docs/bad.md": "`agent/b.py` `agent.a.walk` agent/c.",
        },
    )
    dead = [line.split(" ")[1] for line in tree.find_dead_names(tmp_path)]
    assert dead == ["agent.a.walk", "agent/b.py", "agent/c."]


def test_every_name_in_the_documents_of_this_tree_exists() -> None:
    assert load("check_tree").find_dead_names(FOLDER.parent) == []
