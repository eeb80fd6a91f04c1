"""The egress proxy as a process: without rights, without a copy of its listeners, and mortal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellwall import Sandbox
from cellwall.egress.proxy import proxy_process
from kit.outside.servers import Sink
from kit.outside.world import World, world

pytestmark = pytest.mark.root


@pytest.fixture
def own() -> Iterator[World]:
    """A world whose proxy this test may kill."""
    with world() as made:
        yield made


def _pid(made: World) -> int:
    async def ask(engine: object) -> int | None:
        return engine.outside.proxy.pid  # type: ignore[attr-defined,no-any-return]

    found = made.runner.call(lambda engine, _put: ask(engine))
    assert found is not None
    return found


def _wait(what: Callable[[], object], most_s: float = 30, told: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + most_s
    while not what():
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)


def _events(sandbox: Sandbox) -> list[str]:
    return [each["event"] for each in sandbox.network_log()]


def _gone(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


_DIAL = (
    "import socket, time\n"
    "begun = time.monotonic()\n"
    "try:\n"
    "    socket.create_connection(('198.18.0.1', {port}), 5).close(); print('connected')\n"
    "except OSError as error: print(type(error).__name__)\n"
    "assert time.monotonic() - begun < 2\n"
)


def test_the_process_has_no_rights(outside: World) -> None:
    with outside.sandbox(["web.test"]):
        status = Path(f"/proc/{_pid(outside)}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in facts["Uid"].split()
    assert "0" not in facts["Gid"].split()
    assert not facts["Groups"].strip()
    assert {int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert facts["NoNewPrivs"] == "1"


def test_killed_there_is_no_network_rather_than_an_open_one(own: World) -> None:
    port = own.web.port
    with own.sandbox([f"web.test:{port}"]) as sandbox:
        held = sandbox.run(
            f"import socket; held = socket.create_connection(('web.test', {port}), 5); "
            "held.settimeout(10); print(held.getpeername()[0])"
        )
        assert held.stdout == "198.18.0.1\n"

        async def forget(engine: object) -> None:
            engine.outside.serve_again = lambda _network: None  # type: ignore[attr-defined]

        own.runner.call(lambda engine, _put: forget(engine))
        pid = _pid(own)
        os.kill(pid, signal.SIGKILL)
        _wait(lambda: _gone(pid))
        ended = sandbox.run(
            "try: print(held.recv(1))\nexcept ConnectionError as error: print('reset')"
        )
        assert ended.stdout in ("reset\n", "b''\n")
        assert sandbox.run(_DIAL.format(port=port)).stdout == "ConnectionRefusedError\n"
        assert sandbox.run("1").outcome.verdict == "ok"  # the rest of the sandbox goes on


def test_killed_the_network_comes_back(own: World) -> None:
    port = own.web.port
    get = (
        "import urllib.request; "
        f"print(urllib.request.urlopen('http://web.test:{port}/', timeout=5).status)"
    )
    with own.sandbox([f"web.test:{port}"]) as sandbox:
        assert sandbox.run(get).stdout == "200\n"
        sandbox.run(f"import socket; held = socket.create_connection(('web.test', {port}), 5)")
        _wait(lambda: [each["event"] for each in sandbox.network_log()].count("open") == 2)
        first = _pid(own)
        os.kill(first, signal.SIGKILL)
        _wait(lambda: _gone(first))
        _wait(lambda: sandbox.run(get).stdout == "200\n")
        assert _pid(own) != first
        assert any(record["event"] == "proxy_ended" for record in sandbox.network_log())
        lost = [record for _, record in own.records if record["event"] == "lost"]
        assert [record["host"] for record in lost] == ["web.test"]  # the one that was open
        assert sandbox.network_usage().connections >= 2  # of both processes


def test_a_policy_changed_while_there_is_no_proxy_holds_afterwards(own: World) -> None:
    port = own.web.port
    with own.sandbox([f"web.test:{port}", f"other.test:{port}"]) as sandbox:

        async def forget(engine: object) -> None:
            engine.outside.serve_again = lambda _network: None  # type: ignore[attr-defined]

        own.runner.call(lambda engine, _put: forget(engine))
        pid = _pid(own)
        os.kill(pid, signal.SIGKILL)
        _wait(lambda: _gone(pid))
        sandbox.set_network([f"other.test:{port}"])
        assert str(sandbox.network) == f"allow other.test:{port}"
        get = (
            "import urllib.request\n"
            f"for name in ('web', 'other'):\n"
            f"    try: print(urllib.request.urlopen(f'http://{{name}}.test:{port}/').status)\n"
            "    except OSError as error: print(type(error).__name__)\n"
        )
        assert sandbox.run(get).stdout == "URLError\n200\n"


def test_what_dies_with_its_proxy_again_and_again_is_given_up(own: World) -> None:
    with own.sandbox(["web.test"]) as sandbox:
        for times in range(1, 7):
            pid = _pid(own)
            os.kill(pid, signal.SIGKILL)
            _wait(lambda: _gone(pid))  # noqa: B023 - waited for here
            _wait(lambda: _times_ended(sandbox) == times)  # noqa: B023 - as above
            if times <= 5:
                _wait(lambda: _is_served(own, sandbox))
        assert not _is_served(own, sandbox)
        sandbox.set_network(["web.test"])  # its owner may ask for it once more
        assert _is_served(own, sandbox)


def _times_ended(sandbox: Sandbox) -> int:
    return [each["event"] for each in sandbox.network_log()].count("proxy_ended")


def _is_served(made: World, sandbox: Sandbox) -> bool:
    async def ask(engine: object) -> bool:
        return engine.outside.proxy.serves(sandbox.id)  # type: ignore[attr-defined,no-any-return]

    return made.runner.call(lambda engine, _put: ask(engine))


def test_stopped_it_is_killed(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_process, "_PING_EVERY_S", 0.1)
    monkeypatch.setattr(proxy_process, "_PATIENCE_S", 0.5)
    with own.sandbox(["web.test"]):
        pid = _pid(own)
        os.kill(pid, signal.SIGSTOP)
        _wait(lambda: _gone(pid))


_ENGINE = """
import json, os, sys, threading
from cellwall import EngineSettings
from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from functools import partial
runner = Runner(partial(Engine, settings=EngineSettings(pool_min=0, pool_max=0)))
from cellwall import Sandbox
sandbox = Sandbox(runner=runner, runtime="jail", network=["web.test"])
async def pid(engine): return engine.outside.proxy.pid
print(json.dumps(runner.call(lambda engine, _put: pid(engine))), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_it_ends_with_its_engine(is_stopped: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _ENGINE], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout is not None
        pid = int(json.loads(engine.stdout.readline()))
        assert not _gone(pid)
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        engine.kill()
    _wait(lambda: _gone(pid))


def test_many_long_records_at_once_end_no_proxy(own: World) -> None:
    """Their connections end together, and the records are more than one message takes."""
    port = own.web.port
    with own.sandbox([f"web.test:{port}"], limits={"open_files": 256}) as sandbox:
        first = _pid(own)
        done = sandbox.run(
            "import socket\n"
            "held = []\n"
            "for _ in range(80):\n"
            f"    s = socket.create_connection(('web.test', {port}), 10); held.append(s)\n"
            "    for number in range(20):\n"
            "        path = b'/' + b'a' * 190\n"
            "        s.sendall(b'GET ' + path + b' HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n')\n"
            "        s.recv(1000)\n"
            "for s in held: s.close()\n",
            timeout=60,
        )
        assert done.outcome.verdict == "ok", done.error
        _wait(lambda: _events(sandbox).count("close") == 80, told=lambda: Counter(_events(sandbox)))
        longest = max(len(json.dumps(each)) for each in sandbox.network_log())
        assert 80 * longest > 131_072  # the control: more than one message takes
        assert _pid(own) == first


def test_only_so_many_connections_at_once(outside: World) -> None:
    port = outside.sink.port
    policy = {"allow": [f"web.test:{port}"], "connections": 5}
    with outside.sandbox(policy, limits={"open_files": 256}) as sandbox:
        done = sandbox.run(
            "import socket\n"
            f"held = [socket.create_connection(('web.test', {port}), 5) for _ in range(12)]\n"
            "open_ = 0\n"
            "for each in held:\n"
            "    each.settimeout(2)\n"
            "    try:\n"
            "        each.sendall(b'*x'); each.recv(1)\n"
            "    except TimeoutError: open_ += 1\n"
            "    except ConnectionError: pass\n"
            "print(open_)\n",
            timeout=60,
        )
        assert done.stdout == "5\n", done.error
        assert sandbox.network_usage().refused >= 7
        # The control: what ends makes room, once the proxy has seen the ends.
        again = sandbox.run(
            "for each in held: each.close()\n"
            "def state():\n"
            f"    with socket.create_connection(('web.test', {port}), 5) as one:\n"
            "        one.settimeout(1)\n"
            "        try: one.sendall(b'*x'); return one.recv(1)\n"
            "        except TimeoutError: return 'open'\n"
            "        except ConnectionError: return 'refused'\n"
            "while (seen := state()) == 'refused': pass\n"
            "print(seen)\n"
        )
        assert again.stdout == "open\n"


@pytest.mark.parametrize(("most_mb", "sent_mb"), [(1, 5), (20, 5)], ids=["above", "below"])
def test_a_transfer_has_an_end(outside: World, most_mb: int, sent_mb: int) -> None:
    """The witness outside gets no more than the limit and one piece of the relay's."""
    with Sink() as sink:
        policy = {"allow": [f"web.test:{sink.port}"], "transfer_mb": most_mb}
        with outside.sandbox(policy) as sandbox:
            sandbox.run(
                "import socket\n"
                f"held = socket.create_connection(('web.test', {sink.port}), 5)\n"
                "try:\n"
                f"    for _ in range({sent_mb}): held.sendall(b'*' * 1048576)\n"
                "    held.close()\n"
                "except OSError: pass\n"
            )
            _wait(lambda: sink.said)
        arrived = len(sink.said[0])
    if most_mb < sent_mb:
        assert arrived <= (most_mb << 20) + (1 << 20)
    else:
        assert arrived == sent_mb << 20


@pytest.mark.parametrize("rate", [1024, None], ids=["paced", "free"])
def test_a_rate_is_held(outside: World, rate: int | None) -> None:
    with Sink() as sink:
        policy = {"allow": [f"web.test:{sink.port}"], "rate_kb_s": rate}
        with outside.sandbox(policy) as sandbox:
            sandbox.run("1")
            begun = time.monotonic()
            sandbox.run(
                f"import socket; held = socket.create_connection(('web.test', {sink.port}), 5); "
                "held.sendall(b'*' * (2 << 20)); held.close()"
            )
            _wait(lambda: sink.said)
            took_s = time.monotonic() - begun
        assert len(sink.said[0]) == 2 << 20
    assert (took_s > 1.5) == (rate is not None)


def test_a_slow_reader_holds_up_itself_alone(outside: World) -> None:
    """Its megabytes wait at the server's side, not in the proxy; its neighbour is served."""

    def pour(held: object) -> None:
        held.recv(10)  # type: ignore[attr-defined]
        for _ in range(200):
            held.sendall(bytes(1 << 20))  # type: ignore[attr-defined]

    with Sink(pour) as well, outside.sandbox([f"web.test:{well.port}"]) as slow:
        slow.run(
            f"import socket; held = socket.create_connection(('web.test', {well.port}), 5); "
            "held.sendall(b'*x'); held.recv(10)"
        )
        before = _rss(_pid(outside))
        with outside.sandbox([f"web.test:{outside.web.port}"]) as neighbour:
            url = f"http://web.test:{outside.web.port}/"
            got = neighbour.run(
                f"import urllib.request; print(urllib.request.urlopen({url!r}).status)"
            )
            assert got.stdout == "200\n"
        assert _rss(_pid(outside)) - before < 16 << 20


@pytest.mark.parametrize("gib", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_gigabytes_pass_in_flat_memory(outside: World, gib: int) -> None:
    size = gib << 30

    def pour(held: object) -> None:
        held.recv(10)  # type: ignore[attr-defined]
        piece = bytes(1 << 20)
        for _ in range(size >> 20):
            held.sendall(piece)  # type: ignore[attr-defined]

    with Sink(pour) as well, outside.sandbox([f"web.test:{well.port}"]) as sandbox:
        sandbox.run("1")
        before = _rss(_pid(outside))
        done = sandbox.run(
            "import socket\n"
            f"held = socket.create_connection(('web.test', {well.port}), 5)\n"
            "held.sendall(b'*x'); n = 0; piece = bytearray(1 << 20)\n"
            "while k := held.recv_into(piece): n += k\n"
            "print(n)\n",
            timeout=60,
        )
        assert done.stdout == f"{size}\n", done.error
        assert _rss(_pid(outside), "VmHWM") - before < 16 << 20


def _rss(pid: int, name: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)
