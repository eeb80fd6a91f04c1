use strict;
use warnings;

sub place {
    my ( $size, @columns ) = @_;
    return 1 if @columns == $size;
    my $count = 0;
    COLUMN: for my $column ( 0 .. $size - 1 ) {
        for my $row ( 0 .. $#columns ) {
            my $apart = abs $columns[$row] - $column;
            next COLUMN if $apart == 0 or $apart == @columns - $row;
        }
        $count += place( $size, @columns, $column );
    }
    return $count;
}

print place(8), "\n";
