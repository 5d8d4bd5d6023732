"""Every command that reads a host, on a folder that somebody made to do harm."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest

from tests.unit.cli.commands import COMMANDS, Command

SECRET = "a secret outside of the recording"
DEPTH = 300  # folders below one another
TERABYTE = 1 << 40
READ_HOST = [
    command
    for command in COMMANDS
    if any("--host" in action.option_strings for action in command.options)
]


def write_hostile_host(folder: Path, outside: Path) -> Path:
    """Write a host in which nothing is what it should be."""
    outside.write_text(SECRET)
    host = folder / "host"
    for name in ("proc/1", "sys/devices/system/cpu", "sys/class/net", "sys/bus/pci/devices"):
        (host / name).mkdir(parents=True)
    # links that leave: absolute ones, and ones with too many `..`
    (host / "proc/meminfo").symlink_to(outside)
    (host / "proc/version").symlink_to("../../../../../../../.." + str(outside))
    (host / "sys/devices/system/cpu/online").symlink_to("/dev/zero")
    (host / "sys/devices/system/node").symlink_to("../system")
    (host / "proc/self").symlink_to("self")
    (host / "etc").symlink_to(outside.parent)
    os.mkfifo(host / "proc/cpuinfo")
    if os.geteuid() == 0:
        os.mknod(host / "proc/loadavg", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero
    with (host / "proc/stat").open("wb") as file:
        file.truncate(TERABYTE)
    (host / "proc/uptime").mkdir()
    for odd in (b"\xff\xfe", b"a\nb", b"\x1b[31mred", b"x" * 255):
        name = os.fsdecode(odd)
        (host / "sys/class/net" / name).mkdir()
        (host / "sys/bus/pci/devices" / name).symlink_to(f"../../../class/net/{name}")
    deepest = host / "sys/fs/cgroup"
    deepest.mkdir(parents=True)
    descriptor = os.open(deepest, os.O_RDONLY)
    for _ in range(DEPTH):  # longer than a path may be
        os.mkdir("kubepods.slice", dir_fd=descriptor)
        below = os.open("kubepods.slice", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    return host


def lines_of(command: Command, folder: Path) -> list[list[str]]:
    """Return a command line for each choice that the command has."""
    words = [*command.words]
    choices: list[str] = []
    for action in command.positionals:
        if action.choices:
            choices += map(str, action.choices)
        elif action.nargs != "?":
            words.append(str(folder / "out"))
    if command.words == ("run",):
        words += ["--standalone", "--once", "--out", str(folder / "objects")]
    return [[*words, choice] for choice in choices] or [words]


@pytest.mark.parametrize("command", READ_HOST, ids=str)
@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_hostile_host_makes_no_command_crash_hang_or_leave_it(
    command: Command,
    form: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    host = write_hostile_host(tmp_path, tmp_path / "outside")
    if form == "archive":
        (host / "proc/stat").unlink()  # tar would write all of it
        archive = tmp_path / "host.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(host, "host", filter=lambda one: None if one.name.count("/") > 40 else one)
        host = archive
    for words in lines_of(command, tmp_path):
        status = command.main([*words, "--host", str(host)])
        output, text = capfd.readouterr()
        assert status in (0, 1, 3), text
        assert "Traceback" not in text
        assert SECRET not in output + text
        assert "\x1b" not in output + text
    for path in tmp_path.glob("o*/**/*"):  # what the command wrote
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
