"""Real projects in temporary folders, real scripts in real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

S3_KEYS = {"accessKey": "flor", "secretKey": "hindsight"}


@dataclass
class Project:
    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.root, env=self.environment, capture_output=True, check=True
        )
        return done.stdout.decode()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "FLOR_DISABLE": "", **self.env}

    def start(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd or self.root,
            env={**self.environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def python(
        self, *words: str, cwd: Path | None = None, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, and insist on the exit code."""
        process = self.start(*words, cwd=cwd, **env)
        out, err = process.communicate(timeout=120)
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert done.returncode == code, f"exit {done.returncode}\n{out}\n{err}"
        return done

    def flor(self, *words: str, code: int = 0, **env: str) -> str:
        return self.python("-m", "flor", *words, code=code, **env).stdout

    def frame(self, *names: str) -> list[dict[str, Any]]:
        """`flor dataframe NAMES --json`."""
        rows: list[dict[str, Any]] = json.loads(self.flor("dataframe", *names, "--json"))
        return rows

    def runs(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.flor("runs", "--json"))
        return rows

    def journals(self) -> list[list[Any]]:
        """The parsed lines of each run's journal, oldest run first."""
        files = (self.root / ".flor" / "runs").glob("*/journal.jsonl")
        found = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
        return sorted(found, key=lambda lines: str(lines[0]["tstamp"]))

    def lines(self, kind: str, run: int = -1) -> list[dict[str, Any]]:
        """The journal's object lines of one type."""
        return [x for x in self.journals()[run] if isinstance(x, dict) and x["t"] == kind]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A git repository with one commit and an identity."""
    made = Project(tmp_path / "project")
    made.root.mkdir()
    made.git("init", "-q", "-b", "main")
    made.git("config", "user.name", "Ann")
    made.git("config", "user.email", "ann@example.org")
    made.write("README", "a project\n")
    made.git("add", "-A")
    made.git("commit", "-qm", "begin")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Project:
    """A project that is not a git repository."""
    made = Project(tmp_path / "folder")
    made.root.mkdir()
    return made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class S3Server:
    """SeaweedFS on loopback, with one identity and the bucket `data`.

    It can be killed, and started again at the same address with what it held.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {
            f"{name}.port{kind}": free_port()
            for name in ("master", "volume", "filer", "s3")
            for kind in ("", ".grpc")
        }
        self.url = f"http://127.0.0.1:{self.ports['s3.port']}"
        identity = {"name": "flor", "credentials": [S3_KEYS]}
        identity |= {"actions": ["Admin", "Read", "Write", "List"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def start(self) -> None:
        folder = self.folder
        command = [str(Path(sys.executable).parent / "weed"), "server", f"-dir={folder}", "-s3"]
        command += [f"-filer.localSocket={folder / 'filer.sock'}"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={folder / 's3.json'}"]
        command += [f"-{name}={port}" for name, port in self.ports.items()]
        # Two fixed ports that nobody here needs, and a report to its makers.
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        command += ["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        self._wait()
        # A bucket is a folder of the filer; its own protocol needs no signature here.
        place = f"http://127.0.0.1:{self.ports['filer.port']}/buckets/data/"
        with suppress(urllib.error.HTTPError):  # it was there before
            urllib.request.urlopen(urllib.request.Request(place, method="POST")).close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for name in ("master", "volume", "filer", "s3"):
            port = self.ports[f"{name}.port.grpc"]
            Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock").unlink(missing_ok=True)

    def environment(self, url: str | None = None) -> dict[str, str]:
        """What leads a client to it, or through something in between."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": S3_KEYS["accessKey"],
            "AWS_SECRET_ACCESS_KEY": S3_KEYS["secretKey"],
        }

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            try:
                urllib.request.urlopen(self.url, timeout=2).close()
                return
            except urllib.error.HTTPError as error:  # it answers: without keys, nothing is seen
                error.close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError((self.folder / "log").read_text()[-3000:])


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests that want one; it takes seconds to start."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def s3_environment(s3_server: S3Server) -> dict[str, str]:
    return s3_server.environment()


class Wire:
    """A connection to a server that can break: refused, or cut when so many bytes went up or down.

    `at(bytes, do, down=…)` calls `do` once, when that many more bytes have passed.
    """

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._server = host, int(port)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._hook: tuple[int, bool, Callable[[], object]] | None = None
        self._lock = threading.Lock()
        self.connect()

    def connect(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._port))
        self._listener.listen(64)
        self._start(self._accept, self._listener)

    def at(self, size_bytes: int, do: Callable[[], object], *, down: bool = False) -> None:
        with self._lock:
            self._hook = size_bytes, down, do

    def cut(self) -> None:
        """Break the connections that are there; new ones are accepted."""
        for side in list(self._open):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def refuse(self) -> None:
        """Break the connections, and accept no new ones until `connect`."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._server, 5) as server:
            server.settimeout(None)
            self._open |= {client, server}
            back = self._start(self._pump, server, client, True)
            self._pump(client, server, False)
            back.join()
            self._open -= {client, server}

    def _pump(self, source: socket.socket, target: socket.socket, down: bool) -> None:
        with suppress(OSError):
            while block := source.recv(65536):
                self._count(len(block), down)
                target.sendall(block)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _count(self, size_bytes: int, down: bool) -> None:
        with self._lock:
            if self._hook is None or self._hook[1] != down:
                return
            left, _, do = self._hook
            self._hook = (left - size_bytes, down, do) if left > size_bytes else None
            if self._hook is not None:
                return
        do()


@pytest.fixture
def wire(s3_server: S3Server) -> Iterator[Wire]:
    """To the shared server."""
    made = Wire(s3_server.url)
    yield made
    made.refuse()
