for n = 2, 99 do
  local prime = true
  for d = 2, math.floor(math.sqrt(n)) do prime = prime and n % d ~= 0 end
  if prime then print(n) end
end
