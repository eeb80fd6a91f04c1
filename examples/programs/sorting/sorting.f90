program sorting
  implicit none
  integer :: numbers(1000), many, status
  many = 0
  do while (many < 1000)
    read (*, *, iostat=status) numbers(many + 1)
    if (status /= 0) exit
    many = many + 1
  end do
  print "(i0)", quicksort(numbers(:many))
contains
  recursive function quicksort(numbers) result(sorted)
    integer, intent(in) :: numbers(:)
    integer :: sorted(size(numbers))
    sorted = numbers
    if (size(numbers) < 2) return
    associate (pivot => numbers(1), rest => numbers(2:))
      sorted = [quicksort(pack(rest, rest < pivot)), pivot, quicksort(pack(rest, rest >= pivot))]
    end associate
  end function quicksort
end program sorting
