"""Data in a bucket, against a real S3 server on loopback."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from tests.e2e.conftest import Project

KEYS = {"accessKey": "flor", "secretKey": "hindsight"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def s3_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """SeaweedFS with one identity; the environment that leads a client to it."""
    folder = tmp_path_factory.mktemp("s3")
    identity = {
        "name": "flor",
        "credentials": [KEYS],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = {name: free_port() for name in ("master.port", "volume.port", "filer.port", "s3.port")}
    command = [str(Path(sys.executable).parent / "weed"), "server", f"-dir={folder}", "-s3"]
    command += [f"-filer.localSocket={folder / 'filer.sock'}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={folder / 's3.json'}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    command += [f"-{name}.port.grpc={free_port()}" for name in ("master", "volume", "filer", "s3")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    url = f"http://127.0.0.1:{ports['s3.port']}"
    try:
        wait_for(url, server, folder / "log")
        environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEYS["accessKey"],
            "AWS_SECRET_ACCESS_KEY": KEYS["secretKey"],
        }
        # A bucket is a folder of the filer; its own protocol needs no signature here.
        folder_url = f"http://127.0.0.1:{ports['filer.port']}/buckets/data/"
        urllib.request.urlopen(urllib.request.Request(folder_url, method="POST")).close()
        yield environment
    finally:
        server.kill()
        server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except urllib.error.HTTPError as error:  # it answers: there is nothing to see without keys
            error.close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(log.read_text())


def put(environment: dict[str, str], key: str, content: bytes) -> None:
    store = S3Store(
        "data",
        endpoint=environment["AWS_ENDPOINT_URL"],
        access_key_id=KEYS["accessKey"],
        secret_access_key=KEYS["secretKey"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            obstore.put(store, key, content)
            return
        except obstore.exceptions.BaseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_a_declared_object_is_recorded_with_its_etag(
    project: Project, s3_environment: dict[str, str]
) -> None:
    put(s3_environment, "train.csv", b"1,2,3\n")
    project.write("train.py", "import flor\nprint(flor.data('s3://data/train.csv'))\n")
    done = project.python("train.py", **s3_environment)
    assert (done.stdout, done.stderr) == ("s3://data/train.csv\n", "")
    (file,) = project.lines("data")
    expected = hashlib.md5(b"1,2,3\n").hexdigest()
    assert (file["path"], file["size_bytes"]) == ("s3://data/train.csv", 6)
    assert file["digest"] == f"etag:{expected}"


def test_an_object_that_cannot_be_reached_is_said_once(
    project: Project, s3_environment: dict[str, str]
) -> None:
    project.write("train.py", "import flor\nflor.data('s3://data/nothing.csv')\nprint('trained')\n")
    done = project.python("train.py", **s3_environment)
    assert done.stdout == "trained\n"
    assert done.stderr.count("flor:") == 1
    assert "s3://data/nothing.csv" in done.stderr
