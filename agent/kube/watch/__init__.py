"""Lists and watches one kind of object; `reflector.Reflector` drives the pure `machine`.

`runner.Watch` drives the pure `machine` until it is cancelled. What is read of an object, and what
is made of it, is a `wire.Kind`; `agent.wire_formats` has those of the agent.
"""
