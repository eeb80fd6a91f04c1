BEGIN {
  print "hello"
}
