<?php
// A shop whose front page is expensive, for PHP's own server:
//
//     php -S 127.0.0.1:9000 proxy/shop.php
//
// All that it knows of caches are its Cache-Control fields.

error_log($_SERVER['REQUEST_METHOD'] . ' ' . $_SERVER['REQUEST_URI']);

switch (parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH)) {
    case '/':
        sleep(1); // a few hundred queries
        header('Cache-Control: public, s-maxage=5, stale-while-revalidate=60, stale-if-error=600');
        header('ETag: W/"' . md5(date('H:i')) . '"');
        echo 'bestsellers as of ' . date('H:i:s') . "\n";
        break;
    case '/cart':
        session_start(); // sets a cookie, and Cache-Control: no-store, no-cache
        $_SESSION['seen'] = ($_SESSION['seen'] ?? 0) + 1;
        echo "your cart, visit {$_SESSION['seen']}\n";
        break;
    case '/whoami':
        header('Cache-Control: no-store');
        foreach (['HTTP_HOST', 'REMOTE_ADDR', 'HTTP_X_FORWARDED_FOR', 'HTTP_FORWARDED', 'HTTP_VIA'] as $name) {
            echo "$name = " . ($_SERVER[$name] ?? '-') . "\n";
        }
        break;
    default:
        http_response_code(404);
        echo "no such page\n";
}
