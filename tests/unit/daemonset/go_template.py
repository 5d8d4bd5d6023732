"""The part of Go's text/template, and of Helm's functions, that the chart uses.

Whatever else a template contains raises `TemplateError`: the chart stays within this part.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

_ACTION = re.compile(
    r"\{\{(-\s)?\s*(/\*.*?\*/|(?:`[^`]*`|\"(?:\\.|[^\"\\])*\"|[^`\"])*?)\s*(-)?\}\}", re.S
)
_TOKEN = re.compile(
    r"\s*(?:(?P<text>`[^`]*`|\"(?:\\.|[^\"\\])*\")|(?P<number>-?\d+(?=[\s)|]|$))"
    r"|(?P<mark>:=|=|\||\(|\))|(?P<name>\$?[\w]*(?:\.[\w]+)*\.?))"
)
_BLOCKS = ("if", "range", "with", "define")


class TemplateError(Exception):
    """The template is wrong, or uses what this module does not have."""


@dataclass
class Block:
    """`if`, `range`, `with` or `define` with what it encloses."""

    keyword: str
    head: str
    body: list[Any] = field(default_factory=list)
    other: list[Any] = field(default_factory=list)  # after `else`


def parse(source: str) -> list[Any]:
    """Return texts, actions and blocks in their order."""
    root: list[Any] = []
    stack: list[tuple[Block | None, list[Any]]] = [(None, root)]
    for kind, content in _pieces(source):
        target = stack[-1][1]
        word, _, rest = content.partition(" ")
        if kind == "text":
            target.append(content)
        elif word in _BLOCKS:
            block = Block(word, rest)
            target.append(block)
            stack.append((block, block.body))
        elif word in ("else", "end"):
            ended, _ = stack.pop()
            if ended is None:
                raise TemplateError(f"{word} without a block")
            if word == "else":
                stack.append(_else_branch(ended, rest))
        elif not content.startswith("/*"):
            target.append(("action", content))
    if len(stack) != 1:
        raise TemplateError("a block without an end")
    return root


def _else_branch(block: Block, rest: str) -> tuple[Block, list[Any]]:
    """Return the block that `else` opens; `else if` opens one that ends with the outer one."""
    if not rest.startswith("if "):
        return block, block.other
    inner = Block("if", rest.removeprefix("if "))
    block.other.append(inner)
    return inner, inner.body


def _pieces(source: str) -> Iterator[tuple[str, str]]:
    position, trims = 0, False
    for match in _ACTION.finditer(source):
        text = source[position : match.start()]
        text = text.lstrip() if trims else text
        yield "text", text.rstrip() if match[1] else text
        yield "action", match[2].strip()
        position, trims = match.end(), bool(match[3])
    rest = source[position:]
    yield "text", rest.lstrip() if trims else rest


class Renderer:
    """Executes templates; `define`d ones are shared."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._trees = {name: parse(source) for name, source in sources.items()}
        self._defined: dict[str, list[Any]] = {
            _literal(block.head): block.body
            for tree in self._trees.values()
            for block in tree
            if isinstance(block, Block) and block.keyword == "define"
        }

    def render(self, name: str, root: Any) -> str:
        """Return the output of one template."""
        return self._run(self._trees[name], root, {"$": root})

    def _run(self, tree: list[Any], dot: Any, variables: dict[str, Any]) -> str:
        return "".join(self._step(one, dot, variables) for one in tree)

    def _step(self, one: Any, dot: Any, variables: dict[str, Any]) -> str:
        if isinstance(one, str):
            return one
        if isinstance(one, Block):
            return self._block(one, dot, variables)
        content = one[1]
        name, mark, pipeline = content.partition(":=")
        if mark and re.fullmatch(r"\$\w+\s*", name):
            variables[name.strip()] = self._value(pipeline, dot, variables)
            return ""
        return _printed(self._value(content, dot, variables))

    def _block(self, block: Block, dot: Any, variables: dict[str, Any]) -> str:
        if block.keyword == "define":
            return ""
        value = self._value(block.head, dot, variables)
        if not value:
            return self._run(block.other, dot, dict(variables))
        if block.keyword == "range":
            return "".join(self._run(block.body, item, dict(variables)) for item in value)
        return self._run(block.body, value if block.keyword == "with" else dot, dict(variables))

    def _value(self, text: str, dot: Any, variables: dict[str, Any]) -> Any:
        tokens = list(_tokens(text))
        value, rest = self._pipeline(tokens, dot, variables)
        if rest:
            raise TemplateError(f"not understood: {text}")
        return value

    def _pipeline(
        self, tokens: list[tuple[str, str]], dot: Any, variables: dict[str, Any]
    ) -> tuple[Any, list[tuple[str, str]]]:
        piped: tuple[Any, ...] = ()
        while True:
            words: list[Any] = []
            while tokens and tokens[0] not in (("mark", "|"), ("mark", ")")):
                if tokens[0] == ("mark", "("):
                    inner, rest = self._pipeline(tokens[1:], dot, variables)
                    if not rest or rest[0] != ("mark", ")"):
                        raise TemplateError("a parenthesis is open")
                    words.append(lambda inner=inner: inner)
                    tokens = rest[1:]
                else:
                    words.append(tokens[0])
                    tokens = tokens[1:]
            value = self._command(words, piped, dot, variables)
            if not tokens or tokens[0] == ("mark", ")"):
                return value, tokens
            piped, tokens = (value,), tokens[1:]

    def _command(
        self, words: list[Any], piped: tuple[Any, ...], dot: Any, variables: dict[str, Any]
    ) -> Any:
        if not words:
            raise TemplateError("an empty command")
        first, *others = words
        arguments = [self._operand(word, dot, variables) for word in others]
        kind = first[0] if isinstance(first, tuple) else ""
        if kind == "name" and first[1] in _FUNCTIONS:
            return _FUNCTIONS[first[1]](*arguments, *piped)
        if kind == "name" and first[1] == "include":
            name, scope = arguments
            return self._run(self._defined[name], scope, {"$": scope})
        value = self._operand(first, dot, variables)
        if callable(value):
            return value(*arguments, *piped)
        if arguments or piped:
            raise TemplateError(f"no function: {first}")
        return value

    def _operand(self, word: Any, dot: Any, variables: dict[str, Any]) -> Any:
        if callable(word):
            return word()
        kind, text = word
        if kind == "text":
            return _literal(text)
        if kind == "number":
            return int(text)
        if text in ("true", "false"):
            return text == "true"
        if text == ".":
            return dot
        head, *path = text.split(".")
        if head.startswith("$"):
            if head not in variables:
                raise TemplateError(f"no variable: {head}")
            value = variables[head]
        elif head == "":
            value = dot
        else:
            raise TemplateError(f"no function: {text}")
        for key in path:
            value = value[key] if isinstance(value, Mapping) and key in value else None
        return value


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position or match.lastgroup is None:
            raise TemplateError(f"not understood: {text[position:]}")
        yield match.lastgroup, match[match.lastgroup]
        position = match.end()
        while position < len(text) and text[position].isspace():
            position += 1


