"""What runs belongs to the sandbox: another program, or this one tomorrow, finds it again."""

import cellwall

with cellwall.connect() as client:
    sandbox = client.Sandbox(name="build", metadata={"job": "7"})
    command = sandbox.commands.start("for n in 1 2 3; do echo step $n; sleep 0.1; done")
    noted = sandbox.id, command.id

with cellwall.connect() as client:  # elsewhere, later
    assert noted[0] in [found.id for found in client.sandboxes(metadata={"job": "7"})]
    sandbox = client.attach(noted[0])
    result = sandbox.commands.get(noted[1]).wait()
    assert result.stdout == "step 1\nstep 2\nstep 3\n"
    sandbox.close()
