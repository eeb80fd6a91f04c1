# Runs a program with `arguments`, and leaves the value of `main(**arguments)` or of `result`.
require "json"
cellwall_target = File.expand_path(ENV["CELLWALL_RESULT"])
cellwall_given = JSON.parse(File.read(ENV["CELLWALL_ARGUMENTS"]))
cellwall_file = ARGV.shift
$PROGRAM_NAME = cellwall_file
TOPLEVEL_BINDING.local_variable_set(:arguments, cellwall_given)
TOPLEVEL_BINDING.eval(File.read(cellwall_file), cellwall_file, 1)
cellwall_value =
  if Object.private_method_defined?(:main, false) || Object.method_defined?(:main, false)
    TOPLEVEL_BINDING.receiver.send(:main, **cellwall_given.transform_keys(&:to_sym))
  elsif TOPLEVEL_BINDING.local_variable_defined?(:result)
    TOPLEVEL_BINDING.local_variable_get(:result)
  end
File.write(cellwall_target, JSON.generate(cellwall_value))
