"""The table of faults fits the tree, and the runner tells a caught fault from one that survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.__main__ import main, must_be_caught
from tests.mutations.runner import run_fault
from tests.mutations.table import BadEntry, Fault, check_entry, choose, read_table

LEAST = 60
FAULTS = read_table()
DECIDES = "def is_full(used: int, size: int) -> bool:\n    return used >= size\n"
TEST = "from decides import is_full\n\n\ndef test_full() -> None:\n    assert {check}\n"


def test_the_text_of_each_fault_occurs_once_and_its_tests_exist() -> None:
    errors = []
    for fault in FAULTS:
        try:
            check_entry(fault)
        except BadEntry as error:
            errors.append(str(error))
    assert errors == []


def test_there_are_enough_faults_in_all_parts_of_the_agent_and_of_the_vendors() -> None:
    assert len(FAULTS) >= LEAST
    files = {fault.file for fault in FAULTS}
    assert len(files) >= LEAST * 2 // 3
    for top, least in (("agent", 20), ("plugins", 3)):
        packages = {"/".join(file.split("/")[1:-1]) for file in files if file.startswith(f"{top}/")}
        assert len(packages) >= least, sorted(packages)


def entry(**changes: object) -> Fault:
    """Return a fault of the small tree below."""
    plain = {"name": "x", "file": "decides.py", "find": ">=", "put": ">", "tests": ("test_it.py",)}
    return Fault(**{**plain, **changes})  # type: ignore[arg-type]  # of the types above


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "decides.py").write_text(DECIDES)
    (folder / "test_it.py").write_text(TEST.format(check="is_full(2, 2)"))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"find": "gone"}, "x: the text occurs 0 times"),
        ({"find": "used"}, "x: the text occurs 2 times"),
        ({"put": ">="}, "x: the replacement is the text"),
        ({"put": ">=="}, "x: the replacement is not Python"),
        ({"put": "> limit +"}, "x: nothing is named limit"),
        ({"file": "other.py"}, "x: there is no file other.py"),
        ({"tests": ("test_gone.py",)}, "x: there is no test test_gone.py"),
        ({"tests": ()}, "x: no test is named"),
    ],
)
def test_an_entry_that_does_not_fit_is_an_error_that_names_it(
    changes: dict[str, object], words: str, tree: Path
) -> None:
    check_entry(entry(), tree)
    with pytest.raises(BadEntry, match=words):
        check_entry(entry(**changes), tree)


def test_a_fault_is_caught_by_a_test_that_fails_and_is_taken_out_again(tree: Path) -> None:
    outcome = run_fault(entry(), tree)
    assert outcome.caught
    assert outcome.test == "test_it.py::test_full"
    assert (tree / "decides.py").read_text() == DECIDES


def test_a_fault_that_no_test_sees_survives(tree: Path) -> None:
    (tree / "test_it.py").write_text(TEST.format(check="is_full(3, 2)"))
    assert not run_fault(entry(), tree).caught


def test_a_test_that_cannot_run_or_fails_without_the_fault_catches_nothing(tree: Path) -> None:
    (tree / "test_it.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(BadEntry, match="status 2"):
        run_fault(entry(), tree)
    (tree / "test_it.py").write_text(TEST.format(check="is_full(1, 2)"))
    with pytest.raises(BadEntry, match=r"test_it.py::test_full fails without the fault too"):
        run_fault(entry(), tree)
    assert (tree / "decides.py").read_text() == DECIDES


def test_faults_are_chosen_by_the_beginning_of_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = FAULTS[0]
    assert first in choose(FAULTS, [first.name.partition("-")[0]])
    assert choose(FAULTS, []) == FAULTS
    with pytest.raises(BadEntry, match="no entry has this name"):
        choose(FAULTS, ["no-such-fault"])
    assert main(["--list", first.name]) == 0
    assert capsys.readouterr().out.splitlines() == [first.name]
    assert main(["no-such-fault"]) == 2


@pytest.mark.parametrize(("tried", "needed"), [(60, 57), (1, 1), (20, 19)])
def test_nineteen_of_twenty_must_be_caught(tried: int, needed: int) -> None:
    assert must_be_caught(tried) == needed
