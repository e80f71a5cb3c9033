"""Which files of the working tree go into a version: neither secrets nor too much. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from flor.git.hashes import Stamp

CODE = frozenset(
    b".c .cc .cpp .cu .cuh .h .hpp .ipynb .java .jl .js .lua .pl .proto .py .pyi .pyx .r .rs "
    b".ts".split()
)
SOURCE_LIKE = CODE | frozenset(
    b".bash .cfg .ini .json .jsonl .md .rst .sh .sql .toml .txt .xml .yaml .yml".split()
)
# The branch is pushed, and what was pushed cannot be called back. In lower case.
SECRETS = (
    b"*.env",
    b".env.*",
    b".envrc",
    b".htpasswd",
    b".vault-token",
    b"*.kdbx",
    b"*.ppk",
    b"*.tfstate",
    b"*.tfstate.*",
    b"*_api_key*",
    b"*api-key*",
    b"application_default_credentials.json",
    b"kube.config",
    b"service-account*.json",
    b"service_account*.json",
    b"token",
    b"token.txt",
    b"*.token",
    b".streamlit_secrets*",
    b"*.jks",
    b"*.key",
    b"*.keystore",
    b"*.p12",
    b"*.pem",
    b"*.pfx",
    b".git-credentials",
    b".netrc",
    b".npmrc",
    b".pgpass",
    b".pypirc",
    b"_netrc",
    b"credentials",
    b"credentials.json",
    b"id_dsa*",
    b"id_ecdsa*",
    b"id_ed25519*",
    b"id_rsa*",
    b"kaggle.json",
    b"secrets.*",
)
SECRET_FOLDERS = frozenset({b".aws", b".azure", b".docker", b".gnupg", b".kube", b".ssh"})
WITHHELD = "may hold secrets"  # why such a file is left out
TEMPLATES = (b".example", b".sample", b".template")  # of a secret, to be filled in


class File(NamedTuple):
    """A file that may differ from the index."""

    path: bytes
    mode: str
    stamp: Stamp
    tracked: bool

    @property
    def size_bytes(self) -> int:
        return self.stamp[2]


@dataclass(frozen=True)
class Limits:
    """What may go into a tree."""

    file_bytes: int
    tree_bytes: int
    essential: frozenset[bytes] = frozenset()  # paths that come first


def is_source(path: bytes) -> bool:
    """Whether the name looks like something that a person wrote."""
    return _suffix(path) in SOURCE_LIKE


def may_be_secret(path: bytes) -> bool:
    """Whether the name is one that passwords and keys are kept under; code that runs is not."""
    if _suffix(path) in CODE or _suffix(path) in TEMPLATES:
        return False
    *folders, name = path.lower().split(b"/")
    return bool(SECRET_FOLDERS.intersection(folders)) or any(
        fnmatchcase(name, pattern) for pattern in SECRETS
    )


def choose(files: Sequence[File], limits: Limits) -> tuple[list[File], list[tuple[File, str]]]:
    """The files that go into the tree, and the others with the reason.

    First comes what is essential, then what looks like source, then the rest, small ones first.
    All that differs from the index counts, whether or not an earlier version has it, so that
    the same working tree always gives the same tree. What may hold secrets stays out unless the
    user has it in the index, or it is essential.
    """

    def rank(file: File) -> tuple[bool, bool, int, bytes]:
        essential = file.path in limits.essential
        return not essential, not is_source(file.path), file.size_bytes, file.path

    fitting, others = [], []
    for file in files:
        if not file.tracked and file.path not in limits.essential and may_be_secret(file.path):
            others.append((file, WITHHELD))
        elif file.size_bytes > limits.file_bytes:
            others.append((file, "too large"))
        else:
            fitting.append(file)
    if sum(file.size_bytes for file in fitting) <= limits.tree_bytes:
        return fitting, others
    left, chosen = limits.tree_bytes, []
    for file in sorted(fitting, key=rank):
        if file.size_bytes <= left:
            left -= file.size_bytes
            chosen.append(file)
        else:
            others.append((file, "budget"))
    return sorted(chosen), others


def _suffix(path: bytes) -> bytes:
    return b"." + path.rpartition(b".")[2].lower()
