use strict;
use warnings;

my %counts;
while (<STDIN>) {
    $counts{$_}++ for split;
}
print "$_ $counts{$_}\n" for sort keys %counts;
