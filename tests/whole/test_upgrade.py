"""The agent reads every file that another version left on the node, and writes the same format.

What this version writes of the same content is byte for byte what the earlier one wrote: so the
earlier one reads it after a downgrade.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from agent.allocation.cdi_folder import CdiFolder
from agent.app.lock import read_holder, try_lock
from agent.cgroup.ledger import ChangeLedger, LedgerLine, encode_line
from agent.clock import ManualClock
from agent.deviceplugin.allocations import read_device_checkpoint
from agent.deviceplugin.resource_cache import ResourceCacheFile, encode_resources
from agent.devices.health import TimePoint
from agent.devices.health_file import HealthFile, _HealthDocument, encode_health
from agent.devices.minors import encode_records
from agent.devices.published_minors import PublishedMinorStore
from agent.nri.plugin import ConnectionLock
from agent.objects.device import DevicePublisher
from agent.objects.event_log import EventLog
from agent.objects.files import FileSink
from agent.qos.eviction.history_file import EvictionHistoryFile, encode_history
from agent.reconcile.audit_file import AuditFile
from agent.recording.format import format_recording
from agent.recording.host_source import open_host
from agent.recording.tree import TreeFiles
from agent.snapshot.device import HealthState
from agent.state_writer import StateWriter
from agent.usage.peak_monitor import decode_checkpoint
from agent.usage.prediction import PeakPredictor, PredictionPolicy
from agent.wire_formats.event import Event
from agent.workers.tape import DiscoverLine, EventsLine, SampleLine, parse_tape
from plugins.vendors.ascend.discovery.chip_table import ChipTable
from plugins.vendors.ascend.health.fault_store import FaultStore
from plugins.vendors.ascend.vnpu.ownership import VnpuOwnershipFile
from plugins.vendors.cambricon.smlu.ownership import SmluOwnershipFile
from plugins.vendors.nvidia.discovery.card_store import CardStore
from plugins.vendors.nvidia.health.card_state import DiagnosisTime
from plugins.vendors.nvidia.health.diagnosis import Diagnosis, DiagnosisRecord
from plugins.vendors.nvidia.health.xid import XidRules
from plugins.vendors.rdma.discovery.minors import RdmaStateStore, encode_state
from tests import factory

FILES = Path(__file__).parents[2] / "fixtures" / "nodes" / "earlier-agent"
BOOT = "0b0b0000-0000-4000-8000-000000000001"
NOW = TimePoint(2000.0, 1_767_324_045.0)  # a thousand seconds after the files were written
GPU, CHIP = "0000:61:00.0", "VDIE-1"
UUID = "GPU-00000000-0000-4000-8000-000000000003"


# maps by name, whose members are no fields
MAPS = ("ascend-faults.json",)


@pytest.fixture(params=["as-written", "with-fields-of-a-later-version"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the files; an agent reads those of a later version after a downgrade."""
    copy = Path(shutil.copytree(FILES, tmp_path / "node"))
    if request.param != "as-written":
        for path in (copy / "state").glob("*.json"):
            if path.name not in MAPS:
                path.write_text(json.dumps(_with_later_field(json.loads(path.read_bytes()))))
    return copy


def _with_later_field(document: object) -> object:
    """Return a document, or each object of a list, with a field that this version does not know."""
    if isinstance(document, list):
        return [_with_later_field(one) for one in document]
    return {**document, "field_of_a_later_version": [1]} if isinstance(document, dict) else document


@pytest.fixture
def state(node: Path) -> str:
    """Return the folder for state."""
    return str(node / "state")


def test_minors_that_an_earlier_agent_published_stay(state: str) -> None:
    store = PublishedMinorStore(state, stores=True, adopts=True)
    assert store.is_complete
    assert store.check().ok
    records, _ = store.current()
    assert [(record.vendor, record.minor, record.vendor_minor) for record in records] == [
        ("nvidia", 3, 5),
        ("rdma", 0, None),
    ]
    assert encode_records(records) == _data("state/published-minors.json")


