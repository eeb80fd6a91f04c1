set rest [lrange $argv 1 end]
switch [lindex $argv 0] {
  echo { puts -nonewline [read stdin] }
  words { foreach word $rest { puts $word } }
  text { puts "grüße 你好 🙂" }
  leave { exit 3 }
  wait { while 1 { after 1000 } }
  spin { while 1 {} }
  hog { while 1 { lappend held [string repeat x[incr n] 200000] } }
  bomb { while 1 { exec sleep 60 & } }
  flood { for {set i 0} {$i < 100000} {incr i} { puts "a line of output" } }
  file {
    set note [open note.txt w]
    puts $note kept
    close $note
    puts -nonewline [read [open note.txt]]
  }
  connect {
    socket 127.0.0.1 [lindex $rest 0]
    puts connected
  }
}
