"""Write two gigabytes to standard output, as fast as it goes."""

import os

block = memoryview(b"all work and no play makes Jack a dull boy\n" * 25_000)
left = 2_000_000_000
while left > 0:
    left -= os.write(1, block[: min(left, len(block))])
