const
  size = 8;
var
  columns: set of 1..size;
  rising, falling: set of 0..2 * size;

function place(row: integer): integer;
var
  column: integer;
begin
  if row > size then
    exit(1);
  place := 0;
  for column := 1 to size do
    if not ((column in columns) or (row + column in rising) or (row - column + size in falling)) then
    begin
      include(columns, column);
      include(rising, row + column);
      include(falling, row - column + size);
      place := place + place(row + 1);
      exclude(columns, column);
      exclude(rising, row + column);
      exclude(falling, row - column + size);
    end;
end;

begin
  writeln(place(1));
end.
