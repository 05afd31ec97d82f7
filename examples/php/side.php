<?php
declare(strict_types=1);

// The PHP side of one Redis that several languages share: php side.php HOST:PORT CALLERS TAKE_MS
// LEASE_MS [renew], and the commands of examples/other_languages.rs. One caller asks after the
// other, as in a worker of PHP-FPM.

require __DIR__ . '/StampedeCache.php';

if (count(array_filter(array_slice($argv, 2, 3), 'ctype_digit')) < 3) {
    fwrite(STDERR, "side.php: needs HOST:PORT CALLERS TAKE_MS LEASE_MS; the last three are whole numbers\n");
    exit(1);
}
[, $address, $callers, $take, $lease] = $argv;
$server = new Server($address, 'languages', 'demo', schema: 1);
$cache = new StampedeCache($server, (int) $lease, ($argv[5] ?? '') === 'renew');
$computations = 0;
$compute = function () use (&$computations, $take): array {
    $computations++;
    fwrite(STDOUT, "computing\n");
    // A signal ends a sleep before its time.
    for ($end = hrtime(true) + $take * 1_000_000; ($left = $end - hrtime(true)) > 0;) {
        usleep(intdiv($left, 1000) + 1);
    }
    return [
        'by' => 'php',
        'process' => getmypid(),
        'number' => $computations,
        'title' => "Zoë / \"☕\"\n",
        'large' => 9_007_199_254_740_993,
        'ratio' => 0.1,
        'note' => null,
        'parts' => [['name' => 'first', 'count' => -1]],
        // An empty array would be a list.
        'limits' => new stdClass,
    ];
};
echo "ready\n";
while (($line = fgets(STDIN)) !== false) {
    [$command, $name] = explode(' ', trim($line), 2);
    if ($command === 'get') {
        [$before, $values] = [$computations, []];
        for ($caller = 0; $caller < $callers; $caller++) {
            $value = $cache->flexible($name, [60, 120], $compute, ['reports']);
            $values[Wire::toJson($value)] = $value;
        }
        $counts = ['answered' => $caller, 'computations' => $computations - $before];
        echo Wire::toJson($counts + ['values' => array_values($values)]), "\n";
    } elseif ($command === 'fail') {
        try {
            $cache->flexible($name, [60, 120], function () use ($compute) {
                $compute();
                throw new RuntimeException('the computation failed');
            });
        } catch (RuntimeException) {
            echo "failed\n";
        }
    } else {
        try {
            $command === 'tag' ? $cache->invalidateTag($name) : $cache->invalidate($name);
        } catch (RedisFailure $failure) {
            $remedy = 'no process may have been told: repeat it until it succeeds';
            fwrite(STDERR, "side.php: $command $name: $address: {$failure->getMessage()}; $remedy\n");
            exit(1);
        }
        echo "done\n";
    }
}
