"""The template under another name: it is found, and keeps every promise unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from plugins import new
from plugins.new import CannotMake, main, make_vendor, renamed

ROOT = Path(__file__).parents[2]


def install(folder: Path) -> None:
    """Put the package's metadata beside it, as an installer does."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"{name} = {reference}" for name, reference in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def test_a_copy_passes_the_contract_unchanged(tmp_path: Path) -> None:
    make_vendor("acme", tmp_path)
    install(tmp_path)
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    asked = ["-q", "-p", "no:cacheprovider", "-k", "acme", "tests/contract"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, "--ignore", "tests/contract/test_new_vendor.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_a_shipped_copy_stands_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "vendors/template"
    template.mkdir(parents=True)
    for source in new.TEMPLATE.glob("*.py"):
        (template / source.name).write_text(source.read_text())
    monkeypatch.setattr(new, "TEMPLATE", template)
    folder = make_vendor("acme")
    assert folder == tmp_path / "vendors/acme"
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "emplate" not in text
    assert "plugins.vendors.acme.session import AcmeSession" in text
    assert 'name = "acme"' in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Acme", "lower-case"),
        ("a-b", "lower-case"),
        ("../x", "lower-case"),
        ("lambda", "lower-case"),
        ("nvidia", "there is a vendor"),
        ("template", "there is a vendor"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(CannotMake, match=words):
        make_vendor(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acme", str(tmp_path)]) == 0
    assert "pip install -e" in capsys.readouterr().out
    assert main(["acme", str(tmp_path)]) == 1
    assert "File exists" in capsys.readouterr().err


def test_a_folder_that_holds_another_project_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("mine")
    with pytest.raises(CannotMake, match="there is a project already"):
        make_vendor("acme", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    assert (tmp_path / "pyproject.toml").read_text() == "mine"


def test_every_spelling_of_the_name_is_replaced() -> None:
    text = 'from plugins.vendors.template.session import TemplateSession  # "template"'
    found = renamed(text, "acme", "xpu_agent_acme")
    assert found == 'from xpu_agent_acme.session import AcmeSession  # "acme"'
