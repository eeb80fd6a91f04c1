const word = (n: number): string => (n % 3 ? "" : "Fizz") + (n % 5 ? "" : "Buzz") || String(n);
for (let n = 1; n <= 30; n++) console.log(word(n));
