let rec quicksort = function
  | [] -> []
  | pivot :: rest ->
      let smaller, others = List.partition (fun n -> n < pivot) rest in
      quicksort smaller @ (pivot :: quicksort others)

let rec read numbers =
  match input_line stdin with
  | line -> read (int_of_string line :: numbers)
  | exception End_of_file -> numbers

let () = List.iter (Printf.printf "%d\n") (quicksort (read []))
