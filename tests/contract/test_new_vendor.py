"""The template under another name: it is found, and keeps every promise unchanged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from agent.recording.host_source import open_host
from agent.snapshot.settings import VendorSettings
from plugins import new
from plugins.new import CannotMake, main, make_vendor, renamed
from plugins.vendors.template.vendor import TemplateVendor

ROOT = Path(__file__).parents[2]
THIS = "tests/contract/test_new_vendor.py"
PROMISES = "tests/contract/test_sources.py::test_an_inventory_keeps_every_promise"


class Lie(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy of the template says in place of the truth, and the test that must fail."""

    text: str
    put: str
    caught_by: str = "test_sources.py::test_an_inventory_keeps_every_promise[{name}-example]"


SAYS = "bus_id=bus_id, health=UNANSWERED"
GRANTS = 'minor=int(bus_id[6]), uuid=bus_id, memory_bytes=1 << 36, resources=(("koordinator.sh/'
RATIO = '("koordinator.sh/gpu-memory-ratio", "100")'
LIES = {
    "sameminor": Lie(text=SAYS, put=f"{SAYS}, uuid=bus_id, minor=0"),
    "sameuuid": Lie(text=SAYS, put=f'{SAYS}, uuid="ACME"'),
    "unknownunit": Lie(text=SAYS, put=f'{SAYS}, {GRANTS}gpu-memory", "64GB"), {RATIO})'),
    "wrongamount": Lie(text=SAYS, put=f'{SAYS}, {GRANTS}gpu-memory", "80Gi"), {RATIO})'),
    "negative": Lie(text=SAYS, put=f"{SAYS}, memory_bytes=-1"),
    "zeromemory": Lie(text=SAYS, put=f"{SAYS}, memory_bytes=0"),
    "noidentity": Lie(text=SAYS, put="bus_id=None, health=UNANSWERED"),
    "nodevice": Lie(
        text="for function in find_functions(", put="for function in () and find_functions("
    ),
    "scaledunit": Lie(
        text="_temperature_celsius",
        put="_memory_used_mib",
        caught_by="test_vendors.py::test_families_keep_every_promise[{name}]",
    ),
}


def install(folder: Path) -> None:
    """Put the package's metadata beside it, as an installer does."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"{name} = {reference}" for name, reference in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def run_contract(folders: Sequence[Path], *names: str) -> tuple[int, str]:
    """Run the contract for vendors that are installed in these folders; status and output."""
    paths = os.pathsep.join(map(str, (*folders, ROOT)))
    options = ["-v", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", " or ".join(names)]
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/contract", "--ignore", THIS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return outcome.returncode, outcome.stdout + outcome.stderr


def test_a_copy_passes_the_contract_unchanged_on_its_example_host(tmp_path: Path) -> None:
    make_vendor("acme", tmp_path)
    install(tmp_path)
    status, output = run_contract([tmp_path], "acme")
    assert status == 0, output[-4000:]
    assert f"{PROMISES}[acme-example] PASSED" in output


@pytest.fixture(scope="module")
def contract_of_liars(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the contract says of vendors that lie, each in one way: it runs once for all."""
    folders = []
    for name, lie in LIES.items():
        folder = tmp_path_factory.mktemp(name)
        source = make_vendor(name, folder) / "vendor.py"
        honest = source.read_text()
        assert honest.count(lie.text) == 1
        source.write_text(honest.replace(lie.text, lie.put))
        install(folder)
        folders.append(folder)
    status, output = run_contract(folders, *LIES)
    assert status == 1, output[-4000:]
    return output


@pytest.mark.parametrize("name", LIES)
def test_a_vendor_that_lies_fails_the_contract(name: str, contract_of_liars: str) -> None:
    failed = re.findall(r"^FAILED tests/contract/(\S+)", contract_of_liars, re.MULTILINE)
    assert LIES[name].caught_by.format(name=name) in failed


def test_a_vendor_with_an_empty_example_host_fails_the_contract(tmp_path: Path) -> None:
    make_vendor("acme", tmp_path)
    install(tmp_path)
    host = tmp_path / new.example_of("acme") / "host.txt"
    host.write_text("xpu-agent host recording 1\n\n[/proc]\n")
    status, output = run_contract([tmp_path], "acme")
    assert status == 1
    assert f"FAILED {PROMISES}[acme-example]" in output
    assert "no device is listed" in output
    shutil.rmtree(host.parent)
    status, output = run_contract([tmp_path], "acme")
    assert status == 1
    assert "no source of acme" in output


def test_a_shipped_copy_stands_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "plugins/vendors/template"
    template.mkdir(parents=True)
    for source in new.TEMPLATE.glob("*.py"):
        (template / source.name).write_text(source.read_text())
    monkeypatch.setattr(new, "TEMPLATE", template)
    folder = make_vendor("acme")
    assert folder == tmp_path / "plugins/vendors/acme"
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "emplate" not in text
    assert "plugins.vendors.acme.session import AcmeSession" in text
    assert 'NAME = "acme"' in text
    example = tmp_path / "fixtures/hosts/example-acme"
    assert sorted(path.name for path in example.iterdir()) == ["README.md", "host.txt"]
    files = open_host(str(example)).files
    assert len(TemplateVendor().detect(files, VendorSettings())) == 2


def test_an_example_host_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    example = tmp_path / "fixtures/hosts/example-acme"
    example.mkdir(parents=True)
    (example / "host.txt").write_text("mine")
    with pytest.raises(CannotMake, match=r"example-acme: File exists"):
        make_vendor("acme", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fixtures"]
    assert (example / "host.txt").read_text() == "mine"


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
    result = renamed(text, "acme", "xpu_agent_acme")
    assert result == 'from xpu_agent_acme.session import AcmeSession  # "acme"'
