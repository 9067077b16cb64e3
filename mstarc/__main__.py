"""`python -m mstarc`: the same as the command `mstarc`."""

from mstarc.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
