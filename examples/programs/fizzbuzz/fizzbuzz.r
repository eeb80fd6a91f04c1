for (n in 1:30) {
  word <- paste0(if (n %% 3 == 0) "Fizz", if (n %% 5 == 0) "Buzz")
  cat(if (length(word) && nzchar(word)) word else n, "\n", sep = "")
}
