"""Convert a path from the host into an absolute path of this sandbox.

Files and trees use this. It opens nothing and does not confine: the walls that confine caller code
confine init as well, and init has no other rights.
"""

from __future__ import annotations

import os


def resolve(home: str, path: str) -> str:
    """Return an absolute path; a relative one starts at home. `..` stays: it may follow a link."""
    parts = [part for part in os.path.join(home, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)
