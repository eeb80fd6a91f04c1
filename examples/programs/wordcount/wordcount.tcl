foreach word [regexp -all -inline {\S+} [read stdin]] { dict incr counts $word }
foreach word [lsort [dict keys $counts]] { puts "$word [dict get $counts $word]" }