def _literal(text: str) -> str:
    text = text.strip()
    if text.startswith("`"):
        return text[1:-1]
    return str(yaml.safe_load(text))


def _printed(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False, width=10**6).removesuffix("\n")


def _indent(width: int, text: str) -> str:
    return "\n" + "\n".join(" " * width + line for line in text.split("\n"))


def _set(target: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    target[key] = value
    return target


def merge_overwrite(target: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in source.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            merge_overwrite(old, value)
        else:
            target[key] = copy.deepcopy(value)
    return target


def _printf(form: str, *values: Any) -> str:
    return form % values


def _last_of(values: tuple[Any, ...], ends: Callable[[Any], bool]) -> Any:
    return next((value for value in values if ends(value)), values[-1])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *values: _last_of(values, lambda value: not value),
    "or": lambda *values: _last_of(values, bool),
    "not": lambda value: not value,
    "eq": lambda one, *others: any(one == other for other in others),
    "ne": lambda one, other: one != other,
    "default": lambda fallback, value: value or fallback,
    "dict": lambda *words: dict(zip(words[::2], words[1::2], strict=True)),
    "index": lambda value, key: value[key],
    "int": int,
    "mergeOverwrite": merge_overwrite,
    "nindent": _indent,
    "fromYaml": yaml.safe_load,
    "printf": _printf,
    "quote": lambda value: f'"{value}"',
    "regexSplit": lambda pattern, text, count: re.split(pattern, text, maxsplit=max(count, 0)),
    "set": _set,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "ternary": lambda yes, no, value: yes if value else no,
    "toYaml": _to_yaml,
    "trim": str.strip,
}
