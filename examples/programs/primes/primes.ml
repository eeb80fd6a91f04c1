let rec is_prime ?(d = 2) n = d * d > n || (n mod d <> 0 && is_prime ~d:(d + 1) n)
let () = for n = 2 to 99 do if is_prime n then Printf.printf "%d\n" n done
