"""The fake of version 2 answers as the kernel did."""

from __future__ import annotations

import errno

import pytest

from agent.cgroup.host_settings import FEATURE_FILES
from agent.cgroup.key_index import find_key
from agent.errors import HostFileError
from tests.cgroup_v2.disks import PARTITION as FAKE_PARTITION
from tests.cgroup_v2.disks import WHOLE_DISKS
from tests.cgroup_v2.fake import FakeGroups, FakeKernel
from tests.cgroup_v2.session import RECORDED, answers
from tests.cgroup_v2.settings import FakeSettings
from tests.guest.file_table import DISK, HOST, PARTITION, ROWS, Row


def test_the_fake_answers_every_step_of_the_session_as_the_kernel_did() -> None:
    assert (
        list(answers(FakeGroups(FakeKernel("/session"), "/session")))
        == RECORDED.read_text().splitlines()
    )


NUMBERS = {DISK: WHOLE_DISKS[0], PARTITION: FAKE_PARTITION}


def text(text: str) -> str:
    """Return a text of the table with the numbers of the fake's disks."""
    for name, number in NUMBERS.items():
        text = text.replace(name, number)
    return text


def path_of(row: Row) -> str:
    """Return the file of a row, below the mount or on the host."""
    key = find_key(text(row.key))
    assert key is not None
    return key.host_file or f"{row.group.rstrip('/')}/{key.files(2)[0]}"


class Machine:
    """A fake with all files of the table."""

    def __init__(self) -> None:
        self.kernel = FakeKernel("/table/pod")
        self.kernel.write("/io.cost.qos", f"{NUMBERS[DISK]} enable=0")
        self.settings = FakeSettings(min_free_kbytes=67584, watermark_scale_factor=10)
        self.settings.feature_file = FEATURE_FILES[0]
        self.settings.features = {"WAKEUP_PREEMPTION": True}

    def read(self, row: Row) -> str:
        if row.group == HOST:
            return self.settings.read(path_of(row), 4096).decode()
        return self.kernel.read(path_of(row))

    def write(self, row: Row, line: str) -> str:
        try:
            if row.group == HOST:
                self.settings.write(path_of(row), line)
            else:
                self.kernel.write(path_of(row), line)
        except HostFileError as error:
            return errno.errorcode[error.errno]
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "ok"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_fake_takes_and_refuses_what_the_kernel_in_the_virtual_machine_does(row: Row) -> None:
    machine, key = Machine(), find_key(text(row.key))
    assert key is not None
    assert machine.write(row, key.text(2, key.from_ledger(text(row.value)))) == "ok"
    shown = machine.read(row)
    assert text(row.shows) in shown.splitlines()
    answers = {line: machine.write(row, text(line)) for line in row.refuses}
    assert answers == row.refuses
    assert machine.read(row) == shown


def test_the_fake_has_no_weights_without_cost_control() -> None:
    kernel = FakeKernel("/table/pod")
    with pytest.raises(OSError, match="weight") as refusal:
        kernel.write("/table/pod/io.weight", f"{NUMBERS[DISK]} 40")
    assert refusal.value.errno == errno.EOPNOTSUPP
