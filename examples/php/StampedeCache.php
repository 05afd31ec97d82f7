<?php
declare(strict_types=1);

require_once __DIR__ . '/Server.php';

/**
 * A cache that shares values and refresh locks with tower-stampede, in the manner of Laravel's
 * `Cache::flexible`. The protocol is on the page "The protocol for other languages".
 */
final class StampedeCache
{
    private ?Connection $messages = null;
    /** Kinds of failures that are in the log. */
    private array $reported = [];

    /**
     * A lease of $lease ms must be longer than a computation, unless $renews: then SIGALRM renews
     * it (from 3000 ms on), and a computation must not hold a sleep or a system call for longer.
     */
    public function __construct(
        private readonly Server $server,
        private readonly int $lease = 30_000,
        private readonly bool $renews = false,
    ) {
    }

    /**
     * Returns the value of $key: fresh for $ttl[0] seconds, and stale until $ttl[1]. A stale value is
     * returned at once, and refreshed when the script ends. Values are stored as JSON, and whoever
     * computes one gets what the others read; a value without JSON throws a `JsonException`.
     */
    public function flexible(string $key, array $ttl, callable $compute, array $tags = []): mixed
    {
        $compute = fn () => Wire::toJson($compute());
        $lead = fn (array $grant) => $this->lead($key, $ttl, $compute, $tags, $grant);
        try {
            for ($inbox = ''; ;) {
                $found = $this->server->read($key);
                if ($found['state'] === 'unreadable') {
                    $this->warnOnce('unreadable', "the value of $key is not JSON that this client reads"
                        . " ({$found['why']}); it is not replaced, and each caller computes for itself: give the Rust"
                        . ' cache Codec::json().fingerprint(N), without compress_above, encrypt and validators, and'
                        . ' this client the schema N');
                    $grant = null;
                    break;
                } elseif ($found['state'] === 'fresh' && $found['isMarker']) {
                    $grant = null;
                    break;
                } elseif ($found['state'] === 'fresh') {
                    return $found['value'];
                } elseif ($found['state'] === 'stale') {
                    register_shutdown_function(fn () => $this->refresh($key, $found['version'], $lead));
                    return $found['value'];
                }
                $grant = $this->server->acquire($key, $this->lease, $inbox, $found['version']);
                if ($grant[0] === 'A') {
                    break;
                } elseif ($grant[0] === 'B') {
                    throw new DomainException("the last computation failed; held for $grant[2] ms");
                } elseif ($grant[0] === 'L') {
                    $inbox = $this->wait($inbox, $grant[2] + 1);
                }
            }
        } catch (RedisFailure $failure) {
            $this->report($failure);
            $grant = null;
        }
        // Without Redis, and where values may not be shared or read, the caller computes for itself.
        return Wire::fromJson($grant === null ? $compute() : $lead($grant));
    }

    /**
     * Removes a value, and revokes the right of a computation that runs. A `RedisFailure` says that
     * no process may have been told. A request that ends cannot tell them later, so this client keeps
     * no list: call it again until it returns, from an outbox for instance. Until then the old
     * value is served, at most to the end of its lifetime.
     */
    public function invalidate(string $key): void
    {
        $this->server->invalidate($key);
    }

    /** Ends every value that carries the tag. A `RedisFailure` means what it means above. */
    public function invalidateTag(string $tag): void
    {
        $this->server->announce("t$tag");
    }

    /** Waits for the holder of a lease, and returns the inbox that the next acquire registers. */
    private function wait(string $inbox, int $left): string
    {
        try {
            if ($this->messages === null) {
                // The subscription stands before the next acquire registers it.
                $this->messages = $this->server->subscribed();
            } elseif ($inbox !== '') {
                // However many messages are lost, the end of the lease is looked at.
                $this->messages->wait(min($left, 1000));
            }
            return $this->server->inbox();
        } catch (RedisFailure $failure) {
            if (!$failure instanceof ConnectionLost) {
                $this->report($failure, 'a waiting process looks every 50 ms');
            }
            $this->messages = null;
            usleep(1000 * min($left, 50));
            return '';
        }
    }

    private function refresh(string $key, string $seen, callable $lead): void
    {
        $grant = $this->attempt(fn () => $this->server->acquire($key, $this->lease, '', $seen));
        if (($grant[0] ?? '') === 'A') {
            $lead($grant);
        }
    }

    /** Computes under a grant. The caller gets the value even where the fence refuses to store it. */
    private function lead(string $key, array $ttl, callable $compute, array $tags, array $grant): string
    {
        [, $now, $version, , $token] = $grant;
        $names = $this->server->names($key);
        // How far the log was when the computation began: a later invalidation ends the value.
        $stamp = $this->attempt(fn () => $this->server->announce());
        [$began, $keep] = [hrtime(true), $this->lease + $ttl[1] * 1000];
        $this->renewing(fn () => $this->server->run('renew', $names, [$token, $this->lease, $keep, $version]));
        try {
            $payload = $compute();
        } catch (Throwable $error) {
            $message = '1A' . Wire::hash($key);
            $this->attempt(fn () => $this->server->run('abandon', array_slice($names, 1), [$token, 0, $message]));
            throw $error;
        } finally {
            $this->renewing(null);
        }
        if ($stamp !== null) {
            $took = intdiv(hrtime(true) - $began, 1_000_000);
            $envelope = Wire::encode($key, $payload, $version, $now, $took, $ttl, $tags, $stamp, $this->server->schema);
            $arguments = [$token, $version, $ttl[1] * 1000, $envelope, '1F' . Wire::hash($key) . $version];
            $this->attempt(fn () => $this->server->run('fill', $names, $arguments));
        }
        return $payload;
    }

    private function renewing(?callable $renew): void
    {
        if ($this->renews) {
            $pause = $renew === null ? 0 : max(1, intdiv($this->lease, 3000));
            pcntl_alarm($pause);
            pcntl_async_signals(true);
            pcntl_signal(SIGALRM, $renew === null ? SIG_IGN : function () use ($renew, $pause) {
                pcntl_alarm($pause);
                // The computation may be in the middle of a call of this cache.
                if (!$this->server->isBusy()) {
                    $this->attempt($renew);
                }
            });
        }
    }

    /** What fails here costs another process a computation, and its own caller nothing. */
    private function attempt(callable $call): mixed
    {
        try {
            return $call();
        } catch (RedisFailure $failure) {
            $this->report($failure);
            return null;
        }
    }

    /** Logs each kind of failure once. No request fails, so no error says it. */
    private function report(RedisFailure $failure, string $so = 'values are computed without it'): void
    {
        [$message, $isRefusal] = [$failure->getMessage(), $failure instanceof RedisRefusal];
        $kind = $isRefusal ? strtok($message, ' ') : 'connection';
        $what = $isRefusal ? 'refuses a command' : 'cannot be reached';
        $this->warnOnce($kind, "Redis at {$this->server->address} $what: $message; $so");
    }

    private function warnOnce(string $kind, string $line): void
    {
        if (!isset($this->reported[$kind])) {
            $this->reported[$kind] = true;
            error_log($line);
        }
    }
}
