require "socket"

name, *rest = ARGV
case name
when "echo" then print $stdin.read
when "words" then puts rest
when "text" then puts "grüße 你好 🙂"
when "leave" then exit 3
when "wait" then loop { sleep 1 }
when "spin" then loop {}
when "hog"
  held = []
  loop { held << "x" * (1 << 20) }
when "bomb" then loop { fork { sleep 60 } }
when "flood" then 100_000.times { puts "a line of output" }
when "file"
  File.write("note.txt", "kept\n")
  print File.read("note.txt")
when "connect"
  TCPSocket.new("127.0.0.1", Integer(rest[0]))
  puts "connected"
end
