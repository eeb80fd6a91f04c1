"""A session keeps its state; its files go in and out through the wall."""

from cellwall import Sandbox

with Sandbox() as sandbox:
    sandbox.files.write("names.txt", "Ada\nGrace\n")
    sandbox.run("names = open('names.txt').read().split()")
    execution = sandbox.run("[name.upper() for name in names]")
    assert execution.text == "['ADA', 'GRACE']"

    listing = sandbox.commands.run(["ls", "-1"])
    assert listing.stdout == "names.txt\n"
