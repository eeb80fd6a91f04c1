<?php
$words = preg_split('/\s+/', stream_get_contents(STDIN), -1, PREG_SPLIT_NO_EMPTY);
$counts = array_count_values($words);
ksort($counts, SORT_STRING);
foreach ($counts as $word => $count) echo $word, " ", $count, "\n";
