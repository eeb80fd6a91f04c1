"""The load of the soak: clients that run programs, keep sessions, misbehave, and a saboteur.

All of them stop at the `Gate` while somebody looks at the server. What a fault of our own making
may have ended is told apart from what the server did wrong: by time, and only for verdicts that
say that the sandbox ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from kit import controls
from kit.figures import children
from soak.programs import ATTACKS, BENIGN, Program

_OFTEN = 16
"""As many claims as a pool remembers."""
_AFTERMATH_S = 3.0
"""What ended this long after a fault may have ended by it."""
_EXCUSED = frozenset({"sandbox_error", "cancelled", "signalled", "error sandbox_broken"})
_ANEW = "this ran in a new one, without its state"


def _verdict(answer: dict[str, Any]) -> str:
    """The verdict, or the code of the error that stands in its place."""
    error = answer.get("error")
    if "verdict" not in answer and isinstance(error, dict):
        return f"error {error.get('code')}"
    return str(answer.get("verdict"))


def _is_anew(answer: dict[str, Any]) -> bool:
    """Whether it says that its context had ended, and the variables of its session with it."""
    return any(_ANEW in note for note in answer.get("notes") or ())


class Gate:
    """Lets work pass, or holds it back until nothing is under way."""

    def __init__(self) -> None:
        """Open."""
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Do one piece of work; waits while the gate is closed."""
        await self._is_open.wait()
        self._inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Hold everybody back and wait for the last one."""
        self._is_open.clear()
        try:
            await self._is_empty.wait()
            yield
        finally:
            self._is_open.set()


def _limits_of_attacks() -> list[dict[str, Any]]:
    return list({str(each.limits): each.limits for each in ATTACKS if each.limits}.values())


class Load:
    """Everything that happens to one server."""

    def __init__(self, client: httpx.AsyncClient, server_pid: int, seed: int) -> None:
        """`seed` fixes the order of what is random."""
        self._client = client
        self._pid = server_pid
        self._random = random.Random(seed)
        self.gate = Gate()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._faults: list[float] = []
        self._first_words: dict[str, str] = {}

    def workers(self) -> list[Callable[[], Any]]:
        """What runs side by side, each again and again."""
        return [
            self.benign,
            self.benign,
            self._session,
            self._attack,
            self._probe,
            self._leave,
            self._read_slowly,
            self._sabotage,
        ]

    async def settle(self) -> None:
        """Ask for the limits of each attack so often that the pool parks sandboxes with them.

        Otherwise it would begin to in the middle, which is growth, and no leak (design/0068).
        """
        for limits in _limits_of_attacks():
            for _ in range(_OFTEN):
                await self._execute({"code": "pass", "limits": limits})

    async def renew(self, parked: int) -> None:
        """Use up all that is parked, `parked` sandboxes of each kind.

        One that was forked before its fork-server was replaced keeps that one alive until it is
        used, which is a fork-server more for as long as no program asks for it, and no leak.
        """
        for _ in range(parked):
            for limits in ({}, *_limits_of_attacks()):
                await self._execute({"code": "pass", "limits": limits})
        boxes = [await self._client.post("/sandboxes", json={}) for _ in range(parked)]
        for made in boxes:
            if made.status_code == 201:
                await self._client.delete(f"/sandboxes/{made.json()['id']}")

    async def repeat(self, work: Callable[[], Any], until_s: float) -> None:
        """Do one kind of work until the end."""
        while time.monotonic() < until_s:
            async with self.gate.passing():
                await work()
            await asyncio.sleep(0)

    # -- judging ---------------------------------------------------------------------------

    def _expect(self, program: Program, answer: dict[str, Any], began_s: float) -> None:
        verdict = _verdict(answer)
        is_right = verdict in program.verdicts and (
            program.stdout is None or answer.get("stdout") == program.stdout
        )
        if is_right:
            self.done[program.name] += 1
        elif self._was_disturbed(began_s) and (verdict in _EXCUSED or _is_anew(answer)):
            self.done["ended by a fault of ours"] += 1
        else:
            notes = answer.get("notes") or answer.get("usage")
            self.wrong.append(f"{program.name}: {verdict} {str(answer)[:300]} {notes}")

    def _was_disturbed(self, began_s: float) -> bool:
        now = time.monotonic()
        return any(began_s - _AFTERMATH_S <= at <= now for at in self._faults)

    async def _execute(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._client.post("/execute", json=body)
        return dict(answer.json())

    # -- kinds of work ---------------------------------------------------------------------

    async def benign(self) -> None:
        """Run one program whose answer is known."""
        program = self._random.choice(BENIGN)
        began_s = time.monotonic()
        self._expect(program, await self._execute(program.request), began_s)

    async def _attack(self) -> None:
        program = self._random.choice(ATTACKS)
        began_s = time.monotonic()
        self._expect(program, await self._execute(program.request), began_s)

    async def _probe(self) -> None:
        """The attack suite's own probes: each attempt is denied as it was the first time."""
        name = self._random.choice(("probe_privilege", "probe_calls"))
        began_s = time.monotonic()
        code = "print('nonce')\n" + controls.source(name, {"work": "/tmp", "pid": "1"})
        answer = await self._execute({"code": code, "timeout": 30})
        if _verdict(answer) in _EXCUSED and self._was_disturbed(began_s):
            self.done["ended by a fault of ours"] += 1
            return
        if _verdict(answer) != "ok":
            self.wrong.append(f"{name}: {str(answer)[:500]}")
            return
        words = {key: tried.word for key, tried in controls.parse(answer["stdout"]).items()}
        text = "\n".join(f"{case} {what}: {word}" for (case, what), word in sorted(words.items()))
        if not words or text != self._first_words.setdefault(name, text):
            self.wrong.append(f"{name}: other words than the first time:\n{text[:2000]}")
        else:
            self.done[name] += 1

    async def _session(self) -> None:
        began_s = time.monotonic()
        made = await self._client.post("/sandboxes", json={"limits": {"idle_s": 60}})
        if made.status_code != 201:
            self.wrong.append(f"session: {made.text[:500]}")
            return
        box = f"/sandboxes/{made.json()['id']}"
        try:
            for n in range(5):
                code = f"total = {n} if {n} == 0 else total + {n}\nprint(total)"
                answer = await self._client.post(
                    f"{box}/execute", json={"code": code}, headers={"Accept": "application/json"}
                )
                program = Program("cell", {}, ("ok",), None)
                found = self._last(answer)
                self._expect(program, found, began_s)
                if found.get("verdict") != "ok":
                    return
        finally:
            await self._client.delete(box)

    @staticmethod
    def _last(answer: httpx.Response) -> dict[str, Any]:
        """The answer object, or the last line of a stream."""
        import json

        lines = [json.loads(line) for line in answer.text.splitlines() if line]
        found = dict(lines[-1]) if lines else {}
        error = found.get("error")
        if answer.status_code in (404, 409, 410) and isinstance(error, dict):
            return {"verdict": "sandbox_error", "stdout": "", "error": error}
        return {"stdout": "", **found}

    async def _leave(self) -> None:
        """A client that goes away in the middle."""
        code = "import time\nprint('up', flush=True)\ntime.sleep(30)"
        task = asyncio.ensure_future(self._execute({"code": code, "timeout": 30}))
        await asyncio.sleep(self._random.random() * 0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.done["left"] += 1

    async def _read_slowly(self) -> None:
        """A reader that takes a little now and then, and hangs up."""
        code = "import os\nfor _ in range(100): os.write(1, b'y' * 65536)"
        body = {"code": code, "timeout": 20, "limits": {"output_kb": 16_384}}
        headers = {"Accept": "application/x-ndjson"}
        async with self._client.stream("POST", "/execute", json=body, headers=headers) as answer:
            taken = 0
            async for chunk in answer.aiter_raw(1024):
                taken += len(chunk)
                await asyncio.sleep(0.1)
                if taken > 8 * 1024:
                    break
        self.done["read slowly"] += 1

    # -- faults ----------------------------------------------------------------------------

    async def _sabotage(self) -> None:
        await asyncio.sleep(self._random.uniform(1, 4))
        kind = self._random.choice(("fork-server", "worker", "boot", "init", "context", "stop"))
        boots = [pid for pid in children(self._pid) if children(pid)]
        if not boots:
            return
        self._faults.append(time.monotonic())
        if kind == "stop":
            os.kill(self._pid, signal.SIGSTOP)
            await asyncio.sleep(0.3)
            os.kill(self._pid, signal.SIGCONT)
        else:
            self._kill(kind, self._random.choice(boots))
        self._faults.append(time.monotonic())
        self.done[f"fault: {kind}"] += 1

    def _kill(self, kind: str, boot: int) -> None:
        generation = [boot]
        for name in ("fork-server", "worker", "init", "context"):
            if kind == "boot":
                break
            generation = [pid for parent in generation for pid in children(parent)]
            if name == kind:
                break
        if generation:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(generation), signal.SIGKILL)
