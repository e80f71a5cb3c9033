"""The `flor` command: parse, call, print."""


def main() -> None:
    """Run the command line; every expected error is one line on stderr."""
    from flor.cli.app import run

    run()
