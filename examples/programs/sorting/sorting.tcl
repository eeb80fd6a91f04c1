proc quicksort {numbers} {
  if {[llength $numbers] < 2} { return $numbers }
  set rest [lassign $numbers pivot]
  set smaller {}
  set others {}
  foreach n $rest {
    if {$n < $pivot} { lappend smaller $n } else { lappend others $n }
  }
  concat [quicksort $smaller] $pivot [quicksort $others]
}

foreach n [quicksort [read stdin]] { puts $n }
