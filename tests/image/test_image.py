"""What is in the images, what their bills of materials say, and that both programs run in them."""

from __future__ import annotations

import ast
import json
import re
import selectors
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft7Validator
from prometheus_client.parser import text_string_to_metric_families
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from agent.version import VERSION
from daemonset.image import bom
from daemonset.image.__main__ import LAYERS, LEFT_OUT
from daemonset.image.distributions import normalize_name
from daemonset.image.interpreter import EXECUTABLE, site_folder
from daemonset.image.tree import sha256, size_bytes, walk
from tests.apiserver import ApiServer
from tests.image.rootfs import ROOT, Image, assembled, executables, needs_mounts
from tests.patience import PATIENCE_S
from tests.process.agent import EIGHT_CARDS, Agent
from tests.process.containers.vendors import play_cards, uuid
from tests.stubs.stub import Stub

LIMIT_BYTES = 120_000_000
COMMANDS = {"agent": "xpu-agent", "scheduler": "xpu-scheduler"}
LOADER = re.compile(r"lib(?:64)?/ld-linux[-.\w]*\.so\.\d+")
OPTIONAL = {"cgroupspy", "kubernetes"}  # extras of the distribution
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error)
"""
LIST_DISTRIBUTIONS = (
    "from importlib.metadata import distributions\n"
    "for one in distributions(): print(one.metadata['Name'], one.version)"
)
Object = dict[str, Any]


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the layers, which all processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "image"
    folder.mkdir(exist_ok=True)
    return assembled(folder)


@pytest.fixture(scope="session", params=sorted(LAYERS))
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def images(layers: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    return {name: Image(layers, name, tmp_path_factory.mktemp(name)) for name in LAYERS}


@pytest.fixture
def image(images: dict[str, Image], target: str) -> Image:
    return images[target]


def bill(image: Image) -> Object:
    document: Object = json.loads((image.root / bom.FILE).read_text())
    return document


def components(image: Image, kind: str = "") -> list[Object]:
    """Return the components whose package URLs are of this kind, and the image's own."""
    document = bill(image)
    every = [document["metadata"]["component"], *document["components"]]
    return [one for one in every if one["purl"].startswith(f"pkg:{kind}")]


def test_an_image_has_one_program_and_no_shell_compiler_or_package_manager(
    image: Image, target: str
) -> None:
    *programs, loader = sorted(executables(image.root), key=lambda path: "/ld-" in path)
    assert programs == [str(EXECUTABLE), f"usr/local/bin/{COMMANDS[target]}"]
    assert LOADER.fullmatch(loader)
    names = {path.name for path in walk(site_folder(image.root))}
    assert names.isdisjoint({"pip", "setuptools", "wheel", "_distutils_hack", "kubernetes"})
    assert not list(site_folder(image.root).glob("*.pth"))
    assert [path for path in walk(image.root) if path.lstat().st_mode & 0o6000] == []


def test_the_layers_of_an_image_stay_small(layers: Path, target: str) -> None:
    sizes = {layer: size_bytes(layers / layer) for layer in LAYERS[target]}
    print(sizes)  # noqa: T201 - figures
    assert sum(sizes.values()) <= LIMIT_BYTES


def test_the_scheduler_has_no_library_for_devices(images: dict[str, Image]) -> None:
    agent, scheduler = (
        {one["purl"].split("@")[0] for one in components(images[target], "pypi")}
        for target in ("agent", "scheduler")
    )
    assert scheduler < agent
    assert agent - scheduler == {f"pkg:pypi/{name}" for name in LEFT_OUT["scheduler"]}


@needs_mounts
def test_the_bill_lists_what_is_installed_with_the_hashes_of_the_lock_file(image: Image) -> None:
    result = image.run(f"/{EXECUTABLE}", "-I", "-c", LIST_DISTRIBUTIONS)
    installed = {tuple(line.split()) for line in result.stdout.splitlines()}
    listed = components(image, "pypi")
    own, *others = listed
    assert (own["purl"], own["version"]) == (f"pkg:pypi/xpu-node-agent@{VERSION}", VERSION)
    assert {(one["purl"].split("/")[1].split("@")[0], one["version"]) for one in listed} == {
        (normalize_name(name), version) for name, version in installed
    }
    lock = (ROOT / "requirements.lock").read_text()
    for one in others:
        assert one["hashes"] == [{"alg": "SHA-256", "content": one["hashes"][0]["content"]}]
        assert f"sha256:{one['hashes'][0]['content']}" in lock


