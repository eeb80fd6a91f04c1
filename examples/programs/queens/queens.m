1;

function count = place(columns, size)
  row = numel(columns) + 1;
  if row > size
    count = 1;
    return;
  end
  distances = row - (1:row - 1);
  count = 0;
  for column = setdiff(1:size, [columns, columns + distances, columns - distances])
    count += place([columns, column], size);
  end
end

printf("%d\n", place([], 8));
