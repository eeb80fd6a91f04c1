"""Write to standard output for ever."""

import os

block = b"all work and no play makes Jack a dull boy\n" * 1500
while True:
    os.write(1, block)
