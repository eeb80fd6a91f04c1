for {set n 1} {$n <= 30} {incr n} {
  if {$n % 15 == 0} { puts FizzBuzz } elseif {$n % 3 == 0} { puts Fizz } \
    elseif {$n % 5 == 0} { puts Buzz } else { puts $n }
}
