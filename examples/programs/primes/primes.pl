N: for my $n ( 2 .. 99 ) {
    $n % $_ or next N for 2 .. sqrt $n;
    print "$n\n";
}
