for (let n = 1; n <= 30; n++) {
  console.log((n % 3 ? "" : "Fizz") + (n % 5 ? "" : "Buzz") || n);
}
