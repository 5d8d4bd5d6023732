"""What the host offers, from files alone."""

from __future__ import annotations

import pytest

from agent.host.kernel import read_gpudirect_host
from agent.recording.tree import TreeBuilder
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import GpuDirectHost
from tests.captures import capture, needs_shared

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (x)\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
)


def host(**files: str) -> HostFiles:
    builder = TreeBuilder()
    for path, text in files.items():
        builder.put(path, text.encode())
    return builder.build()


@pytest.mark.parametrize(
    ("files", "means"),
    [
        ({}, GpuDirectHost()),
        (
            {
                "/proc/driver/nvidia/version": OPEN,
                "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            },
            GpuDirectHost(driver=True, open_modules=True, driver_major=570, kernel=(6, 8)),
        ),
        (
            {
                "/proc/driver/nvidia/version": CLOSED,
                "/sys/module/nvidia_peermem/version": "535.183.01\n",
                "/proc/sys/kernel/osrelease": "5.4.0\n",
            },
            GpuDirectHost(
                peer_memory="nvidia_peermem", driver=True, driver_major=535, kernel=(5, 4)
            ),
        ),
        (
            {"/sys/kernel/mm/memory_peers/nv_mem/version": "1.3\n"},
            GpuDirectHost(peer_memory="nv_peer_mem"),
        ),
        (
            {"/proc/driver/nvidia/version": "garbage", "/proc/sys/kernel/osrelease": "x"},
            GpuDirectHost(driver=True),
        ),
    ],
)
def test_facts_are_those_of_the_files(files: dict[str, str], means: GpuDirectHost) -> None:
    assert read_gpudirect_host(host(**files)) == means


@needs_shared
def test_a_guest_without_the_driver_offers_nothing() -> None:
    gpudirect_host = read_gpudirect_host(capture("qemu"))
    assert (gpudirect_host.peer_memory, gpudirect_host.driver) == (None, False)
