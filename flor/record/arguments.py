"""`--kwargs name=value …` on a script's command line, and the typing of what it gives.

`import flor` takes the option off `sys.argv` before the script's own parser sees it, unless the
script itself has an option called `--kwargs`; `--flor-kwargs` and the environment variable
FLOR_KWARGS always belong to flor.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from flor.errors import ArgumentError

PAIR = re.compile(r"(?P<name>[^\s=-][^\s=]*)=(?P<value>.*)", re.DOTALL)
OWN_OPTION = re.compile(rb"""["']--kwargs["'=]""")
TRUE = {"true", "1", "yes", "on"}
FALSE = {"false", "0", "no", "off"}
SIBLING_FILES = 200


@dataclass(frozen=True)
class Given:
    """What the command line and the environment set, as text."""

    command_line: Mapping[str, str]
    environment: Mapping[str, str]
    mistake: str | None = None  # a `--kwargs` that cannot be read; raised by the first flor.arg

    def get(self, name: str) -> tuple[str, str] | None:
        """The text and its source, or None."""
        if name in self.command_line:
            return self.command_line[name], "kwargs"
        if name in self.environment:
            return self.environment[name], "environment"
        return None


def take(argv: list[str], script: Path | None, environment: str | None) -> Given:
    """Read the flor arguments, and remove them from `argv` in place."""
    options = {"--flor-kwargs"}
    if "--kwargs" in argv and not has_own_option(script):
        options.add("--kwargs")
    pairs: dict[str, str] = {}
    rest: list[str] = argv[:1]
    mistake = None
    index = 1
    while index < len(argv):
        if argv[index] == "--":
            break
        if argv[index] not in options:
            rest.append(argv[index])
            index += 1
            continue
        option = argv[index]
        start = index = index + 1
        while index < len(argv) and (pair := PAIR.fullmatch(argv[index])):
            pairs[pair["name"]] = pair["value"]
            index += 1
        if index == start:
            found = repr(argv[index]) if index < len(argv) else "nothing"
            mistake = f"{option} expects name=value, such as {option} lr=0.01; found {found}"
    rest += argv[index:]
    argv[:] = rest
    from_environment, env_mistake = _parse_environment(environment)
    return Given(pairs, from_environment, mistake or env_mistake)


def has_own_option(script: Path | None) -> bool:
    """Whether the script, or a file beside it, defines an option called --kwargs."""
    if script is None or script.suffix != ".py":
        return False
    try:
        files = sorted(script.parent.glob("*.py"))[:SIBLING_FILES]
        return any(OWN_OPTION.search(path.read_bytes()) for path in {script, *files})
    except OSError:
        return False


def _parse_environment(text: str | None) -> tuple[dict[str, str], str | None]:
    if not text:
        return {}, None
    try:
        words = shlex.split(text)
    except ValueError as error:
        return {}, f"FLOR_KWARGS={text!r} cannot be read: {error}"
    pairs = {}
    for word in words:
        pair = PAIR.fullmatch(word)
        if pair is None:
            return {}, f"FLOR_KWARGS expects name=value pairs; found {word!r}"
        pairs[pair["name"]] = pair["value"]
    return pairs, None


def convert(name: str, text: str, default: Any, source: str = "kwargs") -> Any:
    """The value that `text` means where the default is of a certain type."""
    try:
        return _convert(text, default)
    except (ValueError, SyntaxError, TypeError, KeyError) as error:
        given = f"--kwargs {name}={text}" if source == "kwargs" else f"FLOR_KWARGS {name}={text}"
        raise ArgumentError(
            f"{given}: flor.arg({name!r}, {default!r}) expects {_expected(default)}"
        ) from error


def _convert(text: str, default: Any) -> Any:
    if default is None:
        return _literal_or_text(text)
    if isinstance(default, bool):
        lower = text.strip().lower()
        if lower not in TRUE | FALSE:
            raise ValueError(text)
        return lower in TRUE
    if isinstance(default, str):
        return text
    if isinstance(default, PurePath):
        return type(default)(text)
    if isinstance(default, int) and type(default) is int:
        return int(text)
    if type(default) is float:
        return float(text)
    if isinstance(default, (list, tuple, dict, set, frozenset)):
        return _convert_collection(text, default)
    kind = type(default)
    members = getattr(kind, "__members__", None)
    if members is not None:
        return members[text] if text in members else kind(_literal_or_text(text))
    return kind(_literal_or_text(text))


def _convert_collection(text: str, default: Any) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if isinstance(default, dict):
            raise
        value = [_literal_or_text(part.strip()) for part in text.split(",")]
    if isinstance(default, dict):
        if not isinstance(value, dict):
            raise ValueError(text)
        return value
    if not isinstance(value, (list, tuple, set)):
        value = [value]
    return type(default)(value)


def _literal_or_text(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _expected(default: Any) -> str:
    if isinstance(default, bool):
        return "true or false"
    kind = type(default)
    members = getattr(kind, "__members__", None)
    if members is not None:
        return f"one of {', '.join(members)}"
    article = "an" if kind.__name__[0] in "aeiou" else "a"
    return f"{article} {kind.__name__} such as {default!r}"


def unread(given: Given, read: set[str]) -> Sequence[str]:
    """The names given on the command line that no flor.arg asked for."""
    return [name for name in given.command_line if name not in read]


def from_process(argv: list[str], script: Path | None) -> Given:
    return take(argv, script, os.environ.get("FLOR_KWARGS"))
