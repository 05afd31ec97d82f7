<?php
// An origin in PHP: answers with the page that it has for a target, in each way of reading it.

$target = $_SERVER['REQUEST_URI'];
$of_url = parse_url($target, PHP_URL_PATH) ?: '/';
$as_sent = explode('?', $target)[0];

$readings = [
    'parse_url' => $of_url,
    'parse_url, decoded' => rawurldecode($of_url),
    'parse_url of the decoded target' => parse_url(rawurldecode($target), PHP_URL_PATH) ?: '/',
    'as sent' => $as_sent,
    'rawurldecode' => rawurldecode($as_sent),
    'decoded twice' => rawurldecode(rawurldecode($as_sent)),
    'without parameters' => rawurldecode(explode(';', $as_sent)[0]),
    '~urldecode' => urldecode($as_sent),
    '~urldecode, trimmed' => '/' . trim(urldecode($as_sent), " \n\r\t\v\0/"),
    '~filter_var' => filter_var(rawurldecode($as_sent), FILTER_SANITIZE_URL),
    // As Symfony and Laravel do.
    '~front controller' => preg_replace('#^/index\.php(?=/|$)#', '', rawurldecode($as_sent)) ?: '/',
    // What PHP's own server makes of the path, as nginx does in front of PHP-FPM.
    'the server' => $_SERVER['SCRIPT_NAME'] . ($_SERVER['PATH_INFO'] ?? ''),
];

function page(string $path): string
{
    return match (true) {
        $path === '/' => 'home',
        $path === '/account' || str_starts_with($path, '/account/') => 'account',
        $path === '/user' => 'user',
        str_ends_with($path, '.css') => 'styles',
        str_starts_with("$path/", '/static/') => 'static',
        default => 'none',
    };
}

foreach ($readings as $name => $path) {
    echo "$name: ", page($path), "\n";
}
