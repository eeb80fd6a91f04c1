<?php
for ($n = 2; $n < 100; $n++) {
    for ($d = 2; $d * $d <= $n; $d++) {
        if ($n % $d == 0) continue 2;
    }
    echo $n, "\n";
}
