<?php
declare(strict_types=1);

/** The server does not answer, or refuses a command. */
class RedisFailure extends Exception
{
}

/** The server refuses a command; the first word says why. */
final class RedisRefusal extends RedisFailure
{
    private const REMEDIES = [
        'NOAUTH' => 'this client sends no password, and its `Connection` has to send AUTH',
        'NOPERM' => 'the user needs the rights on the page "Operating Redis"',
        'MOVED' => 'this is a node of a cluster: this client needs one server',
    ];

    public function __construct(string $said)
    {
        $remedy = self::REMEDIES[strtok($said, ' ')] ?? null;
        parent::__construct($said . ($remedy === null ? '' : "; $remedy"));
    }
}

/** The connection has ended, or leads to a replica: a new one may lead to the primary. */
final class ConnectionLost extends RedisFailure
{
}

/** One connection to Redis, without an extension. */
final class Connection
{
    /** A command waits for its reply: a signal handler must not send another. */
    public bool $isBusy = false;
    /** @var resource */
    private $socket;

    public function __construct(string $address, float $timeout = 1.0)
    {
        $socket = @stream_socket_client("tcp://$address", $code, $message, $timeout);
        $this->socket = $socket ?: throw new RedisFailure("$address: $message");
        stream_set_timeout($socket, (int) $timeout, (int) (fmod($timeout, 1) * 1e6));
    }

    /** Returns a connection that hears what is published on a channel from now on. */
    public static function subscribed(string $address, string $channel): self
    {
        $connection = new self($address);
        $connection->call(['SUBSCRIBE', $channel]);
        return $connection;
    }

    public function call(array $command): mixed
    {
        $this->isBusy = true;
        $bytes = '*' . count($command) . "\r\n";
        foreach ($command as $part) {
            $bytes .= '$' . strlen((string) $part) . "\r\n$part\r\n";
        }
        for ($rest = $bytes; $rest !== ''; $rest = substr($rest, $sent)) {
            $sent = @fwrite($this->socket, $rest) ?: throw $this->failure();
        }
        $reply = $this->reply();
        $this->isBusy = false;
        if ($reply instanceof RedisRefusal && str_contains($reply->getMessage(), 'READONLY')) {
            throw new ConnectionLost("the address must lead to the primary: {$reply->getMessage()}");
        }
        return is_object($reply) ? throw $reply : $reply;
    }

    /** Waits for a message, at most so many milliseconds. */
    public function wait(int $milliseconds): void
    {
        [$read, $none] = [[$this->socket], []];
        $seconds = intdiv($milliseconds, 1000);
        if (@stream_select($read, $none, $none, $seconds, $milliseconds % 1000 * 1000)) {
            $this->reply();
        }
    }

    private function reply(): mixed
    {
        $line = fgets($this->socket);
        if ($line === false || !str_ends_with($line, "\r\n")) {
            throw $this->failure();
        }
        $rest = substr($line, 1, -2);
        return match ($line[0]) {
            '+' => $rest,
            '-' => new RedisRefusal($rest),
            ':' => (int) $rest,
            '$' => (int) $rest < 0 ? null : $this->bytes((int) $rest),
            '*' => (int) $rest < 0 ? null : array_map(fn () => $this->reply(), array_fill(0, (int) $rest, 0)),
        };
    }

    private function bytes(int $length): string
    {
        $bytes = '';
        while (strlen($bytes) < $length + 2) {
            $more = fread($this->socket, $length + 2 - strlen($bytes));
            // Not `?:`: the string "0" counts as false.
            $bytes .= $more === false || $more === '' ? throw $this->failure() : $more;
        }
        return substr($bytes, 0, -2);
    }

    /** A server that is slow has the command, and must not get it again; one that hung up may have. */
    private function failure(): RedisFailure
    {
        return stream_get_meta_data($this->socket)['timed_out']
            ? new RedisFailure('the server does not answer')
            : new ConnectionLost('the server has closed the connection');
    }
}
