"""Packages in sandboxes whose network stays off."""

from cellwall import Sandbox, UsageError

with Sandbox(packages=["tabulate"]) as sandbox:
    print(sandbox.run("import tabulate; tabulate.__version__").text)

    sandbox.install(["humanize>=4"])  # the session goes on, and imports it
    print(sandbox.run("import humanize; humanize.naturalsize(10**9)").text)

    try:
        sandbox.install(["no-such-package-as-this"])
    except UsageError as error:
        print(error)

# Programs that install by themselves: pip, uv and npm work, and reach nothing else.
with Sandbox(network="packages") as sandbox:
    done = sandbox.run("%pip install -q humanize\nimport humanize; humanize.intword(10**9)")
    print(done.text)
