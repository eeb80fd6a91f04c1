proc steps {n} {
  if {$n == 1} { return 0 }
  expr {1 + [steps [expr {$n % 2 ? 3 * $n + 1 : $n / 2}]]}
}

for {set n 1} {$n <= 30} {incr n} { puts "$n [steps $n]" }
