local cases = {
  echo = function() io.write(io.read("a")) end,
  words = function() for i = 2, #arg do print(arg[i]) end end,
  text = function() print("grüße 你好 🙂") end,
  leave = function() os.exit(3) end,
  wait = function() while true do os.execute("sleep 1") end end,
  spin = function() while true do end end,
  hog = function()
    local held = {}
    while true do held[#held + 1] = string.rep(tostring(#held), 1 << 18) end
  end,
  bomb = function()
    while true do if not os.execute("sleep 60 &") then os.exit(1) end end
  end,
  flood = function() for _ = 1, 100000 do print("a line of output") end end,
  file = function()
    local note = io.open("note.txt", "w")
    note:write("kept\n")
    note:close()
    io.write(io.open("note.txt"):read("a"))
  end,
}
cases[arg[1]]()
