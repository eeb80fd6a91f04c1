<?php
// Runs a program with $arguments, and leaves the value of main(...$arguments) or of $result.
$GLOBALS['cellwall_target'] = getcwd() . '/' . getenv('CELLWALL_RESULT');
$arguments = json_decode(
    file_get_contents(getenv('CELLWALL_ARGUMENTS')), true, 512, JSON_THROW_ON_ERROR
);
array_shift($argv);
$argc -= 1;
$_SERVER['argv'] = $argv;
$_SERVER['argc'] = $argc;
require getcwd() . '/' . $argv[0];
if (function_exists('main')) {
    $result = main(...$arguments);
}
if (isset($result)) {
    file_put_contents(
        $GLOBALS['cellwall_target'],
        json_encode($result, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE)
    );
}
