"""The library, done by a server: same names, same results."""

import base64
import pathlib

import cellwall

with cellwall.connect() as client:  # CELLWALL_URL and CELLWALL_API_KEY
    execution = client.run("print(sum(map(int, input().split())))", stdin="20 22")
    assert execution.ok
    assert execution.stdout == "42\n"

    with client.Sandbox("data") as sandbox:
        sandbox.run("import matplotlib.pyplot as plt; numbers = [3, 1, 2]")
        execution = sandbox.run("print(numbers); plt.plot(numbers); plt.show()", on_stdout=print)
        pathlib.Path("chart.png").write_bytes(base64.b64decode(execution.images[0]))
