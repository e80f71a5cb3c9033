"""Source code as data: what a loop changes, and which names are still read after a place."""
