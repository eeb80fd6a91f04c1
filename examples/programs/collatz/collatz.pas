var
  n: integer;

function steps(n: int64): integer;
begin
  if n = 1 then
    steps := 0
  else if odd(n) then
    steps := 1 + steps(3 * n + 1)
  else
    steps := 1 + steps(n div 2);
end;

begin
  for n := 1 to 30 do
    writeln(n, ' ', steps(n));
end.
