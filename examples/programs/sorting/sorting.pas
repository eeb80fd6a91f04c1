var
  numbers: array[1..1000] of longint;
  count, i: integer;

procedure quicksort(first, last: integer);
var
  low, high: integer;
  pivot, swapped: longint;
begin
  if first >= last then
    exit;
  pivot := numbers[(first + last) div 2];
  low := first;
  high := last;
  while low <= high do
  begin
    while numbers[low] < pivot do inc(low);
    while numbers[high] > pivot do dec(high);
    if low <= high then
    begin
      swapped := numbers[low];
      numbers[low] := numbers[high];
      numbers[high] := swapped;
      inc(low);
      dec(high);
    end;
  end;
  quicksort(first, high);
  quicksort(low, last);
end;

begin
  count := 0;
  while not seekeof do
  begin
    inc(count);
    readln(numbers[count]);
  end;
  quicksort(1, count);
  for i := 1 to count do
    writeln(numbers[i]);
end.
