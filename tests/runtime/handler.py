"""A handler of the runtime that is put together of functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agent.snapshot.container import Adjustment, HookRequest, RuntimeView


class FunctionHandler:
    """Implements `agent.nri.runtime_view.RuntimeHandler` by one function each."""

    def __init__(
        self,
        adjust: Callable[[HookRequest], Adjustment | Awaitable[Adjustment]],
        view_changed: Callable[[RuntimeView], None] = lambda _: None,
    ) -> None:
        self.on_request = adjust
        self._view_changed = view_changed

    def adjust(self, request: HookRequest) -> Adjustment | Awaitable[Adjustment]:
        """Return what the function returns."""
        return self.on_request(request)

    def view_changed(self, view: RuntimeView) -> None:
        """Pass the view on."""
        self._view_changed(view)
