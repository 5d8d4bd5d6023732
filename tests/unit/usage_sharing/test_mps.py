from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.tree import TreeBuilder
from agent.snapshot.host_files import HostFiles
from agent.snapshot.usage import MpsDaemon
from agent.usage.shared_devices import parse_parent_pid, read_mps

CONTROL, SERVER = b"/usr/bin/nvidia-cuda-mps-control", b"nvidia-cuda-mps-server"
ENVIRONMENT = (
    b"PATH=/bin\0CUDA_VISIBLE_DEVICES=GPU-0, GPU-1\0"
    b"CUDA_MPS_PIPE_DIRECTORY=/run/xpu-agent/mps/GPU-0/pipe\0CUDA_MPS_LOG_DIRECTORY=/l\0"
)


def host(*processes: tuple[int, bytes, bytes, int, bytes | None]) -> HostFiles:
    """Processes: pid, comm, program, parent, environment."""
    builder = TreeBuilder()
    for pid, comm, program, parent, environment in processes:
        builder.put(f"/proc/{pid}/comm", comm + b"\n")
        builder.put(f"/proc/{pid}/cmdline", program + b"\0-d\0")
        builder.put(f"/proc/{pid}/stat", b"%d (a ) b) S %d 1 1" % (pid, parent))
        if environment is not None:
            builder.put(f"/proc/{pid}/environ", environment)
    return builder.build("")


MPS = b"nvidia-cuda-mps"


def test_daemons_are_found_with_their_cards_folders_and_servers() -> None:
    mps = read_mps(
        host(
            (12, MPS, SERVER, 9, None),
            (9, MPS, CONTROL, 1, ENVIRONMENT),
            (13, MPS, SERVER, 9, None),
            (14, MPS, SERVER, 1, None),
            (20, b"bash", b"bash", 1, b"CUDA_VISIBLE_DEVICES=GPU-9\0"),
            (21, MPS, b"sleep", 1, None),
        )
    )
    assert mps == (
        MpsDaemon(
            pid=9,
            pipe_dir="/run/xpu-agent/mps/GPU-0/pipe",
            log_dir="/l",
            cards=("GPU-0", "GPU-1"),
            servers=(12, 13),
        ),
    )
    assert mps[0].serves("GPU-1")
    assert not mps[0].serves("GPU-2")


@pytest.mark.parametrize(
    ("environment", "pipes"), [(None, None), (b"", None), (b"A=b\0", "/tmp/nvidia-mps")]
)
def test_an_unreadable_environment_is_not_an_empty_one(
    environment: bytes | None, pipes: str | None
) -> None:
    (result,) = read_mps(host((9, MPS, CONTROL, 1, environment)))
    assert result.pipe_dir == pipes
    assert result.cards == ()


def test_a_host_without_processes_has_no_daemons() -> None:
    assert read_mps(TreeBuilder().build("")) == ()


@pytest.mark.parametrize(
    ("stat", "parent"),
    [(b"9 (a) S 1 2", 1), (b"9 (a) b) S 7 2", 7), (b"9", None), (b"", None), (b"9 (a) S x", None)],
)
def test_the_parent_stands_behind_the_last_bracket(stat: bytes, parent: int | None) -> None:
    assert parse_parent_pid(stat) == parent


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_process_that_calls_itself_mps_is_read(program: bytes, environment: bytes) -> None:
    for daemon in read_mps(
        host((9, MPS, program, 1, environment), (8, MPS, CONTROL, 1, environment))
    ):
        assert daemon.pid in (8, 9)
