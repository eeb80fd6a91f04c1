# Runs a program with %arguments, and leaves the value of main(%arguments) or of `our $result`.
use strict;
use warnings;
use Cwd qw(getcwd);
use JSON::PP ();

our ( %arguments, $result );
{
    my $target = getcwd() . '/' . $ENV{CELLWALL_RESULT};
    my $json   = JSON::PP->new->allow_nonref;
    open my $given, '<:raw', $ENV{CELLWALL_ARGUMENTS} or die "arguments: $!";
    %arguments = %{ $json->utf8->decode( do { local $/; <$given> } ) };
    close $given;
    my $file = shift @ARGV;
    local $0 = $file;
    die "$file: $!" if !-e $file;
    do "./$file";
    die $@ if $@;
    my $value = defined &main ? main(%arguments) : $result;
    if ( defined $value ) {
        open my $out, '>:raw', $target or die "result: $!";
        print {$out} $json->utf8->encode($value);
        close $out or die "result: $!";
    }
}
