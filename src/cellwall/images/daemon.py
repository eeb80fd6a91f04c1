"""Images of the Docker daemon of this machine, saved by it to an archive.

The client library is imported on use: `pip install 'cellwall[docker]'`. Runs in a thread.
"""

from __future__ import annotations

from pathlib import Path

from cellwall.model.errors import HostUnsupported, NotFound

_TIMEOUT_S = 600


def saved(name: str, folder: Path) -> Path:
    """Return the archive of an image, written to `folder`. Raises HostUnsupported, NotFound."""
    try:
        import docker
        import docker.errors
    except ImportError as error:
        raise HostUnsupported(
            "docker",
            "image: its client library is missing",
            remedy="pip install 'cellwall[docker]'",
        ) from error
    path = folder / "saved.tar"
    try:
        client = docker.from_env(timeout=_TIMEOUT_S)
        with path.open("wb") as file:
            for piece in client.images.get(name).save():
                file.write(piece)
    except docker.errors.ImageNotFound:
        raise NotFound(
            f"image docker://{name}: the daemon has none of that name", remedy="see `docker images`"
        ) from None
    except (docker.errors.DockerException, OSError) as error:
        raise HostUnsupported(
            "docker",
            f"image docker://{name}: {str(error)[:300]}",
            remedy="start the daemon, or name another one with DOCKER_HOST",
        ) from error
    return path
