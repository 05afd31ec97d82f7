<?php
declare(strict_types=1);

/** The server does not answer, or refuses a command. */
class RedisFailure extends Exception
{
}

/** The server refuses a command; the first word says why. */
final class RedisRefusal extends RedisFailure
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
            $sent = @fwrite($this->socket, $rest) ?: throw new RedisFailure('the connection is lost');
        }
        $reply = $this->reply();
        $this->isBusy = false;
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
        if ($line === false) {
            throw new RedisFailure('the server does not answer');
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
            $bytes .= $more ?: throw new RedisFailure('the server does not answer');
        }
        return substr($bytes, 0, -2);
    }
}
