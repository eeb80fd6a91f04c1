"""Code that may do anything to the files of a session: look at what it did, then keep it or not."""

from cellwall import Sandbox

with Sandbox() as sandbox:
    sandbox.files.write("report.txt", "first draft\n")
    before = sandbox.files.checkpoint("before")

    sandbox.run("""
import os
os.rename("report.txt", "final.txt")
open("notes.txt", "w").write("to do\\n")
""")
    for change in sandbox.files.diff():
        print(change.kind, change.old_path or "", change.path)
    # renamed report.txt final.txt
    # added  notes.txt

    sandbox.files.rollback(before.id)  # abort; to commit, go on
    assert sandbox.files.read("report.txt") == "first draft\n"
    assert not sandbox.files.exists("notes.txt")
