next: for (let n = 2; n < 100; n++) {
  for (let d = 2; d * d <= n; d++) if (n % d === 0) continue next;
  console.log(n);
}
