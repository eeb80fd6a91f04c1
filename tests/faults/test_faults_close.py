"""An engine that is closed while its fork-servers start: they end, and say nothing to anybody.

The moment is chosen: our end of the control socket closes after so many of their messages.
"""

from __future__ import annotations

import pytest
from entries import embedded

_GIVE_UP = """
from cellwall.jail import supervisor

heard, real = 0, supervisor.receive

async def receive(sock, timeout_s):
    global heard
    if heard == int(arguments[0]):
        raise asyncio.CancelledError
    heard += 1
    return await real(sock, timeout_s)

async def main():
    engine = bare()
    supervisor.receive = receive
    await asyncio.gather(engine.run("print(1)"), return_exceptions=True)
    say("heard", heard)
    supervisor.receive = real
    say("again", await tried(engine.run("print(2)")))
    await engine.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("messages", [0, 1])
def test_fork_server_that_is_given_up_while_it_starts_is_silent(messages: int) -> None:
    said = embedded(_GIVE_UP, str(messages))
    assert said["heard"] == messages
    assert said["again"] == {"stdout": "2\n"}
    assert said["stderr"] == ""
