"""A library's description to C: a header with checked structs, a source with every symbol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.stubs.arguments import Argument, arguments
from tests.stubs.describe import SCALARS, Each, Get, Library, Member, Record, Symbol

_KINDS = {"i": "STUB_SIGNED", "u": "STUB_UNSIGNED", "f": "STUB_FLOAT", "c": "STUB_CHARS"}


def header(library: Library) -> str:
    """Return the structs, each followed by assertions of its size and of every offset."""
    entries = {record.name: record for record in library.records}
    parts = ["#ifndef STUB_RECORDS_H", "#define STUB_RECORDS_H", "#include <stddef.h>"]
    parts += ["#include <stdint.h>", ""]
    parts += [line for record in library.records for line in _struct(record, entries)]
    return "\n".join([*parts, "#endif", ""])


def _struct(record: Record, entries: Mapping[str, Record]) -> Iterable[str]:
    yield f"struct {record.name} {{"
    at = 0
    for member in sorted(record.members, key=lambda member: member.offset):
        size, align = _measure(member, entries)
        if -(-at // align) * align != member.offset:
            yield f"    uint8_t gap_{at}[{member.offset - at}];"
        array = f"[{member.count}]" if member.count else ""
        yield f"    {_c_type(member.type)} {member.name}{array};"
        at = member.offset + size * (member.count or 1)
    if -(-at // record.align) * record.align != record.size:
        yield f"    uint8_t gap_{at}[{record.size - at}];"
    yield "};"
    name = f"struct {record.name}"
    yield f'_Static_assert(sizeof({name}) == {record.size}, "size of {record.name}");'
    yield f'_Static_assert(_Alignof({name}) == {record.align}, "alignment of {record.name}");'
    for member in record.members:
        where = f"offsetof({name}, {member.name}) == {member.offset}"
        yield f'_Static_assert({where}, "{record.name}.{member.name}");'
    yield ""


def _measure(member: Member, entries: Mapping[str, Record]) -> tuple[int, int]:
    """Return size and alignment of one element."""
    if member.type == "char":
        return 1, 1
    if member.type in SCALARS:
        return SCALARS[member.type][1], SCALARS[member.type][1]
    return entries[member.type].size, entries[member.type].align


def _c_type(name: str) -> str:
    if name == "char":
        return "char"
    return SCALARS[name][0] if name in SCALARS else f"struct {name}"


def source(library: Library) -> str:
    """Return the exported functions; `stub_driver` is the branch that the library plays."""
    names = ", ".join(f'"{symbol.name}"' for symbol in library.symbols)
    parts = [
        '#include "engine.h"',
        '#include "records.h"',
        "#include <stdio.h>",
        "#include <string.h>",
        f"const char *const stub_symbols[] = {{{names}}};",
        f"const int stub_symbol_count = {len(library.symbols)};",
        f'const char *const stub_scenario_env = "{library.scenario_env}";',
        f'const char *const stub_trace_env = "{library.trace_env}";',
        f"const int stub_unsupported = {library.unsupported};",
        f"const int stub_too_small = {library.too_small};",
        f"const int stub_bad_handle = {library.bad_handle};",
    ]
    if library.prototypes:
        parts.append(f'#include "{library.prototypes}"')
    parts += [f"long long {name}({type_});" for type_, name in library.handles.items()]
    if library.version_check:
        parts.append(f"int {library.version_check}(int version);")
    entries = {record.name: record for record in library.records}
    for number, symbol in enumerate(library.symbols):
        parts += _symbol(library, symbol, number, entries)
    return "\n".join([*parts, ""])


def _symbol(
    library: Library, symbol: Symbol, number: int, entries: Mapping[str, Record]
) -> Iterable[str]:
    inputs = arguments(symbol.arguments, library, entries)
    # those that say whom the call is about come first, wherever the prototype has them
    keyed = sorted((a for a in inputs if a.key), key=lambda a: a.name not in library.scope)
    keys = {argument.name: place for place, argument in enumerate(keyed)}
    result = "const char *" if symbol.returns == "text" else "int"
    yield f"{result} {symbol.name}({', '.join(a.c for a in inputs) or 'void'}) {{"
    values = ", ".join(a.key for a in keyed)
    scope = sum(1 for name in library.scope if name in keys)
    yield f"    struct call call = {{.symbol = {number}, .key_count = {len(keys)},"
    yield f"                        .scope_count = {scope}, .keys = {{{values}}}}};"
    for place, out in enumerate(a for a in inputs if a.bytes):
        size = _size(out, symbol.answer)
        yield f"    call.outs[{place}].at = {out.name}, call.outs[{place}].bytes = {size};"
    over = "NULL" if symbol.returns == "text" else "call.code"
    yield f"    if (stub_enter(&call)) return {over};"
    versioned = next((a for a in inputs if a.record and a.record.versioned), None)
    if versioned is not None and versioned.record and versioned.record.word:
        word = versioned.record.word
        yield f"    if ({versioned.name}->version != {word}) return {library.bad_version};"
    elif versioned is not None and library.version_check:
        yield f"    int version_code = {library.version_check}({versioned.name}->version);"
        yield "    if (version_code) return version_code;"
    yield from _answer(symbol, inputs, keys)
    yield "}"


def _size(out: Argument, answer: object) -> str:
    if isinstance(answer, Each) and answer.into == out.name:
        return f"{out.name} ? sizeof *{out.name} * (size_t)*{answer.count} : 0"
    return out.bytes


def _answer(symbol: Symbol, inputs: list[Argument], keys: Mapping[str, int]) -> Iterable[str]:
    answer = symbol.answer
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, Each):
        into = next(a for a in inputs if a.name == answer.into)
        yield from _fills("items", _members(into, answer.members, keys))
        prefix = _path(answer.prefix, keys)
        yield f'    return stub_each(&call, "{prefix}", {into.name}, sizeof *{into.name},'
        yield f"                     (int *){answer.count}, items, {len(answer.members)});"
    elif symbol.returns == "text":
        yield "    static char text[STUB_VALUE];"
        yield from _fills("from", [_fill(answer["return"], keys, "0", "1", 0, "c")])
        yield "    return stub_string(&call, from, text, sizeof text) ? NULL : text;"
    else:
        yield from _plain(answer, inputs, keys)


def _plain(
    answer: Mapping[str, Get], inputs: list[Argument], keys: Mapping[str, int]
) -> Iterable[str]:
    yield "    int code = 0;"
    scalars = {a.name: a for a in inputs if a.bytes and a.record is None}
    for name, get in answer.items():
        target = scalars.get(name)
        if target is None:
            continue
        kind = "c" if target.room else target.type[0]
        yield "    {"
        yield from _fills("from", [_fill(get, keys, "0", f"sizeof *{name}", 0, kind)])
        call = f"stub_string(&call, from, {name}, (size_t){target.room})"
        yield f"    code = {call if target.room else f'stub_fill(&call, {name}, from, 1)'};"
        yield "    if (code) return code;"
        yield "    }"
    members = {name: get for name, get in answer.items() if name not in scalars}
    if members:
        struct = next(a for a in inputs if a.record is not None)
        yield from _fills("members", _members(struct, members, keys))
        yield f"    code = stub_fill(&call, {struct.name}, members, {len(members)});"
    yield "    return code;"


def _members(into: Argument, members: Mapping[str, Get], keys: Mapping[str, int]) -> list[str]:
    if into.record is None:  # an array of numbers
        return [_fill(get, keys, "0", f"sizeof *{into.name}", 0, "i") for get in members.values()]
    record, rows = into.record, []
    for name, get in members.items():
        member = record.member(name)
        where = f"offsetof(struct {record.name}, {name})"
        size = f"sizeof(((struct {record.name} *)0)->{name}{'[0]' if member.count else ''})"
        rows.append(_fill(get, keys, where, size, member.count, member.type[0]))
    return rows


def _fills(name: str, rows: list[str]) -> Iterable[str]:
    yield f"    static const struct fill {name}[] = {{"
    yield from (f"        {row}," for row in rows)
    yield "    };"


def _fill(get: Get, keys: Mapping[str, int], where: str, size: str, count: int, kind: str) -> str:
    otherwise = "NULL" if get.otherwise is None else f'"{get.otherwise}"'
    return (
        f'{{"{_path(get.path, keys)}", {otherwise}, {where}, {size}, {count}, {_KINDS[kind]},'
        f" {get.base}, {get.part}, '{get.separator}', {get.scale}}}"
    )


def _path(path: str, keys: Mapping[str, int]) -> str:
    for name, place in keys.items():
        path = path.replace(f"{{{name}}}", f"{{{place}}}")
    return path
