"""The same for asyncio: `aconnect`, `arun`, `AsyncSandbox`."""

import asyncio

import cellwall


async def main() -> None:
    async with await cellwall.aconnect() as client:
        answers = await asyncio.gather(*(client.arun(f"print({n} ** 2)") for n in range(20)))
        assert [int(answer.stdout) for answer in answers] == [n**2 for n in range(20)]

        async with client.AsyncSandbox.create() as sandbox:
            async for event in sandbox.stream("for n in range(3): print(n, flush=True)"):
                print(event.seq, event.kind, event.text)


asyncio.run(main())
