import sys


def quicksort(numbers: list[int]) -> list[int]:
    if not numbers:
        return []
    pivot, *rest = numbers
    smaller = [n for n in rest if n < pivot]
    others = [n for n in rest if n >= pivot]
    return [*quicksort(smaller), pivot, *quicksort(others)]


print(*quicksort([int(line) for line in sys.stdin]), sep="\n")
