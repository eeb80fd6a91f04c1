use strict;
use warnings;

sub steps {
    my ($n) = @_;
    return $n == 1 ? 0 : 1 + steps( $n % 2 ? 3 * $n + 1 : $n / 2 );
}

print "$_ ", steps($_), "\n" for 1 .. 30;
