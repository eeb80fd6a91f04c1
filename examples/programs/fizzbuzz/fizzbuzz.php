<?php
foreach (range(1, 30) as $n) {
    echo (($n % 3 ? "" : "Fizz") . ($n % 5 ? "" : "Buzz")) ?: $n, "\n";
}
