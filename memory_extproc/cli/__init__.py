"""Commands. A module for each, which imports what it needs where it is used, so that `--help` is quick."""
