program fizzbuzz
  implicit none
  integer :: n
  do n = 1, 30
    if (mod(n, 15) == 0) then
      print "(a)", "FizzBuzz"
    else if (mod(n, 3) == 0) then
      print "(a)", "Fizz"
    else if (mod(n, 5) == 0) then
      print "(a)", "Buzz"
    else
      print "(i0)", n
    end if
  end do
end program fizzbuzz
