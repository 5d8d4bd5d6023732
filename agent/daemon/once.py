"""`run --once`: one full cycle of everything, then the end."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from agent.daemon.telling.device_changes import info_file_run
from agent.daemon.telling.outlet import Folder
from agent.daemon.telling.recounting import Recounting
from agent.node.look import look
from agent.node.parts import Parts
from agent.node.publishers import wanted_publishers
from agent.publish.device import FILE_NAME
from agent.publish.files import read_object

DONE, CANNOT = 0, 3


def run_once(parts: Parts, out: str, say: TextIO) -> int:
    """Read, ask, measure and publish once; say each file. Status 3 when one was not written."""
    minors = parts.published_minors(stores=True, adopts=True)
    if not minors.complete:
        minors.adopt(read_object(Path(out, FILE_NAME)))
    look(parts, usage=True, minors=minors)
    folder = Folder(out, parts.store, parts.clock)
    failed = False
    runs = [folder.run(publisher) for publisher in wanted_publishers(parts.settings).values()]
    if parts.settings.publish.device_info_files:
        runs.append(info_file_run(parts))
    for run in runs:
        run.run_once()
        failed = failed or not run.status.success
        for shown in run.objects():
            say.write(f"{shown.kind}: {shown.problem or shown.where}\n")
    Recounting(parts.store, parts.clock, folder.events()).run_once()
    parts.state_writer.close()
    return CANNOT if failed else DONE
