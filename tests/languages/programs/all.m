1;

function copy()
  while ischar(line = fgets(stdin))
    fputs(stdout, line);
  end
end

function hog()
  held = {};
  while true
    held{end + 1} = ones(1, 131072);
  end
end

function keep()
  note = fopen("note.txt", "w");
  fputs(note, "kept\n");
  fclose(note);
  fputs(stdout, fileread("note.txt"));
end

given = argv();
switch given{1}
  case "echo"
    copy();
  case "words"
    printf("%s\n", given{2:end});
  case "text"
    printf("grüße 你好 🙂\n");
  case "leave"
    exit(3);
  case "wait"
    while true pause(1); end
  case "spin"
    while true end
  case "hog"
    hog();
  case "bomb"
    while true
      [pid, message] = fork();
      if pid < 0 exit(1); end
      if pid == 0 pause(60); end
    end
  case "flood"
    for i = 1:100000 printf("a line of output\n"); end
  case "file"
    keep();
end
