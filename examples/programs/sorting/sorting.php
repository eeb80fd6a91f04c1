<?php
function quicksort(array $numbers): array {
    if (count($numbers) < 2) return $numbers;
    $pivot = array_shift($numbers);
    $smaller = array_filter($numbers, fn($n) => $n < $pivot);
    $others = array_filter($numbers, fn($n) => $n >= $pivot);
    return [...quicksort(array_values($smaller)), $pivot, ...quicksort(array_values($others))];
}

foreach (quicksort(array_map('intval', file('php://stdin'))) as $n) echo $n, "\n";
