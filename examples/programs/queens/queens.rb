def place(size, columns = [])
  row = columns.size
  return 1 if row == size

  free = (0...size).select do |column|
    columns.each_with_index.all? { |c, r| c != column && (c - column).abs != row - r }
  end
  free.sum { |column| place(size, [*columns, column]) }
end

puts place(8)
