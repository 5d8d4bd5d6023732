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
    with open(token_file) as token, open(body, "rb") as data:
        headers = {
            "Authorization": f"Bearer {token.read()}",
            "Content-Type": "application/apply-patch+yaml",
        }
        connection.request("PATCH", f"{where.path}?{where.query}", data.read(), headers)
    if connection.getresponse().status >= 300:
        sys.exit(1)


if __name__ == "__main__":
    main()
