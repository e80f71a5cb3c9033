"""Settings: which are taken, and what is said of the others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from flor import config
from flor.errors import ConfigError

BAD = ["nan", "-inf", "-1", "-0.001", "1e300"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "flor.toml").write_text("")
    return tmp_path


@pytest.mark.parametrize("value", [*BAD, "inf", "9" * 400])
def test_an_amount_that_makes_no_sense_is_refused_in_a_file(root: Path, value: str) -> None:
    source = root / "flor.toml"
    source.write_text(f"objects_limit_gb = {value}")
    with pytest.raises(ConfigError, match=rf"{source}: objects_limit_gb = .* from 0 to 1e\+15$"):
        config.load(root)


@pytest.mark.parametrize("value", BAD)
def test_an_overhead_that_makes_no_sense_is_refused(
    root: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOR_OVERHEAD", value)
    with pytest.raises(ConfigError, match=r"FLOR_OVERHEAD=.* or inf for no limit"):
        config.load(root)


def test_an_overhead_may_be_without_a_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "flor.toml").write_text("overhead = inf\nobjects_limit_gb = 0")
    assert config.load(root).overhead == math.inf
    monkeypatch.setenv("FLOR_OVERHEAD", "0")
    assert (config.load(root).overhead, config.load(root).objects_limit_gb) == (0, 0)
