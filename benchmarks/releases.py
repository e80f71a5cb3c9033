"""Releases of packages of training code: the .py files of source distributions on PyPI.

They are kept in a folder outside the repository; what is there is not asked for again.
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

INDEX = "https://pypi.org/simple/"
PACKAGES = (
    *("accelerate", "allennlp", "catalyst", "flair", "pytorch-ignite", "recbole"),
    *("sentence-transformers", "simpletransformers", "skorch", "stable-baselines3", "tianshou"),
    *("timm", "ultralytics"),
)
VERSIONS = 6
LARGEST = 40_000_000  # bytes of an archive
LARGEST_FILE = 2_000_000
LINK = re.compile(r'href="([^"#]+)[^"]*"[^>]*>\s*([^<\s]+)\s*</a>')
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flor-benchmarks"


class Offline(Exception):
    """The package index does not answer."""


def releases(cache: Path) -> dict[str, list[Path]]:
    """By package, the folders of its picked versions, oldest first. Raises Offline."""
    return {package: _picked(package, cache / package) for package in PACKAGES}


def _picked(package: str, folder: Path) -> list[Path]:
    stamp = folder / ".picked"
    if not stamp.is_file():
        print(f"  fetching {package}", file=sys.stderr, flush=True)
        links = _links(package)
        names = []
        for version in _spread(sorted(links, key=_order)):
            if (folder / version).is_dir() or _fetch(links[version], folder / version):
                names.append(version)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text("\n".join(names))
    return [folder / version for version in stamp.read_text().split()]


def _links(package: str) -> dict[str, str]:
    """Addresses of source distributions by version, those before a release left out."""
    page = urllib.parse.urljoin(INDEX, package + "/")
    stem = re.escape(package).replace("\\-", "[-_.]")
    wanted = re.compile(rf"{stem}-(\d+(?:\.\d+)*)\.(?:tar\.gz|zip)", re.IGNORECASE)
    found = {}
    for address, name in LINK.findall(_get(page).decode()):
        if match := wanted.fullmatch(html.unescape(name)):
            found[match[1]] = urllib.parse.urljoin(page, html.unescape(address))
    return found


def _order(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _spread(versions: list[str]) -> list[str]:
    """So many evenly spaced ones, the first and the last among them."""
    if len(versions) <= VERSIONS:
        return versions
    return [versions[round(i * (len(versions) - 1) / (VERSIONS - 1))] for i in range(VERSIONS)]


def _get(address: str) -> bytes:
    for attempt in range(3):
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return answer.read(LARGEST + 1)
        except OSError as error:
            if attempt == 2:
                raise Offline(f"{address}: {error}") from None
    raise AssertionError


def _fetch(address: str, folder: Path) -> bool:
    """Extract one release; false if it is too large or no archive."""
    data = _get(address)
    if len(data) > LARGEST:
        return False
    part = folder.with_name("." + folder.name)
    shutil.rmtree(part, ignore_errors=True)
    try:
        for name, content in _modules(data, is_zip=address.endswith(".zip")):
            target = _inside(part, name)
            if target is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        print(f"    {address}: {error}", file=sys.stderr)
        return False
    if not part.is_dir():
        return False
    part.rename(folder)
    return True


def _modules(data: bytes, *, is_zip: bool) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the regular .py files of an archive."""
    if is_zip:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            for info in zipped.infolist():
                if info.filename.endswith(".py") and info.file_size <= LARGEST_FILE:
                    yield info.filename, zipped.read(info)
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        for member in packed:
            if member.isfile() and member.name.endswith(".py") and member.size <= LARGEST_FILE:
                content = packed.extractfile(member)
                if content is not None:
                    yield member.name, content.read()


def _inside(folder: Path, name: str) -> Path | None:
    """Where a member goes without the archive's top folder; None if that is not in `folder`."""
    parts = PurePosixPath(name).parts[1:]
    if not parts or ".." in parts:
        return None
    target = folder.joinpath(*parts)
    return target if target.resolve().is_relative_to(folder.resolve()) else None
