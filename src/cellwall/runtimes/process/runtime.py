"""Process runtime: no isolation, for trusted code on a developer's machine.

A clean environment, a fresh directory, resource limits, an allow-list of interpreters and a
watchdog; code can still read and do whatever its user can. The engine refuses it unless the
operator switched it on. The invariant: it never claims more than that: level `process`, no posture
digest, and every limit that only the watchdog holds is called `soft`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.linux.removal import remove_tree
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.model.ids import new_id
from cellwall.model.outcome import IsolationLevel
from cellwall.runtimes.base import (
    Finding,
    RuntimeSandbox,
    RuntimeStatistics,
    SandboxSpec,
    SweepReport,
    refuse_image,
    refuse_network,
    refuse_profile,
    refuse_volumes,
)
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.process.rules import PathRules
from cellwall.runtimes.process.sandbox import (
    GuardedChannel,
    ProcessSandbox,
    check_cpus,
    rlimits,
)
from cellwall.runtimes.shared.guest_bundle import build_bundle

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate

_BUNDLE = ("cellwall.guest", "cellwall.runtimes.process.boot")
_ENTRY = "cellwall.runtimes.process.boot:main"
_READY_S = 30.0


class ProcessRuntime:
    """Runtime that starts sandboxes as plain process trees."""

    name = "process"
    level = IsolationLevel.PROCESS

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._home = state_dir / "process"
        self._owner: tuple[str, int] | None = None
        self._live: set[ProcessSandbox] = set()
        self._started = 0
        self._failed = 0

    async def probe(self) -> list[Finding]:
        """Report whether /proc lists child processes."""
        pid = os.getpid()
        if not os.access(f"/proc/{pid}/task/{pid}/children", os.R_OK):
            return [
                Finding(
                    "process tree",
                    "FAIL",
                    "/proc shows no children of a process",
                    "boot a kernel with CONFIG_PROC_CHILDREN",
                )
            ]
        return [Finding("isolation", "CAUTION", "runtime `process` isolates nothing", "")]

    async def warm(self, template: BuiltTemplate) -> None:
        """Write the guest bundle; nothing else can be prepared."""
        build_bundle(self._state_dir, _BUNDLE, _ENTRY)

    async def start(self, spec: SandboxSpec) -> RuntimeSandbox:
        """Start guardian and init, and wait until the contexts are ready."""
        if spec.demand_hard:
            raise HostUnsupported(
                "hard limits",
                "process runtime: limits are only held softly here",
                remedy="use isolation='namespace'; `cellwall doctor` says what that needs",
            )
        refuse_network(spec, self.name)
        refuse_image(spec, self.name)
        refuse_profile(spec, self.name)
        refuse_volumes(spec, self.name)
        check_cpus(spec.limits)
        try:
            sandbox = await self._start(spec)
        except Exception:
            self._failed += 1
            raise
        self._started += 1
        self._live.add(sandbox)
        sandbox.channel.on_end(lambda: self._live.discard(sandbox))
        return sandbox

    async def _start(self, spec: SandboxSpec) -> ProcessSandbox:
        directory = self._owner_directory() / spec.sandbox_id
        home, temporary = directory / "home", directory / "tmp"
        for path in (directory, home, temporary):
            path.mkdir(mode=0o700)
        errors_fd = os.memfd_create("cellwall-start", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        try:
            sandbox = _launch(spec, str(directory), self._command(spec), (ours, theirs), errors_fd)
            try:
                await sandbox.channel.wait_ready(_READY_S)
                sandbox.apply_limits_nowait(spec.limits)
            except ChannelLost as error:
                await sandbox.aclose()
                said = os.pread(errors_fd, 4096, 0).decode(errors="replace").strip()
                raise SandboxBroken(
                    f"process runtime: start sandbox {spec.sandbox_id}: {error}",
                    remedy=f"its interpreter said: {said or 'nothing'}",
                ) from None
            except BaseException:
                await sandbox.aclose()
                raise
        except BaseException:
            await asyncio.to_thread(remove_tree, str(directory))
            raise
        finally:
            theirs.close()
            os.close(errors_fd)
        return sandbox

    def _command(self, spec: SandboxSpec) -> list[str]:
        bundle = build_bundle(self._state_dir, _BUNDLE, _ENTRY)
        return [spec.template.python, "-I", "-S", str(bundle)]

    def _owner_directory(self) -> Path:
        """Return this process's directory, whose lock shows sweepers that the process lives."""
        if self._owner is None:
            path = self._home / new_id()
            path.mkdir(mode=0o700, parents=True)
            descriptor = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._owner = (str(path), descriptor)
        return Path(self._owner[0])

    def statistics(self) -> RuntimeStatistics:
        """Return the runtime's counts."""
        return RuntimeStatistics(len(self._live), self._started, self._failed)

    async def sweep(self) -> SweepReport:
        """Remove directories whose owner no longer holds its lock."""
        return await asyncio.to_thread(self._sweep)

    def _sweep(self) -> SweepReport:
        removed, kept = 0, []
        for path in self._home.iterdir() if self._home.is_dir() else ():
            if self._owner is not None and str(path) == self._owner[0]:
                continue
            try:
                descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                # Being made right now, or half removed: only the second kind is old.
                if time.time() - path.stat().st_mtime < 60:
                    continue
                descriptor = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(str(path))
                removed += 1
            except BlockingIOError:
                continue  # its owner lives
            except OSError as error:
                kept.append(f"{path}: {error.strerror}")
            finally:
                os.close(descriptor)
        return SweepReport({"directories": removed} if removed else {}, tuple(kept))

    async def aclose(self) -> None:
        """Destroy every sandbox and this process's directory; idempotent."""
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._live)))
        if self._owner is not None:
            path, descriptor = self._owner
            self._owner = None
            await asyncio.to_thread(remove_tree, path)
            os.close(descriptor)

    def abandon(self) -> None:
        """Forget everything without touching it; for a forked child of the embedder."""
        for sandbox in self._live:
            sandbox.abandon()
        self._live.clear()
        if self._owner is not None:
            os.close(self._owner[1])
            self._owner = None


