"""What a run should remember about the machine, the packages and the random numbers.

Everything is read without importing a library, starting CUDA or drawing a random number.
"""

from __future__ import annotations

import base64
import os
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

DIST_INFO = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.(?:dist|egg)-info", re.IGNORECASE)


def packages() -> dict[str, str]:
    """Installed distributions on `sys.path`, by the names of their metadata folders."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = DIST_INFO.fullmatch(name)
            if match:
                found.setdefault(match["name"].replace("_", "-").lower(), match["version"])
    return dict(sorted(found.items()))


def devices() -> list[dict[str, Any]]:
    """The processor, and GPUs as the driver lists them."""
    found: list[dict[str, Any]] = [
        {"kind": "cpu", "name": _cpu_name(), "count": os.cpu_count(), "memory_bytes": _memory()}
    ]
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        found.append({"kind": "gpu", "name": facts.get("Model", "?").strip()})
    return found


def rank() -> int | None:
    """This process's rank in a distributed job, or None outside of one."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None


def user() -> str:
    for name in ("LOGNAME", "USER", "USERNAME"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return str(os.getuid())


def seeds() -> dict[str, Any]:
    """The states of the random generators that are imported by now."""
    found: dict[str, Any] = {}
    standard = sys.modules.get("random")
    if hasattr(standard, "getstate"):  # a script may have a random.py of its own
        assert standard is not None
        version, state, gauss = standard.getstate()
        found["random"] = {"version": version, "state": _packed(state), "gauss": gauss}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            found["numpy"] = {
                "key": _packed(tuple(int(word) for word in state["state"]["key"])),
                "pos": int(state["state"]["pos"]),
                "has_gauss": int(state["has_gauss"]),
                "gauss": float(state["gauss"]),
            }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "initial_seed"):
        # The CPU generator's; asking CUDA would start it.
        found["torch"] = {"seed": int(torch.initial_seed())}
        state = bytes(torch.get_rng_state().tolist())
        found["torch"]["state"] = base64.b64encode(zlib.compress(state)).decode()
    return found


def _packed(words: tuple[int, ...]) -> str:
    data = struct.pack(f"<{len(words)}I", *words)
    return base64.b64encode(zlib.compress(data)).decode()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
