from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from agent.errors import HostFileError, ParseError
from agent.snapshot.inventory import Inventory
from agent.snapshot.vendor import SessionContext
from agent.workers.load import ENTRY_POINT_GROUP
from agent.workers.protocol import AgentMessage, MethodRequest, StartMessage, encode_message
from agent.workers.tape import TapeSession, TapeWriter
from agent.workers.worker import WorkerArguments, open_vendor_session, read_requests
from plugins.vendors.template.session import TemplateSession

RECORDED = Path(__file__).parents[3] / "fixtures/hosts/vm-no-devices"
TEMPLATE = EntryPoint(
    "template", "plugins.vendors.template.vendor:TemplateVendor", ENTRY_POINT_GROUP
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.workers.load._has_entry_points", lambda: True)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [TEMPLATE])


def _arguments(host: Path | None = None, tape: Path | None = None) -> WorkerArguments:
    return WorkerArguments(
        vendor="template", host=str(host) if host else None, tape=str(tape) if tape else None
    )


@pytest.mark.parametrize(("recorded", "reason"), [(True, "NotRecorded"), (False, "LibraryMissing")])
def test_only_a_recorded_host_has_the_library_left_alone(
    tmp_path: Path, recorded: bool, reason: str
) -> None:
    (tmp_path / "sys").mkdir()
    session = open_vendor_session(_arguments(tmp_path if recorded else None), StartMessage())
    assert isinstance(session, TemplateSession)
    assert [problem.reason for problem in session.discover().problems] == [reason]


def test_a_recorded_hosts_tape_stands_for_the_vendor(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "tapes").mkdir()
    with (tmp_path / "tapes/template.jsonl").open("wb") as file:
        TapeWriter("template", file.write).write_inventory(Inventory(vendor="template"), 0.1)
    assert isinstance(open_vendor_session(_arguments(tmp_path), StartMessage()), TapeSession)


def test_a_tape_that_is_given_must_be_there_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match="ENOENT"):
        open_vendor_session(_arguments(tape=tmp_path / "absent"), StartMessage())
    (tmp_path / "empty").touch()
    with pytest.raises(ParseError, match="tape"):
        open_vendor_session(_arguments(tape=tmp_path / "empty"), StartMessage())


def test_requests_are_read_until_the_agent_is_gone() -> None:
    reading, writing = os.pipe()
    sent: list[AgentMessage] = [
        StartMessage(events=False),
        MethodRequest(1, "discover"),
        MethodRequest(2, "close"),
    ]
    os.write(writing, b"".join(encode_message(request) for request in sent) + b'{"type":')
    os.close(writing)
    assert list(read_requests("x", reading)) == sent
    os.close(reading)


@pytest.mark.parametrize("vendor", ["ascend", "cambricon", "nvidia", "rdma"])
def test_a_recording_is_never_judged_by_the_state_of_this_machine(
    vendor: str, tmp_path: Path
) -> None:
    names = ("ascend-faults", "ascend-vnpus", "ascend-devices", "nvidia-causes", "nvidia-devices")
    records = {f"{name}.json": "not for you" for name in (*names, "rdma")}
    for name, content in records.items():
        (tmp_path / name).write_text(content)
    arguments = WorkerArguments(vendor=vendor, host=str(RECORDED))
    session = open_vendor_session(
        arguments, StartMessage(context=SessionContext(state_dir=str(tmp_path)))
    )
    session.discover()
    session.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == records
