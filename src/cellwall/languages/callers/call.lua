-- Runs a program with `arguments`, and leaves the value of main(arguments) or of `result`.
-- Lua has no JSON of its own: below is as much of it as this needs.

local escapes = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function decode(text)
  local place = 1
  local value

  local function skip()
    place = text:find("[^ \t\r\n]", place) or #text + 1
  end

  local function unit()
    local code = tonumber(text:sub(place + 2, place + 5), 16)
    place = place + 6
    return code
  end

  local function escaped()
    local letter = text:sub(place + 1, place + 1)
    if letter ~= "u" then
      place = place + 2
      return escapes[letter] or letter
    end
    local code = unit()
    if code >= 0xD800 and code < 0xDC00 and text:sub(place, place + 1) == "\\u" then
      code = 0x10000 + (code - 0xD800) * 0x400 + (unit() - 0xDC00)
    end
    return utf8.char(code)
  end

  local function string_()
    local parts = {}
    place = place + 1
    while text:sub(place, place) ~= '"' do
      if text:sub(place, place) == "\\" then
        parts[#parts + 1] = escaped()
      else
        local stop = text:find('["\\]', place)
        parts[#parts + 1] = text:sub(place, stop - 1)
        place = stop
      end
    end
    place = place + 1
    return table.concat(parts)
  end

  local function sequence(close, item)
    local made, number = {}, 0
    place = place + 1
    skip()
    while text:sub(place, place) ~= close do
      number = number + 1
      item(made, number)
      skip()
      if text:sub(place, place) == "," then place = place + 1 end
      skip()
    end
    place = place + 1
    return made
  end

  local starts = {
    ['"'] = string_,
    ["{"] = function()
      return sequence("}", function(made)
        local key = string_()
        skip()
        place = place + 1
        made[key] = value()
      end)
    end,
    ["["] = function()
      -- By number: a null leaves its place empty.
      return sequence("]", function(made, number) made[number] = value() end)
    end,
    t = function() place = place + 4 return true end,
    f = function() place = place + 5 return false end,
    n = function() place = place + 4 return nil end,
  }

  function value()
    skip()
    local start = starts[text:sub(place, place)]
    if start then return start() end
    local number = text:match("^[-+%d.eE]+", place)
    place = place + #number
    return math.tointeger(number) or tonumber(number)
  end

  return value()
end

local function quoted(text)
  return '"' .. text:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

local encode

local function encoded_table(value)
  local parts = {}
  if #value > 0 or next(value) == nil then
    for _, item in ipairs(value) do parts[#parts + 1] = encode(item) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for key, item in pairs(value) do
    parts[#parts + 1] = quoted(tostring(key)) .. ":" .. encode(item)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value)
  local kind = type(value)
  if kind == "table" then return encoded_table(value) end
  if kind == "string" then return quoted(value) end
  if kind == "nil" or kind == "boolean" then return tostring(value) end
  if math.type(value) == "integer" then return ("%d"):format(value) end
  if kind == "number" and value == value and math.abs(value) < math.huge then
    return ("%.17g"):format(value)
  end
  error("result: a " .. kind .. " has no JSON", 0)
end

local given = assert(io.open(os.getenv("CELLWALL_ARGUMENTS")))
arguments = decode(given:read("a"))
given:close()
local target = assert(io.open(os.getenv("CELLWALL_RESULT"), "w"))
local file = table.remove(arg, 1)
arg[0] = file
assert(loadfile(file))(table.unpack(arg))
if main ~= nil then
  result = main(arguments)
end
if result ~= nil then
  target:write(encode(result))
  target:close()
else
  target:close()
  os.remove(os.getenv("CELLWALL_RESULT"))
end
