"""`python -m dew` is the command `dew`."""

import sys

from dew.cli import main

if __name__ == "__main__":
    sys.exit(main())
