proc isFree {columns column} {
  set distance [llength $columns]
  foreach other $columns {
    if {$other == $column || abs($other - $column) == $distance} { return 0 }
    incr distance -1
  }
  return 1
}

proc place {size columns} {
  if {[llength $columns] == $size} { return 1 }
  set count 0
  for {set column 0} {$column < $size} {incr column} {
    if {[isFree $columns $column]} { incr count [place $size [list {*}$columns $column]] }
  }
  return $count
}

puts [place 8 {}]
