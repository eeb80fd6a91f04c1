"""A sandbox that waits without memory: by hand, and by itself after a pause."""

from cellwall import Conflict, HostUnsupported, Sandbox

with Sandbox(auto_pause_s=60, hibernate_s=600) as sandbox:
    sandbox.run("visits = 41")
    command = sandbox.commands.start("sleep 1000")
    try:
        sandbox.hibernate()
    except HostUnsupported as error:  # no runtime here that writes sessions down
        print(error.remedy)
        raise SystemExit from None
    except Conflict as error:
        print(error)  # it would lose the command
    command.kill()
    command.wait()
    sandbox.hibernate()
    print(sandbox.status)
    print(sandbox.run("print(visits + 1)").stdout, end="")  # it comes back by itself
