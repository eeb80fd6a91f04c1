"""A sandbox that waits with its files alone: the next request boots it anew."""

from cellwall import HostUnsupported, Sandbox

with Sandbox() as sandbox:
    sandbox.files.write("notes.txt", "kept")
    sandbox.run("visits = 41")
    sandbox.commands.start("sleep 1000")
    try:
        left = sandbox.hibernate(keep="files")
    except HostUnsupported as error:  # no runtime here that writes files down
        print(error.remedy)
        raise SystemExit from None
    print(left)  # the command, and the context with its variables
    print(sandbox.files.read("notes.txt"))
    print(sandbox.run("print('visits' in globals())").stdout, end="")
