"""Lists and watches one kind of object.

`reflector.Reflector` runs the pure state machine of `machine` until it is cancelled. A
`decoder.WatchedKind` says what is read of an object and how it becomes a value;
`agent.kube.resources` has those of the agent.
"""
