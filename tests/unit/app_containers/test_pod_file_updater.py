from __future__ import annotations

import pytest

from agent.app.pod_files import new_conditions
from agent.snapshot.self_check import FileCondition


def _conditions(*told: str) -> tuple[FileCondition, ...]:
    pairs = (one.split(":") for one in told)
    return tuple(FileCondition(reason=reason, message=message) for reason, message in pairs)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ((), ("A:x",), ("A:x",)),
        (("A:x",), ("A:x",), ()),
        (("A:x",), (), ()),
        (("A:x",), ("A:y",), ()),  # the same trouble in other words
        (("A:x",), ("A:x", "A:y"), ("A:y",)),
        (("A:x",), ("A:y", "A:z"), ("A:z",)),
        (("A:x",), ("B:x",), ("B:x",)),
    ],
)
def test_a_lasting_problem_is_reported_once_even_if_its_name_changes(
    before: tuple[str, ...], now: tuple[str, ...], told: tuple[str, ...]
) -> None:
    assert tuple(new_conditions(_conditions(*before), _conditions(*now))) == _conditions(*told)
