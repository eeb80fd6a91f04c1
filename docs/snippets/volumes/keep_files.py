"""A volume that a sandbox fills, that a second one reads, and whose files the host fetches."""

import tempfile
from pathlib import Path

from cellwall import HostUnsupported, Sandbox, Volumes

volumes = Volumes()
try:
    volumes.create("docs-example", size_mb=64)
except HostUnsupported as error:  # not root, or no loop devices
    raise SystemExit(print(error)) from None

try:
    with Sandbox(volumes={"docs-example": "/data"}) as sandbox:
        sandbox.files.write("/data/report.txt", "kept")

    with Sandbox(volumes=["docs-example:/data:ro"]) as sandbox:
        assert sandbox.files.read("/data/report.txt") == "kept"
        refused = sandbox.run("open('/data/report.txt', 'w')")
        assert "Read-only file system" in refused.stderr

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "report.txt")
        volumes.fetch("docs-example", "report.txt", target)
        assert target.read_text() == "kept"
finally:
    volumes.remove("docs-example")