def test_a_device_that_had_failed_must_prove_itself(state: str) -> None:
    file = HealthFile(state, BOOT)
    tracks = file.load(NOW)["nvidia"]
    assert file.check().ok
    failed, healthy = tracks[GPU], tracks["0000:9d:00.0"]
    assert (failed.state, failed.cause.reason) == (HealthState.PROBING, "Xid79")
    assert (failed.is_worse, failed.is_flapping, failed.since_s) == (True, True, 1_767_323_000.5)
    assert (failed.turn_times_s, healthy.turn_times_s) == ((100.0, 900.0), (50.0, 60.0))
    assert healthy.state is HealthState.HEALTHY


def test_health_is_written_as_an_earlier_agent_wrote_it(state: str) -> None:
    document = msgspec.json.decode(Path(state, "health.json").read_bytes(), type=_HealthDocument)
    now = TimePoint(document.mono_s, document.wall_s)
    assert encode_health(document.vendors, BOOT, now) == _data("state/health.json")


def test_limits_of_evictions_hold_over_an_upgrade(state: str) -> None:
    history = EvictionHistoryFile(state, BOOT, StateWriter()).load(NOW.mono_s)
    assert history.last_s == {"memory_eviction": 1990.0, "cpu_eviction": 1940.0}
    assert tuple(history.ending_until_s.values()) == (2050.0,)
    assert encode_history(history, BOOT) == _data("state/evictions.json")


def test_models_of_usage_are_not_trained_anew(state: str) -> None:
    checkpoint = decode_checkpoint(Path(state, "prediction.json").read_bytes(), "node-a")
    assert msgspec.json.encode(checkpoint) == _data("state/prediction.json")
    predictor = PeakPredictor(PredictionPolicy())
    assert predictor.restore(checkpoint, NOW.wall_s) == ()
    assert predictor.checkpoint("node-a").models.keys() == checkpoint.models.keys()


def test_the_audit_goes_on_in_the_file_of_an_earlier_agent(state: str) -> None:
    file = AuditFile(f"{state}/audit.jsonl", 1 << 20)
    (record,) = file.read_last(10, 1 << 20)
    assert (record.key, record.errno, record.restore) == ("cpu.max", 22, "refused")
    file.append(msgspec.json.encode(record) + b"\n")
    assert Path(state, "audit.jsonl").read_bytes() == 2 * _data("state/audit.jsonl")


def test_the_kubelet_is_offered_what_it_was_offered_before(state: str) -> None:
    resources = ResourceCacheFile(state, BOOT, StateWriter()).load()
    assert encode_resources(resources, BOOT) == _data("state/device-plugin.json")
    assert [resource.name for resource in resources] == ["nvidia.com/gpu"]


def test_original_values_can_be_restored(state: str) -> None:
    ledger = ChangeLedger(f"{state}/ledger.log", BOOT)
    ledger.load()
    assert not ledger.problem
    lines = [json.loads(line) for line in _data("state/ledger.log").splitlines()]
    *restorable, _, removed = lines
    assert removed["op"] == "gone"
    entries = [json.loads(msgspec.json.encode(entry)) for entry in ledger.entries.values()]
    assert entries == [line["entry"] for line in restorable]
    for line in _data("state/ledger.log").splitlines(keepends=True):
        fields = json.loads(line)
        del fields["crc"]
        assert encode_line(msgspec.convert(fields, LedgerLine)) == line


def test_the_lock_names_the_agent_before_this_one(node: Path) -> None:
    holder = read_holder(str(node / "run"))
    assert holder is not None
    assert (holder.pid, holder.node, holder.state) == (4322, "node-a", "running")
    lock = try_lock(str(node / "run"), holder)
    assert lock is not None
    assert "ended without leaving" in (lock.crash_message() or "")
    lock.release()
    connection = ConnectionLock(str(node / "run" / "nri.lock"))
    assert connection.acquire()
    connection.release()


def test_slices_of_cards_still_have_their_pods(state: str) -> None:
    smlu, vnpu = SmluOwnershipFile(state, BOOT).read(), VnpuOwnershipFile(state, BOOT)
    assert msgspec.json.encode(smlu) == _data("state/smlu-owned.json")
    assert msgspec.json.encode(vnpu.entries) == _data("state/ascend-vnpus.json")
    assert vnpu.problem is None


