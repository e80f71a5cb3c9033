"""`python -m flor` is the `flor` command."""

from flor.cli import main

main()
