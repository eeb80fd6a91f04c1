"""Files and directories of any size, both ways, with progress."""

import pathlib

import cellwall

pathlib.Path("project").mkdir()
pathlib.Path("project", "numbers.txt").write_text("\n".join(map(str, range(100_000))))


def on_progress(done: int, total: int | None) -> None:
    print(f"\r{done} of {total or '?'} bytes", end="")


with cellwall.connect() as client, client.Sandbox() as sandbox:
    sandbox.files.upload_dir("project", "work", on_progress=on_progress)
    sandbox.commands.run("sort -rn work/numbers.txt | head -3 > work/top.txt")
    sandbox.files.download("work/top.txt", "top.txt", on_progress=on_progress)

assert pathlib.Path("top.txt").read_text() == "99999\n99998\n99997\n"
