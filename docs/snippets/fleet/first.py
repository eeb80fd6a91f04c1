import asyncio
import os

from cellwall.fleet import Fleet


async def main() -> None:
    async with Fleet.connect(os.environ.get("RAY_ADDRESS")) as fleet:
        done = await fleet.arun("print(6 * 7)", timeout=5)
        assert done.stdout == "42\n"
        print("ran on node", done.node)

        programs = ({"code": "print(int(input()) ** 2)", "stdin": str(n)} for n in range(100))
        squares = {}
        async for each in fleet.map(programs, limits={"memory_mb": 256}):
            squares[each.index] = int(each.get().stdout)  # in the order in which they end
        assert squares == {n: n * n for n in range(100)}

        async with fleet.sandbox() as sandbox:  # a session, on one node
            await sandbox.run("x = 20")
            assert (await sandbox.run("x + 1")).text == "21"

        for node in fleet.nodes():
            print(node.name, node.address, node.state)


asyncio.run(main())
