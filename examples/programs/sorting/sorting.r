quicksort <- function(x) {
  if (length(x) < 2) return(x)
  pivot <- x[1]
  rest <- x[-1]
  c(quicksort(rest[rest < pivot]), pivot, quicksort(rest[rest >= pivot]))
}

numbers <- scan(file("stdin"), what = integer(), quiet = TRUE)
cat(format(quicksort(numbers), scientific = FALSE, trim = TRUE), sep = "\n")
