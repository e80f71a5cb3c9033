"""The house stays as docs/ARCHITECTURE.md draws it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import flor
from flor.cli.app import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flor"
FREE = {"flor.model", "flor.errors", "flor.config"}


class Import(NamedTuple):
    """`target` is a module of flor, or the full name of a foreign one."""

    target: str
    line: int
    on_load: bool  # runs when the module is imported, not inside a function


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


class Imports(ast.NodeVisitor):
    """Collects what a module imports; `if TYPE_CHECKING:` imports nothing at run time."""

    def __init__(self, module: str) -> None:
        is_package = MODULES[module].name == "__init__.py"
        self.package = module if is_package else module.rpartition(".")[0]
        self.found: list[Import] = []
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = node.module or ""
        if node.level:
            above = self.package.split(".")
            above = above[: len(above) - node.level + 1]
            source = ".".join([*above, source] if source else above)
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            self.add(inner if inner in MODULES else source, node.lineno)

    def add(self, target: str, line: int) -> None:
        self.found.append(Import(target, line, on_load=self.depth == 0))


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    visitor = Imports(module)
    visitor.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return tuple(visitor.found)


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def offences(importers: set[str], forbidden) -> list[str]:
    """`module:line imports target` for each import that `forbidden(import)` answers true to."""
    return [
        f"{module}:{item.line} imports {item.target}"
        for module in sorted(importers)
        for item in imports_of(module)
        if forbidden(item)
    ]


def modules_in(*packages: str) -> set[str]:
    return {name for name in MODULES if any(inside(name, package) for package in packages)}


# -- directions -----------------------------------------------------------------------------


def test_the_package_is_read():
    """An empty listing would make every other test here pass."""
    assert MODULES.keys() >= FREE | {"flor", "flor.record", "flor.store", "flor.cli"}


def test_nobody_inside_imports_the_root():
    assert offences(set(MODULES) - {"flor"}, lambda item: item.target == "flor") == []


def test_free_modules_import_only_each_other():
    """model ← errors ← config: they carry no weight into whoever imports them."""
    allowed = {"flor.model", "flor.errors"}
    found = offences(FREE, lambda item: inside(item.target, "flor") and item.target not in allowed)
    assert found == []


def test_recording_knows_nothing_of_the_store():
    assert offences(modules_in("flor.record"), lambda i: inside(i.target, "flor.store")) == []


def test_checkpoints_know_nothing_of_the_store():
    assert offences(modules_in("flor.checkpoint"), lambda i: inside(i.target, "flor.store")) == []


def test_the_analysis_of_source_needs_nothing():
    """It is pure: it will serve replay as it serves recording."""

    def outside(item: Import) -> bool:
        own = inside(item.target, "flor.source") or item.target == "flor.errors"
        return inside(item.target, "flor") and not own

    assert offences(modules_in("flor.source"), outside) == []


def test_the_store_knows_nothing_of_recording():
    assert offences(modules_in("flor.store"), lambda i: inside(i.target, "flor.record")) == []


def test_only_the_command_line_imports_the_command_line():
    others = set(MODULES) - modules_in("flor.cli", "flor.__main__")
    assert offences(others, lambda item: inside(item.target, "flor.cli")) == []


def test_the_recording_side_loads_only_the_standard_library():
    """What runs in the training process; numpy and torch are taken from `sys.modules`."""
    side = FREE | modules_in("flor.record", "flor.api", "flor.session", "flor.git") | {"flor"}
    side |= modules_in("flor.checkpoint", "flor.source")

    def foreign(item: Import) -> bool:
        top = item.target.partition(".")[0]
        return item.on_load and top != "flor" and top not in sys.stdlib_module_names

    assert offences(side & set(MODULES), foreign) == []


def test_the_recording_side_loads_no_store():
    """Queries import the store inside functions, so that a training never pays for it."""
    side = modules_in("flor.record", "flor.api", "flor.session", "flor.git") | {"flor"}
    side |= modules_in("flor.checkpoint", "flor.source")
    heavy = offences(side, lambda item: item.on_load and inside(item.target, "flor.store"))
    assert heavy == []


def test_no_import_cycles():
    """Imports inside functions count: a cycle that is only delayed is a cycle."""
    edges = {
        module: sorted({item.target for item in imports_of(module)} & MODULES.keys() - {module})
        for module in MODULES
    }
    assert find_cycle(edges) is None


def find_cycle(edges: dict[str, list[str]]) -> list[str] | None:
    """One cycle of the graph as a path whose ends are equal, or None."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for following in edges.get(node, []):
            cycle = walk(following, [*path, node])
            if cycle:
                return cycle
        done.add(node)
        return None

    for start in edges:
        cycle = walk(start, [])
        if cycle:
            return cycle
    return None


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, None),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, None),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, ["b", "c", "b"]),
    ],
)
def test_cycles_are_found(edges: dict[str, list[str]], cycle: list[str] | None):
    assert find_cycle(edges) == cycle


# -- `import flor` --------------------------------------------------------------------------

FRESH = """
import json, os, sys
before = set(sys.modules)
threads, files = os.listdir("/proc/self/task") if os.path.isdir("/proc/self") else [], os.listdir()
import flor
after = os.listdir("/proc/self/task") if threads else []
print(json.dumps({
    "modules": sorted(set(sys.modules) - before),
    "new_threads": len(after) - len(threads),
    "new_files": sorted(set(os.listdir()) - set(files)),
}))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What `import flor` did in an interpreter that nothing else touched, in an empty folder."""
    folder = tmp_path_factory.mktemp("empty")
    command = [sys.executable, "-I", "-c", FRESH]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_flor_loads_only_the_standard_library(fresh: dict):
    tops = {name.partition(".")[0] for name in fresh["modules"]}
    assert tops - sys.stdlib_module_names == {"flor"}


def test_import_flor_loads_no_store_and_no_command_line(fresh: dict):
    heavy = [name for name in fresh["modules"] if name.startswith(("flor.store", "flor.cli"))]
    assert heavy == []


def test_import_flor_does_nothing(fresh: dict):
    assert (fresh["new_threads"], fresh["new_files"]) == (0, [])


# -- names ----------------------------------------------------------------------------------


def test_public_names():
    names = {"arg", "checkpointing", "checkpoints", "commit", "data", "dataframe", "load", "log"}
    names |= {"loop", "propagate", "sql"}
    assert set(flor.__all__) == names
    assert all(callable(getattr(flor, name)) for name in names)


def test_modules_are_nouns():
    vague = {"util", "utils", "helper", "helpers", "manager", "base", "constants", "common", "misc"}
    assert [name for name in MODULES if vague & set(name.split("."))] == []


# -- documents ------------------------------------------------------------------------------


def commands(group: click.Group = app, prefix: str = "flor") -> list[str]:
    """Every `flor` command, `flor GROUP COMMAND` included."""
    found = []
    for name, command in group.commands.items():
        called = f"{prefix} {name}"
        found += commands(command, called) if isinstance(command, click.Group) else [called]
    return found


def test_every_command_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    found = commands()
    assert len(found) >= 7
    assert [command for command in found if f"`{command}" not in text] == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs/ARCHITECTURE.md"])
def test_documents_exist(name: str):
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_every_module_says_what_it_is_for():
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    silent = [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []
