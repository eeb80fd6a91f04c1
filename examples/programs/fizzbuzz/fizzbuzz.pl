for my $n ( 1 .. 30 ) {
    print( ( ( $n % 3 ? '' : 'Fizz' ) . ( $n % 5 ? '' : 'Buzz' ) || $n ), "\n" );
}
