"""Published minors of a standalone agent, over runs that find other numbers and less state."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.process.agent import DEADLINE_S, run_agent
from tests.process.test_health import environment


def test_a_published_minor_outlives_its_vendors_number_its_state_and_its_file(
    tmp_path: Path,
) -> None:
    """In standalone mode the published Device object is the file of an earlier run."""
    out, state = tmp_path / "out", tmp_path / "state"

    def publish(minor: int) -> object:
        scene = environment(tmp_path, f"devices:\n- {{uuid: g0, minor: {minor}}}\n")
        arguments = ("run", "--standalone", "--once", "--out", str(out), "--host", "/")
        process = run_agent(*arguments, timeout_s=DEADLINE_S, **scene)
        assert process.returncode == 0, process.stderr
        (card,) = yaml.safe_load((out / "device.yaml").read_text())["spec"]["devices"]
        return card["minor"]

    assert publish(5) == 5
    assert publish(0) == 5
    shutil.rmtree(state)
    assert publish(0) == 5
    (out / "device.yaml").unlink()
    assert publish(0) == 5
    shutil.rmtree(state)
    (out / "device.yaml").unlink()
    assert publish(0) == 0
