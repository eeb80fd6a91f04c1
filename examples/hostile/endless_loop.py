"""Burn a CPU for ever."""

while True:
    pass
