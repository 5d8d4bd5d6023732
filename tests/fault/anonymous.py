"""Nobody: the credentials of tests of what needs none."""

from __future__ import annotations


class Anonymous:
    """No header: who we are is in the client certificate, or nobody asks."""

    read_errors = 0
    problem = ""

    async def authorization(self) -> str | None:
        """Return nothing."""
        return None

    def expire(self) -> None:
        """Do nothing: there is nothing to read again."""
