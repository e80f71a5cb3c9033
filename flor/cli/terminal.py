"""What reaches the terminal: text that cannot command it.

Journals, branches and files come from elsewhere. A terminal obeys control characters in them, and
bidirectional marks make text look like another; both are shown as escapes. A pipe or a file obeys
nothing: what is meant to be exact (`flor show --code > x.py`) is written there as it is.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.text import Text

# C0, DEL, C1; the marks that turn the direction of text; line separators; lone surrogates
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LINE_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def clean(text: str, keep: str = "\n\t") -> str:
    """The text with all that a terminal might obey as escapes (`\\x1b`), except `keep`."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def clean_json(text: str) -> str:
    """The same for JSON, which means what it meant before."""
    return _UNSAFE.sub(lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text)


def encodable(text: str) -> str:
    """The text with lone surrogates as escapes: what UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """A message whose lines are joined, cleaned."""
    lines = (line.strip() for line in text.replace("\r", "\n").split("\n"))
    return clean(" ".join(line for line in lines if line), keep="")


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print cleaned text."""
    click.echo(clean(text), nl=nl, err=err)


def write_exact(text: str) -> None:
    """Write to standard output: byte for byte, unless that is a terminal."""
    if sys.stdout.isatty():
        echo(text, nl=False)
    else:
        click.echo(encodable(text).encode(), nl=False)


def styled(text: str, style: str = "", keep: str = "") -> Text:
    """Cleaned text for rich, which reads no markup in it."""
    from rich.text import Text

    return Text(clean(text, keep), style)


def line(*parts: tuple[str, str]) -> Text:
    """(text, style) after each other, cleaned."""
    from rich.text import Text

    return Text.assemble(*((clean(text, keep=""), style) for text, style in parts))


def console() -> Any:
    """rich's console, on standard output."""
    from rich.console import Console

    made = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        made.width = 10_000  # a pipe is as wide as it needs to be
    return made


def colored_diff(text: str) -> str:
    """git's plain diff, cleaned, with the colors of added and removed lines."""
    if "NO_COLOR" in os.environ:
        return clean(text)
    lines, in_hunk = [], False
    for line in clean(text).split("\n"):
        if line.startswith(("@@", "diff --git ")):
            in_hunk = line.startswith("@@")
        color = _LINE_COLORS.get(line[:1]) if in_hunk else None
        bold = not in_hunk and bool(line)
        lines.append(click.style(line, fg=color, bold=bold or None) if color or bold else line)
    return "\n".join(lines)


def make_output_safe() -> None:
    """Let characters that the terminal's encoding does not have be escapes, not errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
