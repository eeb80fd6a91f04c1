function steps(n: number): number {
  return n === 1 ? 0 : 1 + steps(n % 2 ? 3 * n + 1 : n / 2);
}

for (let n = 1; n <= 30; n++) console.log(n, steps(n));
