begin
  writeln('hello');
end.
