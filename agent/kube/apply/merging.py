"""Merge patches: for servers without apply, and where a list is everybody's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.kube.apply.compare import KEYED, Keyed, Path, same, same_at

Dict = dict[str, object]


def merge_patch(
    wanted: Mapping[str, object],
    stored: object,
    whole: frozenset[str] = frozenset(),
    keyed: Keyed = KEYED,
    at: Path = (),
) -> Dict:
    """Return what changes `stored` into what is wanted; empty if it is that already.

    Members of `wanted` that are `None` are removed. In the top-level sections named by `whole`
    all that is not wanted is removed too; elsewhere what others wrote stays. Lists in `keyed`
    keep the entries of others.
    """
    have = stored if isinstance(stored, Mapping) else {}
    patch: Dict = {}
    for key, value in wanted.items():
        path = (*at, f"f:{key}")
        there = have.get(key)
        if isinstance(value, Mapping):
            inner = merge_patch(value, there, whole, keyed, path)
            if inner or not (there is None or isinstance(there, Mapping)):
                patch[key] = inner
        elif path in keyed and isinstance(value, list):
            merged = with_entries(value, there, keyed[path])
            if not same(merged, there):
                patch[key] = merged
        elif not same_at(path, value, there):
            patch[key] = value
    if at and at[0][2:] in whole:
        patch |= {key: None for key in have if key not in wanted}
    return patch


def with_entries(wanted: list[object], stored: object, key: str) -> list[object]:
    """Return the stored list with the wanted entries in the place of those of the same name."""
    names = [entry.get(key) for entry in wanted if isinstance(entry, Mapping)]
    kept = [
        entry
        for entry in (stored if isinstance(stored, list) else [])
        if isinstance(entry, Mapping) and entry.get(key) not in names
    ]
    return [*kept, *wanted]


def unwanted(wanted: object, stored: object, at: Path = ()) -> Iterator[Path]:
    """Yield the members that are stored and not wanted, of mappings at any depth."""
    want = wanted if isinstance(wanted, Mapping) else {}
    for key, there in stored.items() if isinstance(stored, Mapping) else ():
        path = (*at, f"f:{key}")
        if want.get(key) is None:
            yield path
        elif isinstance(want[key], Mapping):
            yield from unwanted(want[key], there, path)


def nulls(paths: Iterable[Path]) -> Dict:
    """Return the merge patch that removes these members."""
    patch: Dict = {}
    for path in paths:
        below: Dict = patch
        for member in path[:-1]:
            inner = below.setdefault(member[2:], {})
            assert isinstance(inner, dict)  # noqa: S101 - no place lies within another one
            below = inner
        below[path[-1][2:]] = None
    return patch
