use strict;
use warnings;
use IO::Socket::INET;

my ( $name, @rest ) = @ARGV;
my %cases = (
    echo  => sub { print while <STDIN> },
    words => sub { print "$_\n" for @rest },
    text  => sub { print "grüße 你好 🙂\n" },
    leave => sub { exit 3 },
    wait  => sub { sleep 1 while 1 },
    spin  => sub { 1 while 1 },
    hog   => sub { my @held; push @held, "x" x ( 1 << 20 ) while 1 },
    bomb  => sub {
        while (1) {
            my $pid = fork;
            exit 1 if !defined $pid;
            sleep 60 if !$pid;
        }
    },
    flood => sub { print "a line of output\n" for 1 .. 100_000 },
    file  => sub {
        open my $out, '>', 'note.txt' or die $!;
        print {$out} "kept\n";
        close $out;
        open my $in, '<', 'note.txt' or die $!;
        print <$in>;
    },
    connect => sub {
        IO::Socket::INET->new( PeerAddr => '127.0.0.1', PeerPort => $rest[0] ) or die $!;
        print "connected\n";
    },
);
$cases{$name}->();
