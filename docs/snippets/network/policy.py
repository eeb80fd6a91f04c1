"""A sandbox that may connect to one name, and what it is told about all others."""

from cellwall import Sandbox

FETCH = """
import urllib.request
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=10).status
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""

with Sandbox(network=["example.org", "*.example.org:443"]) as sandbox:
    sandbox.run(FETCH)
    print(sandbox.run("fetch('https://elsewhere.example.com/')").text)
    assert sandbox.network_usage().refused > 0
    assert sandbox.network_log()[0]["host"] == "elsewhere.example.com"

    sandbox.set_network("none")  # at any time; connections that are open are closed
    assert sandbox.network.mode == "none"
