"""What Harbor's tasks need around them: their image in a registry, names, and a page outside."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.images import archives, real, registry
from kit.images.archives import directory, layer, member
from kit.images.registry import ImageRegistry
from kit.outside.name_server import NameServer
from kit.outside.servers import WebServer

TASKS = Path(__file__).parents[2] / "agents" / "harbor_tasks"
_PAGES = "127.0.1.80"
"""Address that stands for the internet; what is allowed to a task are ports 80 and 443."""
FRONT = "127.0.1.81"
"""Another one, by the name front.test, of which a test may serve a port."""
_NAMES = {name: [_PAGES] for name in ("files.test", "other.test", "a.wild.test")}
_NAMES["front.test"] = [FRONT]
_TOOLS = ("bash", "sh", "env", "python3", "git", "gcc", "make", "diff", "su")


@dataclass
class House:
    """The address of the registry that has the tasks' image as debian:12, and a name server."""

    images: ImageRegistry
    names: NameServer
    web: WebServer

    def asked(self) -> list[str]:
        """Return the names by which pages were asked for."""
        return [headers.get("Host", "") for _, _, headers in self.web.requests]

    @property
    def _registries(self) -> list[dict[str, str]]:
        return [{"registry": "docker.io", "url": f"http://{self.images.host}"}]

    @property
    def variables(self) -> dict[str, str]:
        """What an engine in another process takes from its environment."""
        return {
            "CELLWALL_NETWORK": "open",
            "CELLWALL_NETWORK_ADDRESSES": f"{_PAGES},{FRONT}",
            "CELLWALL_NAME_SERVERS": self.names.address,
            "CELLWALL_IMAGE_REGISTRIES": json.dumps(self._registries),
        }

    @property
    def engine(self) -> str:
        """The same as lines of `[engine]`."""
        (each,) = self._registries
        return (
            f"network_addresses = ['{_PAGES}', '{FRONT}']\n"
            f"name_servers = ['{self.names.address}']\n"
            f"image_registries = [{{registry = '{each['registry']}', url = '{each['url']}'}}]\n"
        )


@contextlib.contextmanager
def house() -> Iterator[House]:
    """Serve image, names and page for the length of a block."""
    with (
        registry.running() as images,
        NameServer(_NAMES) as names,
        WebServer(pages={"/": b"outside\n"}, address=_PAGES, port=80) as web,
    ):
        path = real.PATH.replace("PATH=", "PATH=/opt/venv/bin:")
        images.add("library/debian:12", _layers(), Env=[path], Cmd=["/bin/bash"])
        yield House(images, names, web)


def _layers() -> list[bytes]:
    """Return a small Debian with a compiler, git, and pytest in an environment of its own."""
    tools = [f"/usr/bin/{name}" for name in _TOOLS]
    members = real.packaged([*tools, "/usr/sbin/useradd"], ("gcc", "libc6-dev"), compiles=True)
    profile = Path("/usr/share/base-files/profile").read_bytes()
    members += [directory("etc/profile.d"), member("etc/profile", profile), directory("etc/pam.d")]
    members += [member("etc/pam.d/su", archives.PAM)]  # root becomes every user, as in images
    members += [member("etc/shadow", b"root:*:::::::\n", mode=0o640)]
    return [layer(members), layer(real.pytest_environment())]
