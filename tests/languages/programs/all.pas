{$mode objfpc}{$H+}
uses sysutils;
var
  word: string;
  i: longint;
  note: text;
  held: pointer;
begin
  word := paramstr(1);
  case word of
    'echo':
      while not eof do
      begin
        readln(word);
        writeln(word);
      end;
    'words':
      for i := 2 to paramcount do
        writeln(paramstr(i));
    'text': writeln('grüße 你好 🙂');
    'leave': halt(3);
    'wait': while true do sleep(1000);
    'spin': while true do ;
    'hog':
      while true do
      begin
        getmem(held, 1048576);
        fillchar(held^, 1048576, 1);
      end;
    'flood':
      for i := 1 to 100000 do
        writeln('a line of output');
    'file':
      begin
        assign(note, 'note.txt');
        rewrite(note);
        writeln(note, 'kept');
        close(note);
        reset(note);
        readln(note, word);
        writeln(word);
      end;
  end;
end.
