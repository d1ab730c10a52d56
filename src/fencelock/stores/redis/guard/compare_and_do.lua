#!lua
-- Compare what a block relies on, and then run its commands.
--
-- KEYS: every key that is touched. ARGV: the number of comparisons; each as the length of a command that reads, its
-- words, and the value that it must answer ("" for none, "=" before any other); then the commands, each as its length
-- and its words. Values are compared as strings: no token is ever a number here, which would be a double.
--
-- Answers {"changed", N} if comparison N failed, and nothing was written; {"failed", N, error} if a command failed after
-- N others, which are not rolled back; {"done"} otherwise. The first line makes the server refuse the whole script,
-- before its first command, where it could not write: on a replica, without room, in another slot.
local at = 1

local function next_word()
  at = at + 1
  return ARGV[at - 1]
end

local function next_command()
  local length = tonumber(next_word())
  at = at + length
  return unpack(ARGV, at - length, at - 1)
end

for number = 1, tonumber(next_word()) do
  local now = redis.call(next_command())
  if (now and '=' .. now or '') ~= next_word() then
    return { 'changed', number }
  end
end

local done = 0
while ARGV[at] do
  local answer = redis.pcall(next_command())
  if type(answer) == 'table' and answer.err then
    return { 'failed', done, answer.err }
  end
  done = done + 1
end
return { 'done' }
