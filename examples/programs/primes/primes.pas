var
  n, d: integer;
begin
  for n := 2 to 99 do
  begin
    d := 2;
    while (d * d <= n) and (n mod d <> 0) do
      d := d + 1;
    if d * d > n then
      writeln(n);
  end;
end.
