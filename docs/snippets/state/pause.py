"""A sandbox that waits for its owner: paused by hand, and by itself."""

import time

from cellwall import HostUnsupported, Sandbox

with Sandbox(auto_pause_s=60) as sandbox:
    sandbox.run("visits = 41")
    sandbox.commands.start("while :; do date >> beats.txt; sleep 0.1; done")
    try:
        sandbox.pause()
    except HostUnsupported as error:  # no cgroup in which processes can be frozen
        print(error.remedy)
        raise SystemExit from None
    print(sandbox.status)
    time.sleep(1)  # no line is added to beats.txt meanwhile, and no CPU time is used
    print(sandbox.run("print(visits + 1)").stdout, end="")  # it resumes by itself
    print(sandbox.status)
