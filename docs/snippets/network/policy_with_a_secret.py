"""A key that requests of a sandbox carry to one host, and that the sandbox never has."""

from cellwall import Sandbox, Secret

VALUE = "sk-proj-0123456789abcdefghij"  # out of the environment or a vault, not out of a source
key = Secret("API_KEY", VALUE, hosts=["api.example.org"])
assert VALUE not in repr(key)

with Sandbox(network=["api.example.org"], secrets=[key]) as sandbox:
    shown = sandbox.run("import os; print(os.environ['API_KEY'])").stdout
    assert shown.startswith("sk-proj-")  # clients that look at the form of a key are content
    assert VALUE not in shown
    # What code inside sends to api.example.org has the placeholder in its header as far as the
    # egress proxy, and the value from there on.
