from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import MpsDaemon, SharingView
from tests.factory import NOW_S, gpu, nic, snapshot

UUIDS = tuple(gpu(i).info.uuid or "" for i in (0, 1))


@pytest.mark.parametrize(
    ("daemons", "servers"),
    [
        ((), {}),
        ((MpsDaemon(pid=1, pipe_dir="/p", cards=(UUIDS[0],), servers=(2, 3)),), {"0": 2}),
        ((MpsDaemon(pid=1, pipe_dir="/p", cards=(UUIDS[1],)),), {"1": 0}),
        ((MpsDaemon(pid=1, pipe_dir="/p", servers=(2,)),), {"0": 1, "1": 1}),
        ((MpsDaemon(pid=1, servers=(2,)),), {}),  # whose cards it serves is not readable
    ],
)
def test_servers_are_counted_on_the_cards_of_their_daemon(
    daemons: tuple[MpsDaemon, ...], servers: dict[str, int]
) -> None:
    snap = snapshot((gpu(0), gpu(1), nic(0)))
    shared = replace(snap, sharing=SnapshotPart(SharingView(mps=daemons), NOW_S))
    page = MetricsRenderer({}).render(shared, NOW_S).decode()
    lines = [line for line in page.splitlines() if line.startswith("xpu_device_mps_servers{")]
    reports = {line.split('minor="')[1][0]: int(line.rsplit(" ", 1)[1]) for line in lines}
    assert reports == servers