def test_the_bill_names_the_package_of_every_c_library_and_licences_of_everything(
    image: Image,
) -> None:
    files = {
        file["name"]: file["hashes"][0]["content"]
        for one in components(image)
        for file in one.get("components", ())
    }
    site = site_folder(image.root)
    standard_library = site.parent
    libraries = [
        path
        for path in walk(image.root)
        if re.search(r"\.so[.\d]*$", path.name) and standard_library not in path.parents
    ]
    assert {f"/{path.relative_to(image.root)}" for path in libraries} <= files.keys()
    assert f"/{EXECUTABLE}" in files
    for name, digest in files.items():
        assert sha256(image.root / name.lstrip("/")) == digest
    assert [one["name"] for one in components(image) if not one["licenses"]] == []
    for one in components(image, "deb"):
        assert (image.root / "usr/share/doc" / one["name"] / "copyright").is_file()
        status = (image.root / "var/lib/dpkg/status.d" / one["name"]).read_text()
        assert f"Version: {one['version']}\n" in status


def test_the_bill_is_cyclonedx(image: Image) -> None:
    schemas = pytest.importorskip("cyclonedx.schema._res", reason="cyclonedx-python-lib is missing")
    folder = Path(schemas.__path__[0])

    def schema(name: str) -> Object:
        contents: Object = json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text())
        return contents

    others = [schema(name) for name in ("spdx", "jsf-0.82")]
    registry: Any = Registry().with_resources(
        [(one["$id"], Resource.from_contents(one, DRAFT7)) for one in others]
    )
    validator = Draft7Validator(schema(f"bom-{bom.SPECIFICATION}"), registry=registry)
    document = bill(image)
    validator.validate(document)
    refs = [one["bom-ref"] for one in components(image)]
    assert len(refs) == len(set(refs))
    document["components"][0]["type"] = "no kind"
    assert list(validator.iter_errors(document))


def test_no_layer_tells_when_or_where_it_was_assembled(layers: Path) -> None:
    here = (str(ROOT), str(layers), str(layers.parent / "new"))
    for path in (path for layer in layers.iterdir() for path in walk(layer) if path.is_file()):
        if path.suffix in (".pyc", ".py", ".json") or path.name in ("RECORD", "WHEEL"):
            data = path.read_bytes()
            assert not any(name.encode() in data for name in here), path
        if path.suffix == ".pyc":
            flags = int.from_bytes(data[4:8], "little")
            assert flags == 1, path  # by the digest of its source, which is not checked
    times = {path.lstat().st_mtime for layer in layers.iterdir() for path in walk(layer)}
    assert times == {0.0}


@needs_mounts
def test_the_programs_start_isolated_and_read_only(image: Image, target: str) -> None:
    result = image.run(
        COMMANDS[target],
        "version",
        PYTHONSTARTUP="/absent",
        PYTHONPATH="/absent",
        user="65532:65532",
    )
    assert result.returncode == 0, result.stderr
    assert VERSION in result.stdout
    script = (image.root / "usr/local/bin" / COMMANDS[target]).read_text().splitlines()[0]
    assert script == f"#!/{EXECUTABLE} -IB"
    write = "import sys; print(sys.flags.isolated); open('/usr/x', 'w')"
    refused = image.run(f"/{EXECUTABLE}", "-I", "-c", write)
    assert refused.stdout == "1\n"
    assert "Read-only file system" in refused.stderr


