local counts, words = {}, {}
for word in io.read("a"):gmatch("%S+") do
  if not counts[word] then words[#words + 1] = word end
  counts[word] = (counts[word] or 0) + 1
end
table.sort(words)
for _, word in ipairs(words) do print(word .. " " .. counts[word]) end
