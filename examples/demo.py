"""A tour of flor: a training script is edited and run a few times; then come the questions.

    python examples/demo.py [--keep]

It works in a temporary folder, which `--keep` leaves there to play with.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

WIDTH = 88
SCRIPT = Path(__file__).with_name("train.py")

MOMENTUM = (
    (
        """            for name, grad in grads.items():
                net[name] -= lr * grad
""",
        """            for name, grad in grads.items():
                speed[name] = momentum * speed[name] + grad
                net[name] -= lr * speed[name]
""",
    ),
    (
        """with flor.checkpointing(net=net):
""",
        """momentum = flor.arg("momentum", 0.9)
speed = {name: np.zeros_like(value) for name, value in net.items()}

with flor.checkpointing(net=net, speed=speed):
""",
    ),
)

GRADIENT_NORM = (
    (
        """            flor.log("loss", loss)
""",
        """            flor.log("loss", loss)
            flor.log("norm", sum(np.sum(grad**2) for grad in grads.values()) ** 0.5)
""",
    ),
)


class Project:
    """A git project with the training script in it, and a user at its prompt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        dropped = ("FLOR_", "GIT_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.environment = kept | {"PATH": path, "COLUMNS": str(WIDTH), "PAGER": "cat"}
        shutil.copy(SCRIPT, root / "train.py")
        self.quietly("git", "init", "-q", "-b", "main")
        self.quietly("git", "add", "train.py")
        who = ("-c", "user.name=demo", "-c", "user.email=demo@example.org")
        self.quietly("git", *who, "-c", "commit.gpgsign=false", "commit", "-qm", "Two moons")

    def quietly(self, *command: str) -> None:
        subprocess.run(command, cwd=self.root, env=self.environment, check=True)

    def type(self, line: str) -> None:
        """Show a command as the user types it, then what it answers."""
        print(f"\n$ {line}", flush=True)
        done = subprocess.run(
            shlex.split(line),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"the demo stops: {line!r} exited with {done.returncode}")

    def edit(self, what: str, changes: tuple[tuple[str, str], ...]) -> None:
        """Change the script, as in an editor."""
        script = self.root / "train.py"
        text = script.read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"train.py no longer has exactly one {old!r}"
            text = text.replace(old, new)
        script.write_text(text)
        print(f"\n* edit train.py: {what}; no commit", flush=True)

    def kill_while_training(self, line: str) -> None:
        """Start a training and end it with SIGKILL after a few epochs."""
        print(f"\n$ {line}", flush=True)
        process = subprocess.Popen(
            shlex.split(line),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(3):
            print(process.stdout.readline(), end="", flush=True)
        process.kill()
        process.communicate()
        print("Killed (kill -9)", flush=True)


def say(text: str) -> None:
    print("\n" + textwrap.fill(text, WIDTH, initial_indent="# ", subsequent_indent="# "))


def train(project: Project) -> None:
    say("A training script with a few flor calls is run as always. There is nothing to start.")
    project.type("python train.py")
    project.type("python train.py --kwargs lr=0.5")
    project.edit("momentum", MOMENTUM)
    project.type("python train.py --kwargs lr=0.5")
    project.edit("log the gradient's norm", GRADIENT_NORM)
    project.type("python train.py --kwargs lr=0.2")
    say("One more run dies without a warning. What it had logged is in its journal.")
    project.kill_while_training("python train.py --kwargs epochs=1000000")


def ask(project: Project) -> None:
    say("Every run of every version of the code, with its arguments and its end:")
    project.type("flor runs")
    say("One table over all of them. What was logged once a run repeats on each of its epochs:")
    project.type('flor dataframe lr momentum acc --where "epoch in (0, 5)"')
    say("SQL over the same table, and over runs, logs, loops, args, versions and data:")
    project.type(
        'flor sql "select lr, momentum, max(acc) as best from frame group by lr, momentum"'
    )
    say("The run that was killed has every value that it had logged:")
    project.type(
        'flor sql "select run_id, status, count(*) as losses from runs join logs using (run_id)'
        " where status = 'killed' and value_name = 'loss' group by all\""
    )
    say("Checkpoints were taken, where they cost little next to the training; the last one always:")
    project.type("flor checkpoints -3")
    say("Going back to the newest model that was good is one line:")
    project.type(
        "python -c \"import flor; state = flor.load(where='acc > 0.97'); "
        "print(state, state['net']['b1'].round(2))\""
    )
    say("One run, counted from the newest: what it was given, how it went, what was new in it.")
    project.type("flor show -3")
    say("The code of two runs compared, although nothing was ever committed by hand:")
    project.type("flor diff -3 -2")
    say("The versions are commits on a side branch. HEAD, index and files stay as they were:")
    project.type("git log --oneline flor")
    project.type("git status --short --branch")


def main() -> None:
    parser = argparse.ArgumentParser(description="A tour of flor.")
    parser.add_argument("--keep", action="store_true", help="leave the demo's project there")
    keep = parser.parse_args().keep
    folder = Path(tempfile.mkdtemp(prefix="flor-demo-"))
    try:
        root = folder / "moons"
        root.mkdir()
        project = Project(root)
        train(project)
        ask(project)
    finally:
        if keep:
            print(f"\nThe project is in {folder / 'moons'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
