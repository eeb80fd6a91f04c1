use strict;
use warnings;

sub quicksort {
    my ( $pivot, @rest ) = @_;
    return () unless defined $pivot;
    return ( quicksort( grep { $_ < $pivot } @rest ), $pivot, quicksort( grep { $_ >= $pivot } @rest ) );
}

chomp( my @numbers = <STDIN> );
print "$_\n" for quicksort(@numbers);
