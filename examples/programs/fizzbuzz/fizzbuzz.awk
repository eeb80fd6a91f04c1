BEGIN {
  for (n = 1; n <= 30; n++) {
    word = (n % 3 ? "" : "Fizz") (n % 5 ? "" : "Buzz")
    print word ? word : n
  }
}
