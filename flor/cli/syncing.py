"""`flor sync`: runs to and from other clones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flor.cli.terminal import echo
from flor.git import open_repository
from flor.record.publish import publish_dead
from flor.store.catalog import count_runs
from flor.store.project import opened

if TYPE_CHECKING:
    from flor.config import Settings


def sync(settings: Settings, remote: str | None, *, push: bool, full: bool) -> None:
    repository = open_repository(
        settings.root, settings.flor_dir, settings.branch, create=settings.runs_dir.is_dir()
    )
    late = publish_dead(settings)
    if late:
        echo(f"put {_runs(len(late))} on the branch that ended without doing so")
    report = repository.sync(remote, push=push)
    for trouble in report.unreachable:
        echo(f"flor: left out {trouble}", err=True)
    with opened(settings, full=full) as project:
        total = count_runs(project.db)
        echo(f"read {_runs(project.shared)} of other clones; {_runs(total)} in all")
    if report.merged:
        echo("the branch had grown here and there; both sides are joined now")
    if report.pushed:
        echo("pushed")
    elif report.ahead:
        branch = repository.ref.removeprefix("refs/heads/")
        echo(
            f"{report.ahead} commits are not shared yet: `flor sync --push` or "
            f"`git push <remote> {branch}`"
        )


def _runs(count: int) -> str:
    return f"{count:,} run" if count == 1 else f"{count:,} runs"
