<?php
declare(strict_types=1);

require_once __DIR__ . '/Connection.php';
require_once __DIR__ . '/Wire.php';

/** The names and scripts of one cache in Redis. */
final class Server
{
    private ?Connection $redis = null;
    private readonly string $prefix;
    private readonly string $process;

    /**
     * $schema is that of the Rust cache. $scripts is the crate's folder `src/remote/redis/scripts`,
     * or a copy of it.
     */
    public function __construct(
        public readonly string $address,
        string $namespace,
        private readonly string $name,
        public readonly int $schema = 0,
        private readonly string $scripts = __DIR__ . '/../../src/remote/redis/scripts',
    ) {
        $this->prefix = "$namespace:" . Wire::VERSION . ":$name";
        $this->process = random_bytes(8);
    }

    /**
     * Sends a command; a second time, over a new connection, if the first one was closed. Servers and
     * proxies close idle connections, and a worker has one for hours. Whether the closed one still
     * ran the command is not known. Running twice is safe for each of them; the reasons are on the
     * page "The protocol for other languages", section "A closed connection".
     */
    public function call(array $command): mixed
    {
        for ($isSecond = false; ; $isSecond = true) {
            try {
                $this->redis ??= new Connection($this->address);
                return $this->redis->call($command);
            } catch (RedisRefusal $refusal) {
                throw $refusal;
            } catch (RedisFailure $failure) {
                // A late reply would be taken for that of the next command.
                $this->redis = null;
                if ($isSecond || !$failure instanceof ConnectionLost) {
                    throw $failure;
                }
            }
        }
    }

    public function isBusy(): bool
    {
        return $this->redis?->isBusy ?? false;
    }

    /** Returns a connection that hears wake-ups from now on. */
    public function subscribed(): Connection
    {
        return Connection::subscribed($this->address, $this->inbox());
    }

    public function inbox(): string
    {
        return "$this->prefix:in:" . bin2hex($this->process);
    }

    /** Reads a value, and judges it by the invalidation log and the server's clock. */
    public function read(string $key): array
    {
        $bytes = $this->call(['GET', $this->names($key)[0]]) ?? '';
        $dead = ['state' => 'dead', 'version' => substr($bytes, 4, 16)];
        try {
            $found = Wire::decode($key, $bytes, $this->schema);
            if (($found['stamp'] ?? null) === null) {
                return $dead;
            }
            $found['value'] = $found['isMarker'] ? null : Wire::fromJson($found['payload']);
        } catch (DomainException | JsonException $error) {
            // Rust processes read it: it stays, and each caller computes for itself.
            return ['state' => 'unreadable', 'why' => $error->getMessage()];
        }
        // A tag, and the marks of tag and key that make values stale. Here all end the value.
        [[$epoch, $position], $items] = [$found['stamp'], ["t\0m\0e$key"]];
        foreach ($found['tags'] as $tag) {
            array_push($items, "t$tag", "t\0m$tag");
        }
        $log = $this->run('positions', ["$this->prefix:{#$this->name}:tags"], $items);
        if ($log === null || $log[0] !== $epoch || $log[1] < $position) {
            return $dead;
        }
        [$seconds, $micros] = $this->call(['TIME']);
        $age = $seconds * 1000 + intdiv((int) $micros, 1000) - $found['born'];
        if (max($log[2], $log[3], ...$log[5]) > $position || $age >= $found['stale']) {
            return $dead;
        }
        return ['state' => $age < $found['fresh'] ? 'fresh' : 'stale'] + $dead + $found;
    }

    /** Asks for the lease; the reply is that of acquire.lua, with the token as its last element. */
    public function acquire(string $key, int $lease, string $inbox, string $seen): array
    {
        $token = bin2hex(random_bytes(16));
        $arguments = [$token, $lease, $lease + 60_000, $inbox, $seen];
        return [...$this->run('acquire', $this->names($key), $arguments), $token];
    }

    /** Removes a value, and ends the lock and the right to fill. */
    public function invalidate(string $key): void
    {
        $this->run('invalidate', $this->names($key), ['', "1I$this->process$key"]);
        $this->announce("k$key");
    }

    /** Writes items to the log, and returns its epoch and last position as they were before. */
    public function announce(string ...$items): array
    {
        $log = "$this->prefix:{#$this->name}";
        $fixed = [bin2hex(random_bytes(8)), '', 0, "$this->prefix:inv", "1L$this->process", 100_000, 4096];
        $reply = $this->run('announce', ["$log:tags", "$log:keys"], [...$fixed, ...$items]);
        return [$reply[0], $reply[5]];
    }

    /** The names of the value, the lock and the right to fill. */
    public function names(string $key): array
    {
        if (!preg_match('/^[^#{}\0][^{}]{0,199}$/sD', $key)) {
            throw new DomainException('a key has 1 to 200 bytes, without braces, and begins with no #');
        }
        return array_map(fn ($end) => "$this->prefix:{{$key}}:$end", ['v', 'l', 'r']);
    }

    public function run(string $script, array $names, array $arguments): mixed
    {
        $source = file_get_contents("$this->scripts/$script.lua");
        $rest = [count($names), ...$names, ...$arguments];
        try {
            return $this->call(['EVALSHA', sha1($source), ...$rest]);
        } catch (RedisRefusal $failure) {
            if (!str_starts_with($failure->getMessage(), 'NOSCRIPT')) {
                throw $failure;
            }
        }
        return $this->call(['EVAL', $source, ...$rest]);
    }
}