def imported_names(*folders: str) -> set[str]:
    """Return the modules of all import statements, late ones included, and the files own names."""
    names = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.add(".".join(parts).removesuffix(".__init__"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    return names - {"agent.__main__"}


@needs_mounts
@pytest.mark.parametrize(
    ("target", "folders", "absent"),
    [("agent", ("agent", "plugins"), OPTIONAL), ("scheduler", ("plugins/scheduler",), set())],
)
def test_everything_that_a_program_imports_is_in_its_image(
    images: dict[str, Image], target: str, folders: tuple[str, ...], absent: set[str]
) -> None:
    names = sorted(imported_names(*folders))
    assert len(names) > 20
    result = images[target].run(f"/{EXECUTABLE}", "-I", "-c", IMPORT_ALL, *names)
    assert result.returncode == 0, result.stderr
    assert {line.split()[0].split(".")[0] for line in result.stdout.splitlines()} == absent


@needs_mounts
def test_the_agent_reads_a_recorded_host_in_the_image(images: dict[str, Image]) -> None:
    arguments = ("run", "--standalone", "--once", "--host", "/host", "--out", "/tmp/out")
    result = images["agent"].run("xpu-agent", *arguments, mounts={EIGHT_CARDS: "/host"})
    assert result.returncode == 0, result.stderr
    rendered = images["agent"].run(
        *("xpu-agent", "devices", "--host", "/host", "-o", "json"), mounts={EIGHT_CARDS: "/host"}
    )
    types = [device["type"] for device in json.loads(rendered.stdout)["devices"]]
    assert types.count("gpu") == 8


@contextmanager
def serving(image: Image, *command: str, **options: Any) -> Iterator[tuple[Any, str]]:
    """Run a server in an image; yield its process and its address."""
    words, environment = image.command(*command, **options)
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = "first"
        while line and "http://" not in line:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(PATIENCE_S), "no address"
            line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def scraped(agent: Agent, name: str) -> list[float]:
    """Return the values of a family at the agent's metrics."""
    families = text_string_to_metric_families(agent.get("metrics")[1])
    return [sample.value for one in families if one.name == name for sample in one.samples]


def driver_uuids(agent: Agent) -> list[str]:
    """Return the UUIDs of NVIDIA's cards, which only their driver knows."""
    devices = json.loads(agent.get("api/v1/devices")[1])["devices"]
    return [device["uuid"] for device in devices if device["vendor"] == "nvidia"]


@needs_mounts
def test_the_agent_serves_metrics_of_this_machine_and_a_drivers_library_of_the_host(
    images: dict[str, Image], tmp_path: Path
) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"  # one of `library_dirs` of the base
    folder.mkdir(parents=True)
    stub = Stub("nvml", folder)
    play_cards(stub, 2)
    stub.installed()
    config = ROOT / "daemonset/base"
    with serving(
        images["agent"],
        *("xpu-agent", "run", "--standalone", "--listen", "127.0.0.1:0", "--out", "/tmp/out"),
        *("--config", "/etc/xpu-agent/config.yaml"),
        mounts={tmp_path: "/host", config: "/etc/xpu-agent"},
        XPU_AGENT_DISCOVERY__VENDORS__NVIDIA="on",
        XPU_AGENT_NODE__STATE_DIR="/tmp/state",
        XPU_AGENT_NODE__RUN_DIR="/tmp/run",
        XPU_AGENT_ADMIN__SOCKET="off",
    ) as (process, address):
        agent = Agent(process, tmp_path, url=address)
        agent.wait_until(lambda: scraped(agent, "xpu_agent_uevents_heard") == [1.0], "uevents")
        agent.wait_until(lambda: driver_uuids(agent) == [uuid(0), uuid(1)], "the driver's cards")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@needs_mounts
def test_the_scheduler_places_a_pod_in_the_image_without_being_root(
    images: dict[str, Image],
) -> None:
    result = images["scheduler"].run(
        *("xpu-scheduler", "simulate", "--cluster", "/host/cluster"),
        *("--pod", "/host/cluster-pods/03-two-cards-near.yaml", "-o", "json"),
        mounts={ROOT / "fixtures": "/host"},
        user="65532:65532",
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["chosen"]


@needs_mounts
def test_the_scheduler_serves_with_its_account_in_the_image(
    images: dict[str, Image], tmp_path: Path
) -> None:
    settings = "listen: 127.0.0.1:0\nservice: ''\nleader_election: {namespace: default}\n"
    (tmp_path / "config.yaml").write_text(settings)
    with ApiServer() as api:
        where, account = urlsplit(api.url), api.serviceaccount_dir
        for path in (tmp_path, account):
            path.chmod(0o755)
        with serving(
            images["scheduler"],
            *("xpu-scheduler", "run", "--config", "/etc/xpu-scheduler/config.yaml"),
            mounts={tmp_path: "/etc/xpu-scheduler", account: "/host"},
            user="65532:65532",
            KUBERNETES_SERVICE_HOST=str(where.hostname),
            KUBERNETES_SERVICE_PORT=str(where.port),
            XPU_AGENT_SERVICE_ACCOUNT="/host",
            POD_IP="192.0.2.7",
        ) as (process, address):
            scheduler = Agent(process, tmp_path, url=f"{address.rstrip('/')}/")
            scheduler.wait_until(lambda: scheduler.get("readyz")[0] == 200, "the first leader")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
