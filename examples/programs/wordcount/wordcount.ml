module Counts = Map.Make (String)

let add counts word =
  if word = "" then counts
  else Counts.update word (fun seen -> Some (1 + Option.value seen ~default:0)) counts

let words line = String.split_on_char ' ' (String.map (fun c -> if c = '\t' then ' ' else c) line)

let rec read counts =
  match input_line stdin with
  | line -> read (List.fold_left add counts (words line))
  | exception End_of_file -> counts

let () = Counts.iter (Printf.printf "%s %d\n") (read Counts.empty)
