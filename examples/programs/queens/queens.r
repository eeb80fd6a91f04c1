place <- function(size, columns = integer()) {
  row <- length(columns)
  if (row == size) return(1)
  is_free <- function(column) {
    all(columns != column & abs(columns - column) != row + 1 - seq_along(columns))
  }
  sum(vapply(Filter(is_free, seq_len(size)), function(column) place(size, c(columns, column)), 0))
}

cat(place(8), "\n", sep = "")
