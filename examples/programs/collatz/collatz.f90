program collatz
  implicit none
  integer :: n
  do n = 1, 30
    print "(i0, 1x, i0)", n, steps(n)
  end do
contains
  recursive integer function steps(n) result(taken)
    integer, intent(in) :: n
    if (n == 1) then
      taken = 0
    else if (mod(n, 2) == 1) then
      taken = 1 + steps(3 * n + 1)
    else
      taken = 1 + steps(n / 2)
    end if
  end function steps
end program collatz
