{
  for (i = 1; i <= NF; i++) counts[$i]++
}

END {
  PROCINFO["sorted_in"] = "@ind_str_asc"
  for (word in counts) print word, counts[word]
}
