"""L14, M09: what all sandboxes share of the root tells none of them what another did to it.

The witness is a neighbour, or the host, that looks at the same name. The control of each attack is
the same attack on a jail without that guard, where the witness has to see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import Engine, EngineSettings
from cellwall.engine.templates.store import state_dir
from cellwall.jail.inspect import overlay_depth, posture
from cellwall.jail.plan.plan import TEMPLATE_ROOT
from conftest import Require
from kit.attack.mutations import Drop, dropping

pytestmark = [pytest.mark.attack, pytest.mark.root]


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    return dropping(tmp_path, monkeypatch)


async def _beside(attack: str, look: str) -> tuple[str, str, str]:
    """What one sandbox says of its attack, and what another sees before and after it."""
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        async with await engine.create_sandbox() as one, await engine.create_sandbox() as other:
            before = (await other.run(look)).stdout
            said = (await one.run(attack)).stdout
            return said, before, (await other.run(look)).stdout
    finally:
        await engine.aclose()


_NAMES = ("null", "zero", "full", "random", "urandom", "tty")
_TOUCH = f"""
import os
for name in {_NAMES}:
    try: os.utime("/dev/" + name); print("touched")
    except OSError as error: print(error.errno)
"""
_TIMES = f"""
import os
print([os.stat("/dev/" + name).st_mtime_ns for name in {_NAMES}])
"""
_WRITABLE_DEVICES = """
_execute = Device.execute_from
def _writable(self, root, source_fd):
    kept, mounts.ATTR_RDONLY = mounts.ATTR_RDONLY, 0
    try: _execute(self, root, source_fd)
    finally: mounts.ATTR_RDONLY = kept
Device.execute_from = _writable
"""


def test_times_of_devices_carry_nothing(drop: Drop, monkeypatch: pytest.MonkeyPatch) -> None:
    """M09: every program may write to them, and with that may set their times to "now"."""
    said, before, after = asyncio.run(_beside(_TOUCH, _TIMES))
    assert said.split() == [str(errno.EROFS)] * len(_NAMES)
    assert before == after
    drop(steps=_WRITABLE_DEVICES)
    with pytest.raises(Exception, match="mount /dev/null"):  # the posture sees it
        asyncio.run(_beside(_TOUCH, _TIMES))
    monkeypatch.setattr(posture, "compare_mounts", lambda *_: None)
    said, before, after = asyncio.run(_beside(_TOUCH, _TIMES))
    assert said.split() == ["touched"] * len(_NAMES), "the control"
    assert before != after, "the control"


# -- what is in shared trees -----------------------------------------------------------------


class Meeting:
    """A folder below a tree that sandboxes are shown, in which the host listens; ours to make."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cellwall-meeting-", dir="/usr/local")
        self.path = Path(self._folder.name)
        self.path.chmod(0o755)
        self._stream = socket.socket(socket.AF_UNIX)
        self._datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for made, name in ((self._stream, "stream"), (self._datagram, "datagram")):
            made.bind(str(self.path / name))
            (self.path / name).chmod(0o777)
            made.setblocking(False)
        self._stream.listen()
        os.mkfifo(self.path / "fifo")
        (self.path / "fifo").chmod(0o666)
        self._fifo = os.open(self.path / "fifo", os.O_RDWR | os.O_NONBLOCK)
        os.write(self._fifo, b"said by the host\n")
        (self.path / "file").write_text("public\n")
        self.file = os.open(self.path / "file", os.O_RDONLY)

    def heard(self) -> list[str]:
        """Who came."""
        found = []
        with contextlib.suppress(BlockingIOError):
            self._stream.accept()[0].close()
            found.append("stream")
        with contextlib.suppress(BlockingIOError):
            self._datagram.recv(100)
            found.append("datagram")
        return found

    def close(self) -> None:
        self._stream.close()
        self._datagram.close()
        os.close(self._fifo)
        os.close(self.file)
        self._folder.cleanup()


@pytest.fixture
def meeting(require: Require) -> Iterator[Meeting]:
    """Only root of the host can make what a service would have there."""
    require("a writable /usr/local", os.access("/usr/local", os.W_OK), "run the tests as root")
    found = Meeting()
    yield found
    found.close()


_CALL = """
import os, socket
for kind, name in ((socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "datagram")):
    try:
        with socket.socket(socket.AF_UNIX, kind) as line:
            line.connect({folder!r} + "/" + name)
            line.send(b"a secret of the inside")
        print("connected")
    except OSError as error: print(error.errno)
try:
    fifo = os.open({folder!r} + "/fifo", os.O_RDONLY | os.O_NONBLOCK)
    print(os.read(fifo, 100).decode() or "nobody")
except OSError as error: print(error.errno)
"""
_NO_LAYERS = """
_dropped = sandbox_plan, root_plan
def root_plan(facts, root): return _dropped[1](_without(facts), root)
def sandbox_plan(facts, shape): return _dropped[0](_without(facts), shape)
def _without(facts):
    from dataclasses import replace
    return facts._replace(layers=0, channels=())
"""


