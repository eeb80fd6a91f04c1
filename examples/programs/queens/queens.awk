function is_free(row, column,    r) {
  for (r = 1; r < row; r++) {
    if (columns[r] == column || (columns[r] - column) ^ 2 == (row - r) ^ 2) return 0
  }
  return 1
}

function place(row,    column, count) {
  if (row > size) return 1
  for (column = 1; column <= size; column++) {
    if (is_free(row, column)) {
      columns[row] = column
      count += place(row + 1)
    }
  }
  return count
}

BEGIN {
  size = 8
  print place(1)
}
