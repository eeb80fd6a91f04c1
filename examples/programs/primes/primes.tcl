for {set n 2} {$n < 100} {incr n} {
  for {set d 2} {$d * $d <= $n && $n % $d} {incr d} {}
  if {$d * $d > $n} { puts $n }
}
