"""A strict kubelet, as far as device plug-ins see it: real gRPC on real sockets, in a real folder.

    async with FakeKubelet(folder).running() as kubelet:
        ...                                      # a plug-in registers
        resource = await kubelet.resource("nvidia.com/gpu", healthy=8)
        container = await kubelet.admit("pod-1", "main", {"nvidia.com/gpu": 2})
        container.envs, container.devices, container.mounts, container.cdi

It does what the real device manager does, and complains (`kubelet.complaints`, which tests compare
with `[]`) of what a plug-in may not do: an option that differs between `Register` and
`GetDevicePluginOptions`, an id twice, an id of more than 63 characters, a registration while the
stream of the one before is open, two resources that say different things of one key.

`Register` checks version, resource name and file name; dials back for at most ten seconds, asks for
the options, and only then answers; after that it opens `ListAndWatch`. Each list replaces the one
before; the end of a stream makes every device unhealthy and begins the grace period. After each
list and each allocation `kubelet_internal_checkpoint` is written.

`admit_pod` does as admission does, one pod at a time: for each container, init ones first, it
reuses the devices of init containers that have ended by then, splits by NUMA affinity if one is
given, asks for the preferred devices, and allocates. A slow answer holds up every other pod and
every deletion. An error of either call, or too few free devices, is for good: the pod is never
asked for again. `begin` merges what several resources say and asks before a start; an error there
is `NotStarted`, and the container is tried again. `admit` does both for a pod of one container.
`end` frees a pod's devices; its entries leave the checkpoint with the next list or allocation.

What it can be told to do:

| member | what happens |
|---|---|
| `stop()` | ends, and leaves its socket where it is |
| `start()` | removes every socket in the folder, keeps allocations only, makes a new socket |
| `restart()` | both |
| `wipe()` | removes all plug-ins' sockets while it goes on |
| `replace_folder()` | removes the folder and makes it again, with a socket in it |
| `replace_socket()` | another file in place of `kubelet.sock`, behind which it listens |
| `drop(resource)` | cancels one stream |
| `hold_register` | an event: while it is set, `Register` does not answer |
| `closes_old` | a new registration ends the old stream, as kubelets of old; else both go on |
| `half_open` | `Register` answers, and nobody ever opens the stream |
| `at_once` | `Register` answers before it dials, as kubelets up to 1.24 |
| `refuse_version`, `unavailable` | what `Register` answers instead |
| `choice` | ids that are taken before those that the plug-in prefers, as aligned ones are |
| `slow_reader` | seconds between two messages that are read from a stream |

`kubelet.registered` lists what was asked for, `kubelet.lists[resource]` every list that came,
`kubelet.past` every endpoint with the status its stream `ended` with, `kubelet.statuses[resource]`
every pair of capacity and allocatable amount.
"""
