local function steps(n)
  if n == 1 then return 0 end
  return 1 + steps(n % 2 == 1 and 3 * n + 1 or n // 2)
end

for n = 1, 30 do print(n .. " " .. steps(n)) end
