"""A gVisor sandbox is copied with all that runs in it."""

from cellwall import HostUnsupported, Sandbox

try:
    session = Sandbox(runtime="gvisor")
except HostUnsupported as error:  # no runsc on this machine
    print(error.remedy)
    raise SystemExit from None
with session:
    session.commands.start("while :; do date >> beats.txt; sleep 0.1; done")
    session.run("counter=41", "bash")
    for fork in session.fork(scope="tree"):
        with fork.sandbox as copy:
            # The loop goes on in the copy, and so does the context in Bash.
            assert copy.run("echo $((counter + 1))", "bash").stdout == "42\n"
            print(fork.carries, fork.left_behind)
