"""One stub in use: its scenario, the events it is told, the calls it counted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.stubs.build import NEWEST, build, described


@dataclass(slots=True)
class Stub:
    """A described library with a scenario in `folder`; all of it may change while it is loaded."""

    name: str
    folder: Path
    without: tuple[str, ...] = ()
    driver: int = NEWEST
    traced: bool = False

    @property
    def path(self) -> Path:
        """Return the shared object, made when first asked for."""
        library = build(self.name, without=self.without, driver=self.driver)
        return library / described(self.name).soname

    def installed(self) -> Path:
        """Return a copy beside the scenario, which finds it without the environment's help."""
        return Path(shutil.copy(self.path, self.folder))

    @property
    def scenario(self) -> Path:
        """Return the text that answers come from."""
        return self.folder / "scenario"

    @property
    def environment(self) -> dict[str, str]:
        """Return what a process needs to find the scenario."""
        library = described(self.name)
        result = {library.scenario_env: str(self.scenario)}
        return {**result, library.trace_env: str(self.folder / "trace")} if self.traced else result

    def play(self, *lines: str) -> None:
        """Replace the scenario whole; the stub reads it at its next call."""
        fresh = self.folder / "scenario.new"
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(self.scenario)

    def add(self, *lines: str) -> None:
        """Replace the scenario by itself and further lines; of equal paths the last one counts."""
        self.play(*self.scenario.read_text(encoding="utf-8").splitlines(), *lines)

    def happen(self, line: str) -> None:
        """Append one event; a loaded library has it within milliseconds."""
        with (self.folder / "scenario.events").open("a", encoding="utf-8") as events:
            events.write(f"{line}\n")

    def counts(self) -> dict[str, int]:
        """Return how often each symbol was called so far, by all processes together."""
        file = self.folder / "scenario.calls"
        lines = file.read_bytes().replace(b"\0", b"").splitlines() if file.exists() else []
        pairs = (line.split() for line in lines)
        return {name.decode(): int(number) for name, number in pairs}

    def trace(self) -> list[str]:
        """Return the calls of a traced stub in their order, as `symbol [key]...`."""
        file = self.folder / "trace"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def state(self) -> list[str]:
        """Return what calls changed, as `path value`; a path alone was taken away."""
        file = self.folder / "scenario.state"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
