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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from flor.errors import ArgumentError

PAIR = re.compile(r"(?P<name>[^\s=-][^\s=]*)=(?P<value>.*)", re.DOTALL)
OWN_OPTION = re.compile(rb"""\w*(?:argument|option)\s*\([^()]*?["']--kwargs["']""", re.IGNORECASE)
TRUE = {"true", "1", "yes", "on"}
FALSE = {"false", "0", "no", "off"}
MAX_FILES = 500  # of a project are searched for an option of that name
SKIPPED = ("site-packages", "node_modules", "venv", "__pycache__")


@dataclass(frozen=True)
class Given:
    """What the command line and the environment set, as text."""

    command_line: Mapping[str, str]
    environment: Mapping[str, str]
    mistake: str | None = None  # a `--kwargs` that cannot be read; raised by the first flor.arg
    notes: tuple[str, ...] = ()  # what the user should know

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
    notes: tuple[str, ...] = ()
    if any(word.split("=")[0] == "--kwargs" for word in argv):
        owner = option_owner(script)
        if owner is None:
            options.add("--kwargs")
        elif owner != script:
            notes = (
                f"--kwargs is left to the script, because {owner} defines an option of that name; "
                "--flor-kwargs sets flor's arguments",
            )
    pairs, rest, mistake = _split(argv, options)
    argv[:] = rest
    from_environment, env_mistake = _parse_environment(environment)
    return Given(pairs, from_environment, mistake or env_mistake, notes)


def _split(argv: list[str], options: set[str]) -> tuple[dict[str, str], list[str], str | None]:
    """The pairs after the options, the words that are not flor's, and what is wrong."""
    pairs: dict[str, str] = {}
    rest: list[str] = argv[:1]
    mistake = None
    index = 1
    while index < len(argv) and argv[index] != "--":
        option, joined, first = argv[index].partition("=")
        if option not in options:
            rest.append(argv[index])
            index += 1
            continue
        words = [first] if joined else []  # --kwargs=lr=0.01
        index += 1
        while index < len(argv) and PAIR.fullmatch(argv[index]):
            words.append(argv[index])
            index += 1
        found = [PAIR.fullmatch(word) for word in words]
        if not found or not all(found):
            wrong = words[:1] or argv[index : index + 1]
            seen = repr(wrong[0]) if wrong else "nothing"
            mistake = f"{option} expects name=value, such as {option} lr=0.01; found {seen}"
        pairs |= {pair["name"]: pair["value"] for pair in found if pair}
    return pairs, rest + argv[index:], mistake


def option_owner(script: Path | None) -> Path | None:
    """The file that defines an option called --kwargs: the script, or one that it may import."""
    if script is None or script.suffix != ".py":
        return None
    try:
        text = script.read_bytes()
        if OWN_OPTION.search(text):
            return script
        mentioned = set(re.findall(rb"\w+", text))
        for path in _project_files(script.parent):
            names = {path.stem.encode(), path.parent.name.encode()}
            if names & mentioned and path != script and OWN_OPTION.search(path.read_bytes()):
                return path
    except OSError:
        pass
    return None


def _project_files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in SKIPPED]
        for name in files:
            if name.endswith(".py"):
                count += 1
                if count > MAX_FILES:
                    return
                yield Path(place, name)


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
