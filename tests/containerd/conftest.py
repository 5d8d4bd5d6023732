"""One containerd for each module of tests: starting it is most of what a test would cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containerd.runtime.running import Containerd, cannot_run, containerd


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    """A runtime without pods; the test is skipped, with the reason, where none can run."""
    if reason := cannot_run():
        pytest.skip(reason)
    with containerd() as started:
        yield started


@pytest.fixture(autouse=True)
def _no_pods_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "runtime" in request.fixturenames:
        request.getfixturevalue("runtime").cri.remove_all()
