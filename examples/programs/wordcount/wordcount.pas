{$mode objfpc}{$H+}
uses
  classes, sysutils;
var
  words: tstringlist;
  line, word: string;
  first, last: integer;
begin
  words := tstringlist.create;
  while not eof do
  begin
    readln(line);
    for word in line.split([' ', #9], tstringsplitoptions.excludeempty) do
      words.add(word);
  end;
  words.casesensitive := true;
  words.sort;
  first := 0;
  while first < words.count do
  begin
    last := first;
    while (last < words.count) and (words[last] = words[first]) do
      inc(last);
    writeln(words[first], ' ', last - first);
    first := last;
  end;
  words.free;
end.
