"""Limit of `cluster.first_device`: `... URL CA_FILE TOKEN_FILE BODY`; one apply, nothing else."""

from __future__ import annotations

import http.client
import ssl
import sys
from urllib.parse import urlsplit


def main() -> None:
    """Apply and end."""
    url, ca_file, token_file, body = sys.argv[1:5]
    where = urlsplit(url)
    context = ssl.create_default_context(cafile=ca_file)
    connection = http.client.HTTPSConnection(str(where.hostname), where.port, context=context)
    headers = {
        "Authorization": f"Bearer {_read(token_file).decode()}",
        "Content-Type": "application/apply-patch+yaml",
    }
    connection.request("PATCH", f"{where.path}?{where.query}", _read(body), headers)
    if connection.getresponse().status >= 300:
        sys.exit(1)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib would be one more import
        return file.read()


if __name__ == "__main__":
    main()
