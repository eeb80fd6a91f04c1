function hog(   n, held, text) {
  text = sprintf("%1048576s", "x")
  while (1) held[n++] = text n
}

BEGIN {
  name = ARGV[1]
  if (name == "echo") {
    while ((getline line < "-") > 0) print line
  } else if (name == "words") {
    for (i = 2; i < ARGC; i++) print ARGV[i]
  } else if (name == "text") {
    print "grüße 你好 🙂"
  } else if (name == "leave") {
    exit 3
  } else if (name == "wait") {
    while (1) system("sleep 1")
  } else if (name == "spin") {
    while (1) {}
  } else if (name == "hog") {
    hog()
  } else if (name == "bomb") {
    while (1) if (system("sleep 60 &") != 0) exit 1
  } else if (name == "flood") {
    for (i = 0; i < 100000; i++) print "a line of output"
  } else if (name == "file") {
    print "kept" > "note.txt"
    close("note.txt")
    while ((getline line < "note.txt") > 0) print line
  } else if (name == "connect") {
    service = "/inet/tcp/0/127.0.0.1/" ARGV[2]
    PROCINFO[service, "NONFATAL"] = 1
    printf "" |& service
    if (PROCINFO[service, "NONFATAL"] && ERRNO != "") exit 1
    print "connected"
  }
  exit 0
}
