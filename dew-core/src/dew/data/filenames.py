"""The one order in which files are read, wherever several make one source."""

import re
import unicodedata
from collections.abc import Iterable

from dew.data.errors import SourceError

_DIGITS = re.compile("[0-9]+")


def in_order(names: Iterable[str]) -> list[str]:
    """`names` sorted by code points, except that a run of ASCII digits counts as one number: `a2` before `a10`.

    Raises:
        SourceError: two names are the same to a reader (equal after Unicode's NFC), so that no order holds everywhere.
    """
    found = sorted(names, key=lambda name: (_DIGITS.sub(_numbered, name), name))
    seen: dict[str, str] = {}
    for name in found:
        other = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise SourceError(
                f"two files have one name spelt in two ways, {other!a} and {name!a}, and file systems differ in what "
                "they make of that; rename one of them"
            )
    return found


def _numbered(digits: "re.Match[str]") -> str:
    """A run of digits so that longer numbers come later, and all of them where digits stand among other characters."""
    number = digits[0].lstrip("0")
    return f"0{chr(len(number))}{number}"
