<?php
function steps(int $n): int {
    return $n == 1 ? 0 : 1 + steps($n % 2 ? 3 * $n + 1 : intdiv($n, 2));
}

foreach (range(1, 30) as $n) echo $n, " ", steps($n), "\n";
