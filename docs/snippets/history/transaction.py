"""Files that are as they were if anything in a block fails, and a diff of one file."""

import asyncio

from cellwall import AsyncSandbox


async def main() -> None:
    async with AsyncSandbox.create() as sandbox:
        files = sandbox.files
        await files.write("config.ini", "[a]\nlevel = 1\n")
        try:
            async with files.transaction() as start:
                edit = "text = open('config.ini').read()\n"
                edit += "open('config.ini', 'w').write(text.replace('1', '2'))"
                await sandbox.run(edit)
                print(await files.diff_text("config.ini", start.id))
                checked = await sandbox.run("assert False, 'the new configuration is wrong'")
                if checked.outcome.verdict.value != "ok":
                    raise ValueError("not accepted")
        except ValueError:
            assert await files.read("config.ini") == "[a]\nlevel = 1\n"


asyncio.run(main())
