"""Fork until something stops it; the limit on processes does."""

import os
import time

children = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except OSError as error:
        raise SystemExit(f"stopped after {children} children: {error}") from None
    children += 1
