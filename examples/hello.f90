program main
  print "(a)", "hello"
end program main
