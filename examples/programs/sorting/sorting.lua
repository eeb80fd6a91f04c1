local function quicksort(numbers, from, to)
  if from >= to then return end
  local pivot, middle = numbers[to], from
  for i = from, to - 1 do
    if numbers[i] < pivot then
      numbers[i], numbers[middle] = numbers[middle], numbers[i]
      middle = middle + 1
    end
  end
  numbers[middle], numbers[to] = numbers[to], numbers[middle]
  quicksort(numbers, from, middle - 1)
  quicksort(numbers, middle + 1, to)
end

local numbers = {}
for n in io.input():lines("n") do numbers[#numbers + 1] = n end
quicksort(numbers, 1, #numbers)
for _, n in ipairs(numbers) do print(n) end
