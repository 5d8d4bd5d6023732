"""One kind of object followed: listed once, then watched, for as long as the agent runs.

`runner.Watch` drives the pure `machine` until it is cancelled. What is read of an object, and what
is made of it, is a `wire.Kind`; `agent.kube.objects` has those of the agent.
"""
