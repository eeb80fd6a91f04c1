<?php
function place(int $size, array $columns = []): int {
    $row = count($columns);
    if ($row == $size) return 1;
    $count = 0;
    for ($column = 0; $column < $size; $column++) {
        foreach ($columns as $r => $c) {
            if ($c == $column || abs($c - $column) == $row - $r) continue 2;
        }
        $count += place($size, [...$columns, $column]);
    }
    return $count;
}

echo place(8), "\n";
