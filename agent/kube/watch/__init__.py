"""One kind of object followed: listed once, then watched, for as long as the agent runs.

`runner.Watch(resource, api, decode=…, on_change=…, clock=…, field_selector="", namespace="",
sleep=asyncio.sleep, uniform=random.uniform)` drives the pure `machine` until its `run()` is
cancelled. `decode(raw: bytes | msgspec.Raw) -> T` raises `ParseError` for what it cannot read.
`on_change(Mapping[str, T])` gets the whole view, by `namespace/name` or `name`: once when the
first list is complete, then whenever a value differs. `state` (a frozen `WatchState`) says how it
does; `await settled()` ends when the first list is complete or the server said that there is none
to be had.
"""