def _launch(
    spec: SandboxSpec,
    directory: str,
    command: list[str],
    ends: tuple[socket.socket, socket.socket],
    errors_fd: int,
) -> ProcessSandbox:
    """Start the guardian; from here on the sandbox object owns it."""
    ours, theirs = ends
    home = f"{directory}/home"
    environment = _environment(spec, directory)
    leash_r, leash_w = os.pipe2(os.O_CLOEXEC)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors_fd,
            pass_fds=(theirs.fileno(), leash_r),
            env=environment,
            cwd=home,
        )
    except OSError as error:
        os.close(leash_w)
        ours.close()
        raise SandboxBroken(
            f"process runtime: start {command[0]}: {error.strerror}",
            remedy="rebuild the template: cellwall templates build",
        ) from None
    finally:
        os.close(leash_r)
    sandbox = ProcessSandbox(spec, directory, child, leash_w)
    sandbox.channel = GuardedChannel(ours, on_violation=lambda _: sandbox.kill())
    sandbox.channel.rules = PathRules.of(home, spec.template.python, environment["PATH"])
    sandbox.channel.on_work = sandbox.on_work
    configuration = {
        "channel_fd": theirs.fileno(),
        "leash_fd": leash_r,
        "rlimits": rlimits(spec.limits),
        "guest": {
            "home": home,
            "env": environment,
            "contexts": list(spec.contexts),
            "language": spec.language,
            "max_body": 32 << 20,
            "preload": [],
        },
    }
    with contextlib.suppress(BrokenPipeError):  # the child ended at once; wait_ready reports it
        assert child.stdin is not None  # noqa: S101 - stdin=PIPE above
        with child.stdin:
            child.stdin.write(json.dumps(configuration).encode())
    return sandbox


def _environment(spec: SandboxSpec, directory: str) -> dict[str, str]:
    return {
        "PATH": f"{os.path.dirname(spec.template.python)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": f"{directory}/home",
        "TMPDIR": os.path.join(directory, "tmp"),
        "USER": "user",
        "LANG": "C.UTF-8",
        **spec.template.template.env,
        **spec.env,
    }
