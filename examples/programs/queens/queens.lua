local size = 8
local columns = {}

local function is_free(row, column)
  for r = 1, row - 1 do
    if columns[r] == column or math.abs(columns[r] - column) == row - r then return false end
  end
  return true
end

local function place(row)
  if row > size then return 1 end
  local count = 0
  for column = 1, size do
    if is_free(row, column) then
      columns[row] = column
      count = count + place(row + 1)
    end
  end
  return count
end

print(place(1))
