"""The commands. Each imports what it needs when it runs, so that `flor --help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flor.config import LARGEST
from flor.errors import FlorError

if TYPE_CHECKING:
    from flor.config import Settings

F = TypeVar("F", bound=Callable[..., None])

TO_STDOUT = "-"
RUN_HELP = """

RUN is an id, a unique beginning or end of one, `latest`, or -1, -2, … counted from the newest."""


class Commands(click.Group):
    """Lists commands in the order of a user's day, and suggests near names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        import difflib

        if args and args[0] not in self.commands:
            near = difflib.get_close_matches(args[0], self.commands, 1)
            hint = f" Did you mean `{ctx.command_path} {near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class RunName(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A run, with completion from the project."""

    name = "run"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        from click.shell_completion import CompletionItem

        from flor import config

        try:
            ids = sorted((path.name for path in config.load().runs_dir.iterdir()), reverse=True)
        except (OSError, FlorError):
            ids = []
        names = ["latest", *_typeable(ids)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class LoggedName(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A logged name, with completion from the project."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        from click.shell_completion import CompletionItem

        from flor.store.packs import names
        from flor.store.project import opened

        try:
            with opened() as project:
                found = sorted(names(project.db))
        except (OSError, FlorError):
            found = []
        return [CompletionItem(name) for name in _typeable(found) if name.startswith(incomplete)]


def _typeable(names: list[str]) -> list[str]:
    """Those that a shell can show and complete."""
    from flor.cli.terminal import clean

    return [name for name in names if clean(name, keep="") == name]


def output_options(command: F) -> F:
    """The forms in which a table can be had."""
    file: dict[str, Any] = {"metavar": "[FILE]", "is_flag": False, "flag_value": TO_STDOUT}
    for option in (
        click.option(
            "-n", "--limit", type=click.IntRange(1), default=40, help="Rows printed [40]."
        ),
        click.option("--parquet", metavar="FILE", help="Write a Parquet file."),
        click.option("--json", "as_json", **file, help="Write JSON rows."),
        click.option("--csv", **file, help="Write CSV."),
    ):
        command = option(command)
    return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `import flor` in a script; `flor COMMAND --help` tells more.",
)
@click.version_option(
    package_name="flor-hindsight", prog_name="flor", message="%(prog)s %(version)s"
)
def app() -> None:
    """Hindsight logging: every run of every version in one table."""


class Amount(click.FloatRange):
    """A number in a range, which NaN is not."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if found != found:  # noqa: PLR0124 - NaN is not itself
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


@app.command()
@click.option("-n", "--limit", type=click.IntRange(1), help="Runs listed [20; with --json: all].")
@click.option("--all", "everything", is_flag=True, help="All runs, however many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runs(limit: int | None, everything: bool, as_json: bool) -> None:
    """List the newest runs with their arguments and newest values.

    The oldest of them comes first, the newest last. A run in progress took what it took so far.
    """
    from flor.cli import listing

    if limit is None and not everything and not as_json:
        limit = 20
    listing.runs(_settings(), None if everything else limit, as_json=as_json)


@app.command(
    help=f"Show one run: arguments, metrics, environment, code and what changed.{RUN_HELP}"
)
@click.argument("run", type=RunName(), default="latest")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--code", is_flag=True, help="Print the script as it ran.")
def show(run: str, as_json: bool, code: bool) -> None:
    from flor.cli import listing

    listing.show(_settings(), run, as_json=as_json, code=code)


@app.command()
@click.argument("names", nargs=-1, type=LoggedName())
@click.option(
    "--where", metavar="SQL", help='A condition over the table: "lr > 0.1 and acc > 0.9".'
)
@output_options
def dataframe(
    names: tuple[str, ...],
    where: str | None,
    csv: str | None,
    as_json: str | None,
    parquet: str | None,
    limit: int,
) -> None:
    """Print one table over all runs, a column for each of NAMES.

    Without NAMES: one row a run, with its arguments and what it logged outside of loops.
    """
    from flor.cli import tables

    if sum(form is not None for form in (csv, as_json, parquet)) > 1:
        raise click.UsageError("choose one of --csv, --json and --parquet")
    names, csv = _name_or_file(names, csv)
    names, as_json = _name_or_file(names, as_json)
    frame = tables.query(_settings(), names, where)
    tables.write(frame, csv=csv, json=as_json, parquet=parquet, limit=limit)


@app.command()
@click.argument("query")
@output_options
def sql(query: str, csv: str | None, as_json: str | None, parquet: str | None, limit: int) -> None:
    """Answer one SQL QUERY, read-only.

    There are runs, versions, args, logs, loops, data, and frame: the table that `flor dataframe`
    gives for the logged names that the query mentions.

    Example: flor sql "select lr, max(acc) from frame group by lr"
    """
    from flor.cli import tables

    frame = tables.sql(_settings(), query)
    tables.write(frame, csv=csv, json=as_json, parquet=parquet, limit=limit)


@app.command(help=f"Show what changed in the code from one run to another.{RUN_HELP}")
@click.argument("old", type=RunName())
@click.argument("new", type=RunName())
@click.option("--stat", is_flag=True, help="Only which files changed, and how much.")
def diff(old: str, new: str, stat: bool) -> None:
    from flor.cli import listing

    listing.diff(_settings(), old, new, stat=stat)


@app.command()
@click.option("--remote", metavar="NAME", help="Only this remote; default: all.")
@click.option("--push", is_flag=True, help="Push the branch afterwards.")
@click.option("--full", is_flag=True, help="Read every journal again, closed ones too.")
def sync(remote: str | None, push: bool, full: bool) -> None:
    """Exchange runs with the clones of this repository.

    Fetches the flor branch, reads the runs that others pushed into the database, and puts runs on
    the branch that were killed before they could do so themselves.
    """
    from flor.cli import syncing

    syncing.sync(_settings(), remote, push=push, full=full)


@app.command(
    help=f"List the checkpoints of a run; without RUN, of the newest run that has any.{RUN_HELP}"
)
@click.argument("run", type=RunName(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def checkpoints(run: str | None, as_json: bool) -> None:
    from flor.cli import states

    states.checkpoints(_settings(), run, as_json=as_json)


@app.group(cls=Commands, invoke_without_command=True)
@click.option("--run", type=RunName(), help="Only this run.")
@click.option("--verify", is_flag=True, help="Read every object, and say which are damaged.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def objects(ctx: click.Context, run: str | None, verify: bool, as_json: bool) -> None:
    """List what checkpoints and logged values take, by run, here and in the bucket.

    A checkpoint counts as there if its manifest is. Objects that several runs share are stored
    once.
    """
    from flor.cli import storing

    if ctx.invoked_subcommand is None:
        sys.exit(storing.objects(_settings(), run, verify=verify, as_json=as_json))


@objects.command(help=f"Upload what a run needs to the bucket; without RUN, all runs.{RUN_HELP}")
@click.argument("run", type=RunName(), required=False)
@click.option("--dry-run", is_flag=True, help="Only print what would be uploaded.")
def push(run: str | None, dry_run: bool) -> None:
    from flor.cli import storing

    sys.exit(storing.push_objects(_settings(), run, dry_run=dry_run))


@objects.command(help=f"Download what a run needs from the bucket.{RUN_HELP}")
@click.argument("run", type=RunName())
@click.option("--dry-run", is_flag=True, help="Only print what would be downloaded.")
def pull(run: str, dry_run: bool) -> None:
    from flor.cli import storing

    sys.exit(storing.pull_objects(_settings(), run, dry_run=dry_run))


@app.command()
@click.argument("new")
@click.argument("old")
@click.option("--line", "lines", metavar="N", multiple=True, help="Of NEW; of a notebook CELL:N.")
@click.option("--name", "names", multiple=True, help="What logs this name in NEW.")
@click.option("--base", metavar="FILE", help="NEW before the statement was added.")
@click.option("--via", metavar="FILE", multiple=True, help="A version between, newest first.")
@click.option("--diff", is_flag=True, help="Print a unified diff.")
@click.option("--json", "as_json", is_flag=True, help="Print where it was put, and why there.")
def propagate(
    new: str,
    old: str,
    lines: tuple[str, ...],
    names: tuple[str, ...],
    base: str | None,
    via: tuple[str, ...],
    diff: bool,
    as_json: bool,
) -> None:
    """Put a statement of NEW into OLD, where it belongs, and print OLD with it.

    NEW and OLD are files or notebooks; or REV:FILE, or for OLD just REV, of the git repository.
    The statement gets the names that OLD uses, and brings what it needs and OLD lacks. Nothing is
    written. Where OLD has no such place, the exit status is 3, and stderr says what is missing.
    """
    from flor.cli import propagating

    forms = {"diff": diff, "as_json": as_json}
    sys.exit(propagating.propagate(new, old, lines, names, base, via, **forms))


@app.command()
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@click.option(
    "--grace",
    metavar="MINUTES",
    type=Amount(0, LARGEST),
    help="Leave what was used so lately [60; over the limit 10].",
)
@click.option(
    "--limit",
    metavar="GB",
    type=Amount(0, LARGEST),
    help="What may be stored here [objects_limit_gb].",
)
@click.option(
    "--keep",
    metavar="N",
    type=click.IntRange(1),
    help="Thin every ended run to N checkpoints of each main loop, whatever the limit.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--auto", is_flag=True, hidden=True, help="No questions, quiet, lowest priority.")
def gc(
    dry_run: bool,
    grace: float | None,
    limit: float | None,
    keep: int | None,
    yes: bool,
    as_json: bool,
    auto: bool,
) -> None:
    """Make room: remove objects that nobody needs, and keep what is stored within the limit.

    Over the limit, with a bucket, objects that were used longest ago move there and come back
    when they are needed. Without one, checkpoints of the runs with the most of them are thinned,
    evenly spaced, to two at the least: the middle and the last.
    """
    from flor.cli import clearing
    from flor.store.sweeping import GB, Options

    settings = _settings()
    limit_gb = settings.objects_limit_gb if limit is None else limit
    options = Options(limit_gb * GB, None if grace is None else grace * 60, keep)
    forms = {"dry_run": dry_run, "yes": yes, "as_json": as_json, "auto": auto}
    sys.exit(clearing.gc(settings, options, **forms))


@app.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Check the repository, journals, database and disk, and say how to repair them."""
    from flor.cli import checkup

    sys.exit(checkup.doctor(_settings(), as_json=as_json))


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    bash: add `eval "$(flor completion bash)"` to ~/.bashrc; zsh likewise to ~/.zshrc;
    fish: flor completion fish > ~/.config/fish/completions/flor.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "flor", "_FLOR_COMPLETE").source())


