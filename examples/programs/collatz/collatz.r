steps <- function(n) if (n == 1) 0 else 1 + steps(if (n %% 2) 3 * n + 1 else n / 2)

for (n in 1:30) cat(n, steps(n), "\n", sep = c(" ", ""))
