for (n in 2:99) if (n == 2 || all(n %% 2:ceiling(sqrt(n)) != 0)) cat(n, "\n", sep = "")
