program primes
  implicit none
  integer :: n, d
  do n = 2, 99
    d = 2
    do while (d * d <= n)
      if (mod(n, d) == 0) exit
      d = d + 1
    end do
    if (d * d > n) print "(i0)", n
  end do
end program primes
