"""Data in a bucket, against a real S3 server on loopback."""

from __future__ import annotations

import hashlib
import time

import obstore
from obstore.store import S3Store

from tests.e2e.conftest import S3_KEYS, Project


def put(environment: dict[str, str], key: str, content: bytes) -> None:
    store = S3Store(
        "data",
        endpoint=environment["AWS_ENDPOINT_URL"],
        access_key_id=S3_KEYS["accessKey"],
        secret_access_key=S3_KEYS["secretKey"],
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
