"""An engine that is closed while its fork-servers start: they end, and say nothing to anybody.

The moment is chosen: our end of the control socket closes after so many of their messages.
"""

from __future__ import annotations

import pytest

from kit.faults.entries import embedded

_GIVE_UP = """
from cellwall.runtimes.jail import fork_server as supervisor

heard, real = 0, supervisor.receive

async def receive(sock, timeout_s):
    global heard
    if heard == int(arguments[0]):
        raise asyncio.CancelledError
    heard += 1
    return await real(sock, timeout_s)

async def main():
    global heard
    engine = bare()
    supervisor.receive = receive
    for _ in range(int(arguments[1])):
        heard = 0
        await asyncio.gather(engine.run("print(1)"), return_exceptions=True)
    say("heard", heard)
    supervisor.receive = real
    say("again", await tried(engine.run("print(2)")))
    await engine.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize(("messages", "times"), [(0, 12), (1, 4)])
def test_fork_server_that_is_given_up_while_it_starts_is_silent(messages: int, times: int) -> None:
    """And gone: `embedded` waits for the last process that has its stderr.

    Several times: boot ends on its first word, and only in some of them before its child has asked
    the kernel to die with it.
    """
    said = embedded(_GIVE_UP, str(messages), str(times))
    assert said["heard"] == messages
    assert said["again"] == {"stdout": "2\n"}
    assert said["stderr"] == ""
