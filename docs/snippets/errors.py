"""Exceptions are for misuse and for our own failures; each says how to mend it."""

import cellwall

try:
    cellwall.run("print(1)", template="no-such-template")
except cellwall.NotFound as error:
    print(error.message, "->", error.remedy)
    assert error.remedy
else:
    raise AssertionError("an unknown template must be refused")

try:
    cellwall.run("print(1)", isolation="vm")
except cellwall.HostUnsupported as error:
    print(error.message, "->", error.remedy)
else:
    raise AssertionError("there is no vm runtime yet, and no weaker one may take its place")
