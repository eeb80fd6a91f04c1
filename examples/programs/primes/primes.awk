BEGIN {
  for (n = 2; n < 100; n++) {
    for (d = 2; d * d <= n && n % d; d++);
    if (d * d > n) print n
  }
}
