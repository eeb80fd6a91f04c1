"""Several gateways of one cluster: the SDK asks the first, and goes on at the next."""

import os

import cellwall

away = "http://127.0.0.1:9"  # nothing listens there
there = os.environ["CELLWALL_URL"]

with cellwall.connect([away, there]) as client:  # or one text with commas, as in CELLWALL_URL
    assert client.url == f"{away},{there}"
    assert client.run("print('here')").stdout == "here\n"
