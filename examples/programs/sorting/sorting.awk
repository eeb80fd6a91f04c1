function quicksort(from, to,    i, middle) {
  if (from >= to) return
  middle = from
  for (i = from; i < to; i++) if (numbers[i] < numbers[to]) swap(i, middle++)
  swap(middle, to)
  quicksort(from, middle - 1)
  quicksort(middle + 1, to)
}

function swap(a, b,    n) {
  n = numbers[a]
  numbers[a] = numbers[b]
  numbers[b] = n
}

{
  numbers[NR] = $1 + 0
}

END {
  quicksort(1, NR)
  for (i = 1; i <= NR; i++) print numbers[i]
}
