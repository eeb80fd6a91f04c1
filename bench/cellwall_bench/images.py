"""Rows of sandboxes whose root is an image, beside plain Python, `docker run` and `tar xf`.

Called by `runner`. The image is made of this machine's own programs: a shell, Python and what they
need. Invariant: ours and the plain tool take turns, with the same image and the same layers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.apps.engines import state, wait_parked
from cellwall.apps.timings import FLOOR, PLAIN, Samples, TimingError, once
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.templates.store import TemplateStore
from cellwall_bench.figures import Figure, p50, p95
from cellwall_bench.latency import as_figure, bare_argv
from cellwall_bench.processes import tree_pss_bytes
from kit.images import archives
from kit.images.host_tree import PATH, host_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.runtimes.roots import ImageRoot

_PARKED_S = 60.0
_MIB = 1 << 20


@contextlib.contextmanager
def _image(*, compressed: bool = False, **config: object) -> Iterator[tuple[Path, Path]]:
    """Yield an archive of an image, and the tar of its one layer; `compressed`: both by gzip."""
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-image-") as place:
        folder = Path(place)
        tree, layer = host_tree(folder), folder / "layer.tar"
        with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(tree, ".", filter=_of_root)
        data = layer.read_bytes()
        own = archives.config_of([data], Env=[f"PATH={PATH}"], **config)
        if compressed:
            layer.write_bytes(gzip.compress(data, 1))
        make = archives.oci_archive if compressed else archives.docker_archive
        yield make(folder / "image.tar", [data], own), layer


@contextlib.asynccontextmanager
async def _engine(pool: int) -> AsyncIterator[Engine]:
    """Open an engine with a state directory of its own: its images go with it."""
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-state-") as place:
        settings = EngineSettings(pool_min=pool, pool_max=pool)
        engine = Engine(Path(place), settings, templates=TemplateStore(state()))
        try:
            yield engine
        finally:
            await engine.aclose()


async def _root(engine: Engine) -> ImageRoot:
    with _image() as (archive, _):
        return await engine.images.root(str(archive))


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


async def echo(key: str, samples: int, pool: int) -> Figure:
    """Measure `echo ok` in a new sandbox on the image against a bare Python."""
    ours: list[float] = []
    floor: list[float] = []
    async with _engine(pool) as engine:
        root = await _root(engine)
        for _ in range(samples + 2):
            if pool and ours:
                await asyncio.wait_for(wait_parked(engine), _PARKED_S)
            begun = time.perf_counter()
            sandbox = await engine.create_sandbox(image=root)
            await _echo(sandbox)
            ours.append(time.perf_counter() - begun)
            await sandbox.close()
            floor.append(await asyncio.to_thread(once, bare_argv(FLOOR[0], PLAIN)))
    return as_figure(key, Samples(ours[2:], floor[2:]))


async def _echo(sandbox: AsyncSandbox) -> None:
    said = await sandbox.commands.run(["echo", "ok"])
    if said.stdout != "ok\n":
        raise TimingError(f"echo said {said.stdout!r} {said.stderr!r}")


async def against_docker(key: str, samples: int) -> Figure:
    """Measure the same, without a pool, against `docker run --rm` of the same image."""
    program = shutil.which("docker")
    if program is None:
        raise TimingError("no `docker` to compare with; run: apt-get install docker.io")
    ours: list[float] = []
    plain: list[float] = []
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    docker = [program, f"--host={address}"]
    async with _engine(0) as engine:
        with _image() as (archive, layer):
            root = await engine.images.root(str(archive))
            words = [*docker, "import", str(layer)]
            name = await asyncio.to_thread(_said, words)
        words = [*docker, "run", "--rm", "--network=none", name, "echo", "1"]
        try:
            for _ in range(samples + 1):
                begun = time.perf_counter()
                sandbox = await engine.create_sandbox(image=root)
                await _echo(sandbox)
                ours.append(time.perf_counter() - begun)
                await sandbox.close()
                plain.append(await asyncio.to_thread(once, words))
        finally:
            await asyncio.to_thread(_said, [*docker, "rmi", name])
    ratio = p50(ours[1:]) / p50(plain[1:])
    detail = (
        f"{p50(ours[1:]) * 1e3:.1f} ms p50, {p95(ours[1:]) * 1e3:.1f} ms p95; "
        f"`docker run --rm` = {p50(plain[1:]) * 1e3:.0f} ms; {samples} samples"
    )
    return Figure(key, ratio, detail)


async def live(key: str, count: int) -> Figure:
    """Measure the memory that each of `count` live sandboxes on one image adds; and the disk."""
    async with _engine(0) as engine:
        root = await _root(engine)
        first = await engine.create_sandbox(image=root)
        await _echo(first)
        store = Path(root.tree).parent.parent
        disk, memory = _disk(store), tree_pss_bytes()
        more = [await engine.create_sandbox(image=root) for _ in range(count)]
        idle = (tree_pss_bytes() - memory) / count / _MIB
        for sandbox in more:
            await _echo(sandbox)
        used = (tree_pss_bytes() - memory) / count / _MIB
        grown = _disk(store) - disk
        await asyncio.gather(*(sandbox.close() for sandbox in (first, *more)))
    return Figure(
        key,
        idle,
        f"{count} more live sandboxes, {used:.1f} MiB once each ran `echo`; the image is "
        f"{disk / _MIB:.0f} MiB on disk, which grew by {grown / _MIB:.1f} MiB",
    )


def _disk(folder: Path) -> int:
    return int(_said(["du", "-sB1", str(folder)]).split()[0])


def _said(words: list[str]) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


async def unpacked(key: str, rounds: int, *, compressed: bool = False) -> Figure:
    """Measure the import of an image against `tar xf` of its layer, both to the disk.

    `compressed`: its layer is, as all are that come from a registry.

    The engine has had a sandbox, as one of a server has: what is made once for a state directory,
    and how an engine learns what this machine can do, is no part of an import.
    Nothing is removed before the end: the disk would still discard what a round before had (the
    mount option `discard`), and ext4 looks past inodes that were just freed, both at the cost of
    what comes next.
    """
    ours: list[float] = []
    plain: list[float] = []
    async with contextlib.AsyncExitStack() as kept:
        for number in range(rounds + 1):
            engine = await kept.enter_async_context(_engine(0))
            archive, layer = kept.enter_context(
                _image(compressed=compressed, Labels={"round": str(number)})
            )
            await (await engine.create_sandbox()).close()
            # What the archive itself has still to bring to the disk is no part of either.
            await asyncio.to_thread(_said, ["sync", "-f", str(archive)])
            begun = time.perf_counter()
            root = await engine.images.root(str(archive))
            ours.append(time.perf_counter() - begun)
            target = Path(root.tree).parent.parent / f".tar-{os.getpid()}"
            target.mkdir()
            kept.callback(shutil.rmtree, target)
            begun = time.perf_counter()
            words = ["tar", "xf", str(layer), "--numeric-owner", "-C", str(target)]
            await asyncio.to_thread(subprocess.run, words, check=True)
            await asyncio.to_thread(subprocess.run, ["sync", "-f", str(target)], check=True)
            plain.append(time.perf_counter() - begun)
    ratio = p50(ours[1:]) / p50(plain[1:])
    took, other = p50(ours[1:]), p50(plain[1:])
    detail = f"{took:.2f} s p50; `tar xf` and `sync -f` = {other:.2f} s; {rounds} rounds"
    return Figure(key, ratio, detail)
