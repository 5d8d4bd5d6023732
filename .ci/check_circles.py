"""Refuse circles of files: modules of agent/ and plugins/ that import each other, directly or not.

import-linter orders packages; this check orders files. Every import counts, also one inside a
function, one under TYPE_CHECKING, and one that a string names: where two
files need each other, even for a type, the type belongs into a third one below both.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agent", "plugins")
Graph = Mapping[str, set[str]]


def find_modules(root: Path) -> dict[str, Path]:
    """Return the files of the packages by their modules' names."""
    paths = (path for package in PACKAGES for path in root.joinpath(package).rglob("*.py"))
    return {_module_name(path.relative_to(root)): path for path in paths}


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_targets(text: str, package: str, modules: Collection[str]) -> Iterator[str]:
    """Yield every dotted name that a module may import, names of its strings included.

    A string counts too: it may be loaded by `import_module`, or be a quoted annotation.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _module_of(node.value.partition(":")[0], modules)


def _module_of(name: str, modules: Collection[str]) -> str:
    """Return the module that a dotted name lies in, "" if it lies in none."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parent = package.split(".")
    base = parent[: len(parent) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return which module imports which; packages without code of their own do not count."""
    paths = find_modules(root)
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        targets = set(import_targets(path.read_text(encoding="utf-8"), package, paths))
        graph[module] = {target for target in targets & paths.keys() if target != module}
    return graph


def find_circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module, sorted (Tarjan)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in sorted(graph.get(module, ())):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                circles.append(sorted(stack[start:]))
            del stack[start:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return sorted(circles)


def main() -> int:
    """Print every circle; return 1 if there is one."""
    graph = import_graph(ROOT)
    sys.setrecursionlimit(len(graph) + 1000)
    circles = find_circles(graph)
    for circle in circles:
        print("circle of files: " + " ".join(circle))
    if not circles:
        print(f"{len(graph)} modules import each other without a circle")
    return 1 if circles else 0


if __name__ == "__main__":
    sys.exit(main())
