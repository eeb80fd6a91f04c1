words <- scan(file("stdin"), what = "", quiet = TRUE)
counts <- table(words)
cat(paste(names(counts), counts), sep = "\n")
