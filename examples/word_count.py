"""Count the words of standard input: `cellwall run --stdin README.md examples/word_count.py`."""

import sys
from collections import Counter

words = Counter(sys.stdin.read().lower().split())
for word, count in words.most_common(5):
    print(f"{count:5d}  {word}")
