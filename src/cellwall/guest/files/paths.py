"""What the host calls a path, as a path of this sandbox.

Files and trees use this. It opens nothing and does not confine: whatever confines caller code
confines init as well, and init has no other rights.
"""

from __future__ import annotations

import os


def resolve(home: str, path: str) -> str:
    """An absolute path; what is relative starts at home. `..` stays: it may follow a link."""
    parts = [part for part in os.path.join(home, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)
