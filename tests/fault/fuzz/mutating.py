"""Makes inputs that no sane writer would: by cutting and mixing good ones, or by nasty values.

Equal seeds give equal inputs, so that what failed once fails again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

_NASTY = (
    "null true false 0 -0 -1 1 1.5 1e999 -1e999 NaN Infinity -Infinity 18446744073709551616 "
    "9223372036854775807 -9223372036854775809 1e-400 0x10 01 +1 1_000 "
    '"" "\\ud800" "\\udfff\\ud800" "\\u0000" "../../../etc/passwd" "/dev/../../x" "a/../b" '
    '"GPU-1,GPU-2" "all" "-1" "1e3Ki" "1Ei" "99999999999999999999999" "0-" "0-99999999999" '
    '"0-3,8" "3-1" "0-31:2/4" "\\n" "void" "\\u202e" [] {} [[]] [{}] {"":{}} [null] "'
)
NASTY = tuple(_NASTY.split(" "))
LARGE = (
    "9" * 5000,
    '"' + "x" * 70_000 + '"',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000,
    "[" + "1," * 20_000 + "1]",
    "[" * 100_000,
    '"' + "0-1," * 30_000 + '"',
)
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x5B, 0x5D, 0x7B, 0x7D)
NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 4 << 20, (4 << 20) + 1, 1 << 24, (1 << 24) + 1)
RARELY = 0.01


class Mutator:
    """One stream of inputs."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def mutated(self, corpus: Sequence[bytes]) -> bytes:
        """Return one of these with one to four wounds."""
        data = bytearray(self.random.choice(corpus))
        for _ in range(self.random.randint(1, 4)):
            self._wound(data, corpus)
        return bytes(data)

    def document(self, corpus: Sequence[object]) -> str:
        """Return the text of one of these documents with nasty members in it."""
        text = self._written(self.random.choice(corpus), self.random.choice((0.05, 0.2, 0.5)))
        if self.random.random() < 0.1:
            return self.mutated([text.encode("utf-8", "replace")]).decode(
                "utf-8", "surrogateescape"
            )
        return text

    def _wound(self, data: bytearray, corpus: Sequence[bytes]) -> None:
        rand = self.random
        at = rand.randrange(len(data) + 1)
        kind = rand.randrange(7)
        if kind == 0:
            del data[at : at + rand.choice((1, 1, 4, 100, 1 << 20))]
        elif kind == 1:
            data[at:at] = rand.randbytes(rand.choice((1, 2, 8, 64)))
        elif kind == 2 and at < len(data):
            data[at] = rand.choice(EXTREMES)
        elif kind == 3 and at < len(data):
            data[at] ^= 1 << rand.randrange(8)
        elif kind == 4:
            data[at : at + 4] = rand.choice(NUMBERS).to_bytes(4)
        elif kind == 5:
            end = at + rand.randrange(1, 64)
            data[at:at] = data[at:end] * rand.choice((1, 2, 10))
        else:
            other = rand.choice(corpus)
            cut = rand.randrange(len(other) + 1)
            data[at:] = other[cut:]

    def _nasty(self) -> str:
        return self.random.choice(LARGE if self.random.random() < RARELY else NASTY)

    def _written(self, value: object, share: float) -> str:
        rand = self.random
        if rand.random() < share / 4:
            return self._nasty()
        if isinstance(value, dict):
            members = [
                f"{self._name(str(key), share)}:{self._written(member, share)}"
                for key, member in value.items()
                if rand.random() > share / 6
            ]
            if members and rand.random() < share:
                members.append(rand.choice(members))  # a name twice
            if rand.random() < share:
                members.append(f"{json.dumps(rand.choice(('x', '', 'id')))}:{self._nasty()}")
            return "{" + ",".join(members) + "}"
        if isinstance(value, list):
            members = [self._written(member, share) for member in value]
            members += [self._nasty()] if rand.random() < share else []
            return "[" + ",".join(members * rand.choice((1, 1, 1, 1, 3))) + "]"
        return self._nasty() if rand.random() < share else json.dumps(value)

    def _name(self, name: str, share: float) -> str:
        if self.random.random() < share / 4:
            return self.random.choice([one for one in NASTY if one.startswith('"') and one != '"'])
        return json.dumps(name)
