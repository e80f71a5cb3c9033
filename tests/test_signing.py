"""Whose pickles these are: flor.checkpoint.signing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.checkpoint.signing import KEY_BYTES, digest, is_own, key_path, sign

ONE, TWO = digest(b"one"), digest(b"two")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


# --- signatures ----------------------------------------------------------------------------


def test_what_this_user_signed_is_his_own() -> None:
    signature = sign([ONE, TWO])

    assert signature is not None
    assert is_own(signature, [ONE, TWO])
    assert sign(iter([ONE, TWO])) == signature


@pytest.mark.parametrize("digests", [[], [ONE], [TWO, ONE], [ONE, TWO, ONE], [ONE + TWO]])
def test_what_was_not_signed_is_not(digests: list[str]) -> None:
    assert not is_own(sign([ONE, TWO]), digests)


@pytest.mark.parametrize("signature", [None, "", "é", "0" * 64, "\ud800", 7, b"0" * 64, ["a"]])
def test_what_is_no_signature(signature: str | None) -> None:
    sign([ONE])
    assert not is_own(signature, [ONE])


def test_another_user_s_signature_is_not_ones_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signature = sign([ONE])
    monkeypatch.setenv("HOME", str(tmp_path / "other"))

    assert not is_own(signature, [ONE])
    assert sign([ONE]) != signature
    assert not is_own(signature, [ONE])


@given(st.binary())
def test_a_digest_is_of_the_bytes_wherever_they_lie(content: bytes) -> None:
    assert digest(content) == digest(memoryview(bytearray(content)))


# --- the key -------------------------------------------------------------------------------


def test_nobody_else_can_read_the_key(home: Path) -> None:
    before = os.umask(0)
    try:
        sign([ONE])
    finally:
        os.umask(before)

    path = home / ".local" / "state" / "flor" / "key"
    assert key_path() == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_size == KEY_BYTES
    assert [item.name for item in path.parent.iterdir()] == ["key"]


def test_the_key_is_made_once() -> None:
    sign([ONE])
    before = key_path().read_bytes()
    sign([TWO])
    assert key_path().read_bytes() == before


def test_asking_makes_no_key(home: Path) -> None:
    assert not is_own("0" * 64, [ONE])
    assert list(home.iterdir()) == []


def test_the_state_folder_can_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sign([ONE])
    assert key_path() == tmp_path / "state" / "flor" / "key"
    assert key_path().exists()


def test_an_empty_setting_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert key_path() == home / ".local" / "state" / "flor" / "key"


def test_processes_that_begin_at_once_have_one_key(home: Path) -> None:
    code = (
        "import sys; from flor.checkpoint.signing import sign; "
        "sys.stdin.read(1); print(sign(['one']))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("x")
        child.stdin.flush()
    signatures = {child.communicate(timeout=30)[0].strip() for child in children}

    assert signatures == {sign(["one"])}
    assert [item.name for item in key_path().parent.iterdir()] == ["key"]


def test_who_comes_second_uses_the_first_one_s_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process made it between the look and the making."""
    theirs = bytes(range(KEY_BYTES))
    real = os.link

    def link(source: Path, target: Path) -> None:
        target.write_bytes(theirs)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    first = sign([ONE])

    assert key_path().read_bytes() == theirs
    assert is_own(first, [ONE])
    assert [item.name for item in key_path().parent.iterdir()] == ["key"]


# --- where no key can be kept --------------------------------------------------------------


def no_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    def expanded(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", lambda: expanded(home))


def read_only_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("HOME", "/proc/self")


def file_as_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / ".local").write_text("a file")


def no_room(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    def write(fd: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)


def unreadable_key(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    key_path().mkdir(parents=True)


@pytest.fixture(params=[no_home, read_only_home, file_as_home, no_room, unreadable_key])
def keyless(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path
) -> Iterator[None]:
    with monkeypatch.context() as patch:
        request.param(patch, home)
        yield


@pytest.mark.usefixtures("keyless")
def test_without_a_key_nothing_is_signed_and_nothing_ones_own() -> None:
    assert sign([ONE]) is None
    assert not is_own("0" * 64, [ONE])


def test_a_failed_making_leaves_no_key(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with monkeypatch.context() as patch:
        no_room(patch, home)
        assert sign([ONE]) is None
    assert list(key_path().parent.iterdir()) == []
    assert is_own(sign([ONE]), [ONE])


@pytest.mark.parametrize("content", [b"", b"torn", bytes(KEY_BYTES + 1)])
def test_a_torn_key_is_nobody_s_and_replaced_when_there_is_something_to_sign(
    content: bytes,
) -> None:
    before = sign([ONE])
    key_path().write_bytes(content)

    assert not is_own(before, [ONE])
    assert key_path().read_bytes() == content
    assert is_own(sign([ONE]), [ONE])
    assert not is_own(before, [ONE])
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert [item.name for item in key_path().parent.iterdir()] == ["key"]
