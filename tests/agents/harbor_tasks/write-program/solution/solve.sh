#!/bin/bash
pwd
cat > /srv/words.py <<'END'
import collections
import sys

for word, count in sorted(collections.Counter(sys.stdin.read().split()).items()):
    print(word, count)
END
