"""What `import flor` costs over a bare interpreter, and how much of others' code it loads."""

from __future__ import annotations

import harness
from harness import Figure, Metrics, Subject

LOADED = """
tops = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
own = {"flor", "flordb", "__main__", "__mp_main__", "_distutils_hack", "sitecustomize"}
report(third_party=len({name for name in tops if not name.startswith("__")} - own))
"""


def time_import(subject: Subject) -> Metrics:
    with harness.project() as root:
        bare = harness.run(root, subject, "pass\n", name="bare.py").seconds
        code = f"import {subject.module}\n"
        # The second one: compiled, and the folders that it makes are there.
        harness.run(root, subject, code, name="load.py")
        loaded = harness.run(root, subject, code, name="load.py").seconds
        counted = harness.run(root, subject, subject.script(LOADED), name="count.py").figures
        return {"bare": bare * 1e3, "loaded": loaded * 1e3, **counted}


def measure(subjects: list[Subject], rounds: int | None) -> list[Figure]:
    best = harness.rounds(subjects, rounds or 7, time_import)
    for found in best.values():
        found["import"] = found["loaded"] - found["bare"]
    return [
        harness.figure("`import flor`", "ms", 50, best, "import"),
        harness.figure("third-party packages that it loads", "", 0, best, "third_party"),
    ]


if __name__ == "__main__":
    harness.main(measure)
