"""A real Prometheus, as `.ci/system-packages` fetches it, for tests."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import PATIENCE_S

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus: .ci/system-packages fetches it"
)
PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    process: subprocess.Popen[bytes] | None  # None: somebody else's
    url: str

    def api(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer of the HTTP API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=PATIENCE_S) as raw:
            answer = json.load(raw)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of an instant query."""
        data = self.api("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def wait_for(
        self, expression: str, count: int | None = None
    ) -> list[tuple[dict[str, str], float]]:
        """Query again and again until there is a result, of `count` series if that is given."""
        until_s = time.monotonic() + PATIENCE_S
        while not (result := self.query(expression)) or len(result) != (count or len(result)):
            assert self.process is None or self.process.poll() is None, "Prometheus ended"
            assert time.monotonic() < until_s, (
                f"{len(result)} series after {PATIENCE_S} s: {expression}"
            )
            time.sleep(PAUSE_S)
        return result

    def own_metrics(self) -> dict[str, float]:
        """Return the server's metrics about itself that have no labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_S) as raw:
            lines = [line.split() for line in raw.read().decode().splitlines()]
        return {words[0]: float(words[1]) for words in lines if len(words) == 2}


@contextmanager
def running_prometheus(
    folder: Path,
    config: Mapping[str, Any],
    rules: Mapping[str, str],
    *,
    rule_files: Sequence[Path] = (),
) -> Iterator[Prometheus]:
    """Run a server on a free port until the block ends; `rules` are expressions by record."""
    folder.mkdir()
    recorded = [{"record": name, "expr": expression} for name, expression in rules.items()]
    groups = {"groups": [{"name": "test", "interval": "1s", "rules": recorded}]}
    (folder / "rules.yaml").write_text(yaml.safe_dump(groups))
    (folder / "prometheus.yaml").write_text(
        yaml.safe_dump(
            {**config, "rule_files": [str(folder / "rules.yaml"), *map(str, rule_files)]}
        )
    )
    address = f"127.0.0.1:{_free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env={**os.environ, "GOMAXPROCS": "1"}
        )
        try:
            _wait_until_ready(process, address, log)
            yield Prometheus(process, f"http://{address}")
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=PATIENCE_S):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(PAUSE_S)
