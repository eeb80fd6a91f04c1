"""Take memory, and touch it, until something stops it."""

taken = []
while True:
    taken.append(bytearray(b"\x01") * (8 << 20))