def test_chips_and_their_faults_are_known(state: str) -> None:
    table = ChipTable(TreeFiles.from_entries({}), state, 86_400.0, ManualClock(mono_s=0.0))
    assert table.problem is None
    assert msgspec.json.encode(tuple(table.stored.values())) == _data("state/ascend-devices.json")
    faults = FaultStore(state)
    assert faults.problem is None
    assert msgspec.json.encode({CHIP: faults.history_of(CHIP)}) == _data("state/ascend-faults.json")


def test_cards_and_the_causes_of_their_failures_are_known(state: str) -> None:
    cards = CardStore(state, BOOT)
    assert (cards.problem, cards.is_same_boot) == (None, True)
    stored = _json("state/nvidia-devices.json")["cards"]
    assert json.loads(msgspec.json.encode(cards.cards)) == stored
    diagnosis = Diagnosis(XidRules(), lambda: DiagnosisTime(wall_s=NOW.wall_s, boot_id=BOOT), state)
    assert diagnosis.problems == ()
    assert (diagnosis.read_to, diagnosis.uuid_of(GPU)) == (77, UUID)
    data = _data("state/nvidia-causes.json")
    assert msgspec.json.encode(msgspec.json.decode(data, type=DiagnosisRecord)) == data


def test_rdma_devices_keep_their_numbers(state: str) -> None:
    store = RdmaStateStore(state, BOOT)
    assert store.problem is None
    assert encode_state(store.state, BOOT) == _data("state/rdma.json")
    assert sorted(store.state.minors.values()) == [0, 3]


def test_a_device_object_that_is_still_true_is_not_written_again(node: Path) -> None:
    snapshot = factory.snapshot((factory.gpu(0), factory.nic(1)))
    sink = FileSink(str(node / "objects"), ManualClock(wall_s=NOW.wall_s))
    assert sink.apply(DevicePublisher().render(snapshot, factory.NOW_S)).written == ()


def test_events_are_appended_to_earlier_ones(node: Path) -> None:
    event = Event(
        type="Warning",
        reason="DeviceFailed",
        message="Xid79",
        object_kind="Device",
        at_s=1_767_323_045.0,
        device="0000:1b:00.0",
    )
    EventLog(str(node / "objects")).record([event], factory.snapshot())
    before, after = (node / "objects" / "events.jsonl").read_text().splitlines()
    assert before == after


def test_cdi_files_are_the_agents_own(node: Path) -> None:
    folder = CdiFolder(str(node / "cdi"))
    assert folder.synchronize((), in_use={"xpu-agent.io/npu"}).removed == ()
    assert folder.remove_all() == ("xpu-agent-npu.json",)


def test_the_kubelets_checkpoint_says_what_an_earlier_agent_answered(node: Path) -> None:
    checkpoint = read_device_checkpoint(str(node / "kubelet"), None)
    assert checkpoint is not None
    (entries,) = checkpoint[1]
    assert (entries.ids, entries.exchanges) == (("GPU-a", "GPU-c"), (("GPU-a", "GPU-b"),))


def holds(read: object, written: object) -> bool:
    """Return whether all that was written was read; later agents may know more fields."""
    if isinstance(written, dict) and isinstance(read, dict):
        return all(key in read and holds(read[key], value) for key, value in written.items())
    if isinstance(written, list) and isinstance(read, list):
        return len(read) == len(written) and all(map(holds, read, written))
    return read == written


def test_a_recording_plays_the_same_host_and_devices(node: Path) -> None:
    host = open_host(str(node / "recording"))
    assert isinstance(host.files, TreeFiles)
    header = {"kernel": "6.1.0", "pseudonymised": "no", "recorded": "2026-01-02T03:04:05Z"}
    assert format_recording(host.files, header).encode() == _data("recording/host.txt")
    data = _data("recording/tapes/nvidia.jsonl")
    tape = parse_tape(data, "nvidia")
    ((at_s, events),) = tape.events
    lines = (
        {"tape": 1, "vendor": "nvidia"},
        DiscoverLine(0.5, tape.inventories[0]),
        SampleLine(0.01, tape.samples[0]),
        EventsLine(at_s, events),
    )
    read = [json.loads(msgspec.json.encode(line)) for line in lines]
    assert holds(read, [json.loads(line) for line in data.splitlines()])


def _data(name: str) -> bytes:
    return (FILES / name).read_bytes()


def _json(name: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(_data(name))
    return document
