let () = print_endline "hello"
