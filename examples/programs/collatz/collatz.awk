function steps(n) {
  return n == 1 ? 0 : 1 + steps(n % 2 ? 3 * n + 1 : n / 2)
}

BEGIN {
  for (n = 1; n <= 30; n++) print n, steps(n)
}
