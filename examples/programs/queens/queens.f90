program queens
  implicit none
  integer, parameter :: board = 8
  integer :: columns(board)
  print "(i0)", place(1)
contains
  recursive function place(row) result(total)
    integer, intent(in) :: row
    integer :: total, column, r
    total = merge(1, 0, row > board)
    if (row > board) return
    do column = 1, board
      if (any([(columns(r) == column .or. abs(columns(r) - column) == row - r, r = 1, row - 1)])) cycle
      columns(row) = column
      total = total + place(row + 1)
    end do
  end function place
end program queens
