for n = 1, 30 do
  local word = (n % 3 == 0 and "Fizz" or "") .. (n % 5 == 0 and "Buzz" or "")
  print(word ~= "" and word or n)
end
