"""The library's errors, and two of its own: no access, no server."""

import cellwall

try:
    cellwall.connect(api_key="not-a-key-of-this-server")
except cellwall.AccessDenied as error:
    print(error.message, "->", error.remedy, "request", error.request_id)
else:
    raise AssertionError("an unknown key must be refused")

try:
    cellwall.connect("http://127.0.0.1:9")  # nobody listens there
except cellwall.ServerUnreachable as error:
    print(error.message, "->", error.remedy)
else:
    raise AssertionError("there is no server to connect to")

with cellwall.connect() as client:
    try:
        client.run("print(1)", template="no-such-template")
    except cellwall.NotFound as error:
        print(error.message, "->", error.remedy)
    else:
        raise AssertionError("an unknown template must be refused")