def run() -> None:
    """The outermost edge of the command."""
    import warnings

    from flor.cli.terminal import make_output_safe

    make_output_safe()
    warnings.showwarning = _show_warning
    try:
        app(prog_name="flor", standalone_mode=False, args=_negative_runs(sys.argv[1:]))
    except FlorError as error:
        _fail(str(error), 1)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "flor"
        _fail(f"{error.format_message()} See `{where} --help`", 2)
    except click.ClickException as error:
        _fail(error.format_message(), 1)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped", 130)
    except BrokenPipeError:  # `flor … | head`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        _fail(str(error), 1)
    except Exception as error:
        # The edge of the program: a user gets one line, who mends flor gets the place.
        if os.environ.get("FLOR_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        _fail(f"{what}; this is a mistake in flor, FLOR_DEBUG=1 shows where", 1)


def _settings() -> Settings:
    from flor import config

    return config.load()


def _negative_runs(words: list[str]) -> list[str]:
    """`-1` is a run, not an option: say so to the parser."""
    commands = (["show"], ["diff"], ["checkpoints"], ["objects", "push"], ["objects", "pull"])
    command = next((found for found in commands if words[: len(found)] == found), None)
    if command is not None:
        words = words[len(command) :]
        if any(word[:1] == "-" and word[1:].isdigit() for word in words):
            options = [word for word in words if word.startswith("--")]
            rest = [word for word in words if word not in options]
            return [*command, *options, "--", *rest]
        return [*command, *words]
    return words


def _name_or_file(names: tuple[str, ...], target: str | None) -> tuple[tuple[str, ...], str | None]:
    """`--csv acc` asks for the name acc on standard output: a file has a dot or a slash."""
    if target is None or target == TO_STDOUT or "." in target or "/" in target:
        return names, target
    return (*names, target), TO_STDOUT


def _fail(message: str, code: int) -> None:
    from flor.cli.terminal import one_line

    click.echo(f"flor: {one_line(message)}", err=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *rest: Any, **more: Any) -> None:
    from flor.cli.terminal import one_line

    click.echo(f"flor: {one_line(str(message))}", err=True)
