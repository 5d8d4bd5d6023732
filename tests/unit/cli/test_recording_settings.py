"""What `run` says of settings that a recorded host cannot honour."""

from __future__ import annotations

from agent.cli.run import unused_settings_notice
from agent.recording.host_source import open_host
from tests.process.agent import EIGHT_CARDS

ORIGINS = {
    "node.state_dir": "file c.yaml",
    "enforce.mode": "environment XPU_AGENT_ENFORCE__MODE",
    "metrics.listen": "flag --listen",
}


def test_settings_that_a_recording_cannot_honour_are_named_with_their_origin() -> None:
    output = unused_settings_notice(open_host(str(EIGHT_CARDS)), ORIGINS)
    assert output == (
        "Without effect on a recorded host: "
        "enforce.mode (environment XPU_AGENT_ENFORCE__MODE), node.state_dir (file c.yaml)."
    )


def test_on_a_live_host_and_at_defaults_nothing_is_reported() -> None:
    assert unused_settings_notice(open_host(None), ORIGINS) == ""
    assert (
        unused_settings_notice(open_host(str(EIGHT_CARDS)), {"metrics.listen": "flag --listen"})
        == ""
    )
