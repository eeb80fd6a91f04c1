"""verifiers' runtime for E2B against a server of ours; run by `test_agents_verifiers.py`.

What differs from one run to another comes in variables, because this has an environment of its
own, without cellwall.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.interception.server import InterceptionServer, InterceptionServerConfig
from verifiers.v1.interception.tunnel.custom import CustomTunnelConfig
from verifiers.v1.runtimes import E2BConfig, Runtime, provision_runtime

sys.path.insert(0, str(Path(__file__).parent))
IMAGE = os.environ["VERIFIERS_IMAGE"]
FRONT = os.environ["VERIFIERS_FRONT"]
"""An address of this machine that a sandbox may reach as front.test; its port 80 is free."""
FETCH = """
import sys, urllib.request
for host in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(f"http://{host}/", timeout=10).read().decode().strip())
    except OSError:
        print("unreachable")
"""


def config(**more: Any) -> E2BConfig:
    return E2BConfig(
        image=IMAGE, cpu=1, memory=0.5, workdir="/work/here", creates_per_sec=None, **more
    )


def in_sandbox(work: Callable[[Runtime], Awaitable[None]], **more: Any) -> None:
    async def whole() -> None:
        async with provision_runtime(config(**more), env={"OF_TASK": "a task's"}) as runtime:
            await work(runtime)

    asyncio.run(whole())


def test_commands_and_files() -> None:
    async def work(runtime: Runtime) -> None:
        done = await runtime.run(
            ["sh", "-c", 'id -un; pwd; echo "$OF_TASK $MORE $PATH"; echo err >&2; exit 3'],
            {"MORE": "it's", "PATH": "/mine:/usr/bin:/bin"},
        )
        said = "root\n/work/here\na task's it's /mine:/usr/bin:/bin\n"
        assert (done.exit_code, done.stdout, done.stderr) == (3, said, "err\n")
        data = bytes(range(256)) * 5000
        await runtime.write("deep/er/data.bin", data)
        await runtime.write("/srv/text.txt", "ü\n".encode())
        assert await runtime.read("/work/here/deep/er/data.bin") == data
        assert await runtime.read("/srv/text.txt", max_bytes=10) == "ü\n".encode()
        with pytest.raises(vf.SandboxError):
            await runtime.read("missing")
        program = "import sys; print('out' * 1000); print('err', file=sys.stderr); sys.exit(7)"
        ended = await runtime.run_program(["python3", "-c", program], {})
        assert (ended.exit_code, ended.stdout, ended.stderr) == (7, "out" * 1000 + "\n", "err\n")
        assert (await runtime.run(["sh", "-c", "ls /tmp/vf-program*"], {})).exit_code != 0
        assert await runtime.alive()

    in_sandbox(work)


async def whole(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in stream])


def test_live_processes() -> None:
    async def work(runtime: Runtime) -> None:
        assert runtime.supports_live_processes
        lines = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
        process = await runtime.open_process(["python3", "-c", lines], {})
        for word in ("one", "zwölf"):
            await process.write(f"{word}\n".encode())
            assert (await anext(process.stdout)).decode() == f"{word.upper()}\n"
        assert await process.poll() is None
        await process.terminate()
        assert await process.wait() != 0
        failing = await runtime.open_process(["sh", "-c", "echo no >&2; exit 4"], {})
        assert await whole(failing.stderr) == b"no\n"
        assert await failing.wait() == 4
        serve = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"]
        await runtime.run_background(serve, {}, "/tmp/served.log")
        fetch = f"until python3 -c '{FETCH}' 127.0.0.1:8000 | grep -q Directory; do :; done"
        assert (await runtime.run(["timeout", "20", "sh", "-c", fetch], {})).exit_code == 0

    in_sandbox(work)


def test_network_policies() -> None:
    async def fetched(runtime: Runtime) -> list[str]:
        hosts = ["files.test", "a.wild.test", "other.test"]
        done = await runtime.run(["python3", "-c", FETCH, *hosts], {})
        return str(done.stdout).split()

    async def work(runtime: Runtime) -> None:
        assert await fetched(runtime) == ["outside"] * 3
        await runtime.prepare_execution(["http://other.test/v1"])
        assert await fetched(runtime) == ["outside"] * 3
        await runtime.prepare_execution([])
        assert await fetched(runtime) == ["outside", "outside", "unreachable"]
        await runtime.prepare_execution(None)
        assert await fetched(runtime) == ["outside"] * 3

    async def closed(runtime: Runtime) -> None:
        await runtime.prepare_execution([])
        assert await fetched(runtime) == ["unreachable"] * 3

    in_sandbox(work, allow=["files.test", "*.wild.test"])
    in_sandbox(closed, allow=[])


class Answer(vf.Task[vf.TaskData, vf.State]):
    """The agent has to write 42 into a file."""

    NEEDS_CONTAINER = True

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.write("question.txt", b"40 + 2\n")

    @vf.reward  # type: ignore[untyped-decorator]  # verifiers is not here when types are checked
    async def written(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return float(await runtime.read("answer.txt") == b"42\n")


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def in_front_of(port: int) -> AsyncIterator[None]:
    """What an operator has in front of the server of model calls: an address with a usual port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(relay(reader, back[1]), relay(back[0], writer))

    async with await asyncio.start_server(connected, FRONT, 80):
        yield


def free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as found:
        return int(found.getsockname()[1])


def test_rollouts() -> None:
    port = free_port()
    tunnel = CustomTunnelConfig(url="http://front.test", port=port)
    agent_config = vf.AgentConfig(
        harness={"id": "verifiers_harness"},
        runtime=config(allow=["files.test"]),
        model="stand-in",
        client={
            "type": "eval",
            "base_url": os.environ["VERIFIERS_MODEL"],
            "api_key_var": "VERIFIERS_KEY",
        },
    )
    data = vf.TaskData(prompt="Write the answer.", image=IMAGE, workdir="/work/here")

    async def rollouts() -> None:
        server = InterceptionServer(InterceptionServerConfig(tunnel=tunnel), requires_tunnel=True)
        agent = vf.Agent(agent_config, interception=server)
        async with server, in_front_of(port), agent:
            traces = [await agent.run(Answer(data)) for _ in range(2)]
        assert [trace.errors for trace in traces] == [[], []]
        assert [trace.reward for trace in traces] == [1.0, 0.0]
        assert [trace.num_turns for trace in traces] == [2, 2]

    asyncio.run(rollouts())
