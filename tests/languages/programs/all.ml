let echo () =
  try
    while true do
      print_endline (input_line stdin)
    done
  with End_of_file -> ()

let hog () =
  let held = ref [] in
  while true do
    held := Bytes.make (1 lsl 20) 'x' :: !held
  done

let bomb () =
  while true do
    if Unix.fork () = 0 then Unix.sleep 60
  done

let file () =
  let out = open_out "note.txt" in
  output_string out "kept\n";
  close_out out;
  print_endline (input_line (open_in "note.txt"))

let connect port =
  let socket = Unix.socket Unix.PF_INET Unix.SOCK_STREAM 0 in
  Unix.connect socket (Unix.ADDR_INET (Unix.inet_addr_loopback, int_of_string port));
  print_endline "connected"

let () =
  match Array.to_list Sys.argv with
  | _ :: "echo" :: _ -> echo ()
  | _ :: "words" :: rest -> List.iter print_endline rest
  | _ :: "text" :: _ -> print_endline "grüße 你好 🙂"
  | _ :: "leave" :: _ -> exit 3
  | _ :: "wait" :: _ -> while true do Unix.sleep 1 done
  | _ :: "spin" :: _ -> while true do () done
  | _ :: "hog" :: _ -> hog ()
  | _ :: "bomb" :: _ -> bomb ()
  | _ :: "flood" :: _ -> for _ = 1 to 100000 do print_endline "a line of output" done
  | _ :: "file" :: _ -> file ()
  | _ :: "connect" :: port :: _ -> connect port
  | _ -> exit 99
