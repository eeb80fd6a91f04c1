"""Changes in a directory of a sandbox, as they come."""

from cellwall import Sandbox

with Sandbox() as sandbox, sandbox.files.watch() as watch:  # from here on nothing is missed
    sandbox.run("open('report.txt', 'w').write('done')")
    change = next(watch)
    assert (change.kind, change.path) == ("created", "report.txt")
    change = next(watch)
    assert (change.kind, change.path) == ("modified", "report.txt")
