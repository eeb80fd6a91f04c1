given <- commandArgs(trailingOnly = TRUE)
rest <- given[-1]
switch(given[1],
  echo = writeLines(readLines(file("stdin"))),
  words = writeLines(rest),
  text = cat("grüße 你好 🙂\n"),
  leave = quit(status = 3),
  wait = repeat Sys.sleep(1),
  spin = repeat {},
  hog = { held <- list(); repeat held[[length(held) + 1]] <- numeric(1e6) + 1 },
  bomb = {
    for (i in 1:1000) if (system("sleep 60 &") != 0) quit(status = 1)
  },
  flood = for (i in 1:100000) cat("a line of output\n"),
  file = { writeLines("kept", "note.txt"); writeLines(readLines("note.txt")) },
  connect = {
    socketConnection("127.0.0.1", as.integer(rest[1]), timeout = 5)
    cat("connected\n")
  }
)
