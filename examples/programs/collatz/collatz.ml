let rec steps n = if n = 1 then 0 else 1 + steps (if n mod 2 = 1 then (3 * n) + 1 else n / 2)
let () = for n = 1 to 30 do Printf.printf "%d %d\n" n (steps n) done
