"""Many programs at once: one engine, as many sandboxes as programs."""

import asyncio

import cellwall


async def main() -> None:
    programs = [f"print({n} ** 2)" for n in range(20)]
    executions = await asyncio.gather(*(cellwall.arun(program) for program in programs))
    assert [int(e.stdout) for e in executions] == [n**2 for n in range(20)]


asyncio.run(main())
