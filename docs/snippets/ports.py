"""A server inside, reached from outside; the sandbox itself has no network."""

import time
import urllib.request

from cellwall import Sandbox

with Sandbox() as sandbox:
    sandbox.files.write("site/index.html", "<h1>inside</h1>")
    sandbox.commands.start("python3 -m http.server --bind 127.0.0.1 --directory site 8000")
    while 8000 not in [found.port for found in sandbox.ports.list()]:
        time.sleep(0.05)

    with sandbox.ports.forward(8000) as forward:  # a port of this machine's loopback
        url = f"http://127.0.0.1:{forward.port}/"
        assert urllib.request.urlopen(url).read() == b"<h1>inside</h1>"

    with sandbox.ports.connect(8000) as line:  # or bytes, without a port of this machine
        line.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"".join(line).endswith(b"<h1>inside</h1>")