async def _one(code: str) -> str:
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        return (await engine.run(code)).stdout
    finally:
        await engine.aclose()


def test_sockets_and_fifos_of_shared_trees_lead_nowhere(
    meeting: Meeting, drop: Drop, require: Require
) -> None:
    """L14: a service of the host's that listens below /usr."""
    _require_layers(require, 1)
    code = _CALL.format(folder=str(meeting.path))
    refused = asyncio.run(_one(code)).split("\n")
    assert refused[:2] == [str(errno.ECONNREFUSED)] * 2
    assert refused[2] in {"nobody", str(errno.EAGAIN)}
    assert meeting.heard() == []
    drop(plan=_NO_LAYERS)
    said = asyncio.run(_one(code))
    assert said.split("\n")[:3] == ["connected", "connected", "said by the host"], "the control"
    assert meeting.heard() == ["stream", "datagram"], "the control"


def test_sockets_are_covered_where_no_overlay_can_be_had(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there when a template's root is made; `doctor` says the rest."""
    monkeypatch.setattr(overlay_depth, "ask", lambda _: overlay_depth.Layers(0, "the test says so"))
    said = asyncio.run(_one(_CALL.format(folder=str(meeting.path)))).split("\n")
    assert said[:2] == [str(errno.EACCES)] * 2  # the empty file is nobody's to write to
    assert said[2] == "nobody"
    assert meeting.heard() == []


def test_socket_that_has_gone_since_it_was_seen_is_no_fault(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program may end between the look and the mount."""
    gone = f"{meeting.path}/gone"
    monkeypatch.setattr(overlay_depth, "ask", lambda _: overlay_depth.Layers(0, "the test says so"))
    looked = overlay_depth.channels
    monkeypatch.setattr(overlay_depth, "channels", lambda trees: (*looked(trees), gone))
    said = asyncio.run(_one(_CALL.format(folder=str(meeting.path)))).split("\n")
    assert said[:2] == [str(errno.EACCES)] * 2, "those that are there are covered"
    assert meeting.heard() == []


_LOCK = """
import fcntl, os
held = [os.open(path, os.O_RDONLY) for path in {paths!r}]
for fd in held:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(os.open({paths!r}[held.index(fd)], os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
print("locked")
"""
_LOCKED = """
import fcntl, os
for path in {paths!r}:
    fd = os.open(path, os.O_RDONLY)
    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); print("free")
    except OSError as error: print(error.errno)
"""


def _host_says(fd: int) -> str:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "locked"
    fcntl.flock(fd, fcntl.LOCK_UN)
    return "free"


async def _locks(meeting: Meeting) -> tuple[str, str, str]:
    """What the first sandbox says, what the second finds, and what the host finds."""
    inside = ["/usr", "/etc/passwd", "/etc", "/opt/cellwall/guest.pyz", "/proc/cpuinfo"]
    paths = [str(meeting.path / "file"), f"{TEMPLATE_ROOT}/pyvenv.cfg", *inside]
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        async with await engine.create_sandbox() as one, await engine.create_sandbox() as other:
            said = (await one.run(_LOCK.format(paths=paths))).stdout
            found = (await other.run(_LOCKED.format(paths=paths))).stdout
            return said, found, _host_says(meeting.file)
    finally:
        await engine.aclose()


def test_locks_on_shared_files_reach_nobody(meeting: Meeting, drop: Drop, require: Require) -> None:
    """M09: neither a neighbour of the same template nor the host."""
    _require_layers(require, 2)
    said, found, host = asyncio.run(_locks(meeting))
    assert said == "locked\n"
    assert set(found.split()) == {"free"}
    assert host == "free"
    drop(plan=_NO_LAYERS)
    said, found, host = asyncio.run(_locks(meeting))
    assert said == "locked\n"
    assert set(found.split()) == {str(errno.EAGAIN)}, "the control"
    assert host == "locked", "the control"


def _require_layers(require: Require, wanted: int) -> None:
    given = overlay_depth.ask(["/usr", str(state_dir())])
    require(f"{wanted} overlays over one another", given.depth >= wanted, given.problem)


_WATCH = """
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
print(libc.inotify_add_watch(fd, {path!r}.encode(), 0xFCE))
"""
_TOLD = """
print(bool(select.select([fd], [], [], 0)[0]))
"""


async def _watches(meeting: Meeting) -> list[str]:
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        async with await engine.create_sandbox() as one:
            said = (await one.run(_WATCH.format(path=str(meeting.path)))).stdout
            (meeting.path / "written").write_text("the host works")
            (meeting.path / "written").unlink()
            return [*said.split(), *(await one.run(_TOLD)).stdout.split()]
    finally:
        await engine.aclose()


def test_changes_of_shared_trees_are_not_told(
    meeting: Meeting, drop: Drop, require: Require
) -> None:
    """M09: that somebody on the host installs or writes something, and when."""
    _require_layers(require, 1)
    assert asyncio.run(_watches(meeting)) == ["1", "False"]
    drop(plan=_NO_LAYERS)
    assert asyncio.run(_watches(meeting)) == ["1", "True"], "the control"
