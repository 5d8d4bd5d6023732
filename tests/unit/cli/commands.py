"""Every command of both programs, as their parsers have them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import msgspec

from agent.cli.main import main as agent_main
from agent.cli.parser import build_parser as agent_parser
from plugins.scheduler.cli import build_parser as scheduler_parser
from plugins.scheduler.cli import main as scheduler_main

INPUTS = ("FILE", "PATH")  # metavars of files that are read
OUTPUTS = ("DIR", "OUT")  # and of those that are written
WRITTEN = ("--bundle",)


class Command(msgspec.Struct, frozen=True):
    """One command without subcommands."""

    program: str
    words: tuple[str, ...]
    parser: argparse.ArgumentParser
    main: Callable[[list[str]], int]

    def __str__(self) -> str:
        return " ".join((self.program, *self.words))

    @property
    def options(self) -> list[argparse.Action]:
        """Return the options and positionals, without --help."""
        return [
            action
            for action in self.parser._actions
            if not isinstance(action, (argparse._HelpAction, argparse._VersionAction))
        ]

    @property
    def positionals(self) -> list[argparse.Action]:
        return [action for action in self.options if not action.option_strings]

    @property
    def inputs(self) -> list[argparse.Action]:
        """Return the arguments that name a file to read."""
        return [action for action in self.options if is_input(action)]

    @property
    def outputs(self) -> list[argparse.Action]:
        return [action for action in self.options if is_output(action)]

    def arguments(self, sample: str, instead: argparse.Action, value: str) -> list[str]:
        """Return a command line in which one argument has this value; `sample` is a good file."""
        words = [*self.words]
        if instead.option_strings:
            words += [instead.option_strings[-1], value]
        for action in self.options:
            if action is instead:
                if not action.option_strings:
                    words.append(value)
            elif not action.option_strings and action.nargs != "?":
                words.append(_good_value(action, sample))
            elif action.required and action.option_strings:
                words += [action.option_strings[-1], _good_value(action, sample)]
        return words


def is_output(action: argparse.Action) -> bool:
    return action.metavar in OUTPUTS or bool(set(action.option_strings) & set(WRITTEN))


def is_input(action: argparse.Action) -> bool:
    named = " ".join((action.dest, str(action.help or "")))
    is_file = action.metavar in INPUTS or "file" in named or "folder" in named
    return is_file and takes_value(action) and not is_output(action) and not action.choices


def takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _good_value(action: argparse.Action, sample: str) -> str:
    if action.choices:
        return str(next(iter(action.choices)))
    return sample


def _leaves(
    program: str,
    parser: argparse.ArgumentParser,
    main: Callable[[list[str]], int],
    words: tuple[str, ...] = (),
) -> Iterator[Command]:
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for name, child in group.choices.items():
            yield from _leaves(program, child, main, (*words, name))
    if not groups:
        yield Command(program, words, parser, main)


COMMANDS = (
    *_leaves("xpu-agent", agent_parser(), agent_main),
    *_leaves("xpu-scheduler", scheduler_parser(), scheduler_main),
)
