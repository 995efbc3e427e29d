-- ARGV: ids
local rows = {}
for _, id in ipairs(ARGV) do
  local is = row(id)
  if is[1] then rows[#rows + 1] = {id, unpack(is)} end
end
return rows
