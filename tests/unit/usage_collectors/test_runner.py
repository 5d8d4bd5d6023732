from __future__ import annotations

import pytest

from agent.clock import ManualClock
from agent.errors import HostFileError
from agent.snapshot.inventory import Problem
from agent.snapshot.usage import CycleUsage
from agent.usage.collector import CollectorInput
from agent.usage.optional_collectors import CollectorRunner

VALUE = CycleUsage(containers={})
PROBLEM = CycleUsage(containers={}, problems=(Problem(reason="R", message="m"),))


class Steps:
    """A collector that returns what the test says, and takes a second for each call."""

    name = "steps"

    def __init__(self, clock: ManualClock, *steps: CycleUsage | Exception | None) -> None:
        self._clock = clock
        self._steps = list(steps)
        self.calls = 0

    def collect(self, cycle: CollectorInput) -> CycleUsage | None:
        self.calls += 1
        assert cycle.pods == ()
        self._clock.advance(1.0)
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        self._steps.clear()


def run(*steps: CycleUsage | Exception | None) -> CollectorRunner[CycleUsage]:
    clock = ManualClock()
    runner = CollectorRunner(Steps(clock, *steps), 5.0, clock)
    for second in range(len(steps)):
        runner.run(CollectorInput(now_s=second * 5.0))
    return runner


def test_before_the_first_complete_run_there_is_neither_value_nor_duration() -> None:
    runner = run(None)
    status = runner.status
    assert (runner.value, status.success, status.duration_s, status.last_success_s) == (
        *(None, False),
        *(None, None),
    )


def test_a_run_counts_the_time_of_all_its_calls() -> None:
    runner = run(None, None, VALUE)
    assert (runner.value, runner.status.success, runner.status.duration_s) == (VALUE, True, 3.0)
    assert runner.status.last_success_s == ManualClock().wall() + 3.0


def test_a_run_with_problems_keeps_the_time_of_the_last_success() -> None:
    runner = run(VALUE, PROBLEM)
    assert (runner.value, runner.status.success) == (PROBLEM, False)
    assert runner.status.last_success_s == ManualClock().wall() + 1.0
    assert runner.status.problems == PROBLEM.problems


@pytest.mark.parametrize("error", [HostFileError("/x", 5), OSError(5, "no")])
def test_a_failure_leaves_no_old_values(error: Exception) -> None:
    runner = run(VALUE, error)
    assert (runner.value, runner.status.success) == (None, False)
    assert [problem.reason for problem in runner.status.problems] == ["CollectorFailed"]


def test_between_two_runs_the_last_values_stay() -> None:
    clock = ManualClock()
    steps = Steps(clock, VALUE, PROBLEM)
    runner = CollectorRunner(steps, 5.0, clock)
    values = []
    for now_s in (0.0, 4.9, 5.0):
        if runner.is_due(now_s):
            runner.run(CollectorInput(now_s=now_s))
        values.append(runner.value)
    assert values == [VALUE, VALUE, PROBLEM]
    assert steps.calls == 2


def test_a_reason_is_logged_once_until_a_run_is_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(PROBLEM, PROBLEM, VALUE, PROBLEM)
    logged = [record for record in caplog.records if record.getMessage() == "collector_problem"]
    assert len(logged) == 2
    assert {(vars(one)["collector"], vars(one)["reason"]) for one in logged} == {("steps", "R")}
