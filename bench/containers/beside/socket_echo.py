"""Answers each run of bytes by as many as were wished: `python -m … SOCKET ASKED ANSWERED`.

The least that an answer over a socket costs: two system calls in each process.
"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    """Serve one connection until it ends."""
    path, requests, answered = sys.argv[1], int(sys.argv[2]), bytes(int(sys.argv[3]))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        connection, _ = listening.accept()
        with connection:
            while len(connection.recv(requests, socket.MSG_WAITALL)) == requests:
                connection.sendall(answered)


if __name__ == "__main__":
    main()
