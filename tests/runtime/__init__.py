"""A strict container runtime for tests: NRI over a real unix socket, as the Go runtimes speak it.

It has its own code for frames and calls and shares none with the agent: it is the checker. It
lives in the event loop of the test; the plug-in may live there too, or in another process.

    async with Runtime(folder, CONTAINERD_2_3) as runtime:
        runtime.socket                       the path to dial
        plugin = await runtime.plugged()     the next plug-in that is registered and synchronized
        plugin = await runtime.dialled(2)    the second that ever dialled, as far as it came
        pod = runtime.pod("web", annotations={…})           a pod; no plug-in knows it yet
        await runtime.run_pod(pod)                          `Failed` if a plug-in refuses
        container = await runtime.create(pod, "main")       a `CreatedContainer`
        container.spec                       env, mounts, devices, rules, rlimits, resources, …
        container.missed                     plug-ins that were closed on the way: it went on
        await runtime.start(container), update(container, cpu={…}), stop, remove
        await runtime.stop_pod(pod), remove_pod(pod)
        runtime.populate(pods=100, containers=5)            there before the plug-in comes

Leaving the `async with` raises `Broken` if a plug-in broke a rule; a test that breaks one on
purpose takes it away before: `runtime.take_broken()`. Rules that are checked:

* Reading is as in Go: a frame goes whole into a reader's buffer of 4,096 bytes, or past it into
  the rest of a message that is at least so long. One that does not fit ends the connection
  (ENOMEM), and so does the 257th frame of one message that is not whole yet (in Go that depends
  on the scheduler; here it is the worst case), a frame over 4,194,314 bytes, and one of none.
* A call has an odd stream that rises; an answer goes to a stream that waits for one.
* RegisterPlugin comes first and in time, with two digits and, from NRI 0.12 on, a plain name.
* Configure is answered with events that this version knows: 0x07FF, or 0x3FFF from 0.10 on; none
  means all of them. A wrong mask closes the plug-in.
* Each part of a Synchronize but the last is answered with `more` and no update.
* UpdateContainers while a request is unanswered is the deadlock of the real runtime, and below
  0.12.1 it is wrong at any time.
* An update in the answer to UpdateContainer names a container, and the one it was asked of.

What plug-ins cannot see in a real runtime, they cannot see here:

* One plug-in is accepted and registered after the other; the next waits.
* All requests go through one lock. One that is not answered in time closes the plug-in for good,
  and the container is made without it. An error status makes the call fail, the plug-in stays.
* A version below 0.12 tells of nine events by StateChange alone; from 0.12 on each has its own
  call until the first answer with code 12. Fields that a version lacks are not sent.
* Two plug-ins that set one thing: the creation fails, and what was begun is undone.

Misbehaviour, on command:

    runtime.kill(), await runtime.listen()   gone (the socket's file stays), and back, empty-handed
    await runtime.restart()                  both
    runtime.ways.registration = "hang"       of Way: answer, hang, refuse, drop; also `.configure`
                                             and `.synchronize`
    runtime.ways.configure_first = True      Configure overtakes the answer to RegisterPlugin
    runtime.ways.pieces = …                  how a message is cut into frames (`whole`, `as_go`,
                                             `by_bytes`, `header_first`)
    runtime.ways.dribble = 1                 so many bytes a write
    runtime.ways.part_objects = 10           Synchronize in parts of so many objects
    runtime.ways.extra = b"…"                bytes at the end of each message: unknown fields
    plugin.pause(), plugin.go_on()           reads nothing meanwhile
    plugin.half_close("read"|"write"|"both") of the socket
    plugin.send(bytes), plugin.frame(conn, bytes), plugin.message(conn, stream, type, bytes)
    await plugin.ask(method, message)        one call, past all rules; `plugin.answers` are raw
    runtime.forget(made)                     the container goes without a word
    runtime.rivals.append(Rival("90", "rival", adjust=…))   another plug-in
    runtime.cdi_names                        names that the runtime finds in its CDI files

`runtime.log` has each call in order (`Logged`: plug-in, method, seconds, code), `runtime.seen`
the `Plugin`s that ever dialled. Time limits are arguments: `registration_s`, `request_s`; with
`tell_limits=False` Configure does not name them.

`python -m tests.runtime SOCKET` serves for a person until SIGTERM: it plays the life of a pod each
second and prints what its container would get.
"""

from __future__ import annotations

from tests.runtime.hub import Broken
from tests.runtime.plugin import Logged, Plugin, PluginClosed, Status
from tests.runtime.plugin_calls import Failed
from tests.runtime.pods import CreatedContainer, Pod
from tests.runtime.runtime import Rival, Runtime
from tests.runtime.versions import (
    CONTAINERD_1_7_24,
    CONTAINERD_2_1,
    CONTAINERD_2_3,
    CONTAINERD_MAIN,
    CRIO_1_30,
    CRIO_1_34,
    VERSIONS,
    Version,
)
from tests.runtime.ways import as_go, by_bytes, header_first, whole

__all__ = [
    "CONTAINERD_1_7_24",
    "CONTAINERD_2_1",
    "CONTAINERD_2_3",
    "CONTAINERD_MAIN",
    "CRIO_1_30",
    "CRIO_1_34",
    "VERSIONS",
    "Broken",
    "CreatedContainer",
    "Failed",
    "Logged",
    "Plugin",
    "PluginClosed",
    "Pod",
    "Rival",
    "Runtime",
    "Status",
    "Version",
    "as_go",
    "by_bytes",
    "header_first",
    "whole",
]
