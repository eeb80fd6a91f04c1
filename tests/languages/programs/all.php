<?php
function hog() { $held = []; while (true) { $held[] = str_repeat("x", 1 << 20); } }
function bomb() {
    while (true) {
        $pid = @pcntl_fork();
        if ($pid < 0) { exit(1); }
        if ($pid == 0) { sleep(60); }
    }
}
function connect($port) {
    $socket = fsockopen("127.0.0.1", (int) $port);
    if (!$socket) { exit(1); }
    echo "connected\n";
}

$rest = array_slice($argv, 2);
switch ($argv[1]) {
    case "echo": echo stream_get_contents(STDIN); break;
    case "words": foreach ($rest as $word) { echo $word, "\n"; } break;
    case "text": echo "grüße 你好 🙂\n"; break;
    case "leave": exit(3);
    case "wait": while (true) { sleep(1); }
    case "spin": while (true) { }
    case "hog": hog();
    case "bomb": bomb();
    case "flood": for ($i = 0; $i < 100000; $i++) { echo "a line of output\n"; } break;
    case "file": file_put_contents("note.txt", "kept\n"); echo file_get_contents("note.txt"); break;
    case "connect": connect($rest[0]);
}
