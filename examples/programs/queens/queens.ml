let size = 8

let is_free column others =
  let apart distance other = other <> column && abs (other - column) <> distance + 1 in
  List.for_all Fun.id (List.mapi apart others)

let rec place others =
  if List.length others = size then 1
  else
    List.init size Fun.id
    |> List.filter (fun column -> is_free column others)
    |> List.fold_left (fun count column -> count + place (column :: others)) 0

let () = Printf.printf "%d\n" (place [])
