<?php
declare(strict_types=1);

/** The bytes that Rust processes read and write: a value, its envelope, and BLAKE3. */
final class Wire
{
    private const JSON = JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE
        | JSON_PRESERVE_ZERO_FRACTION;
    /** The part of every name in Redis that changes with the format. */
    public const VERSION = 2;
    private const HEAD = 120;
    private const IV = [
        0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
    ];

    public static function toJson(mixed $value): string
    {
        return json_encode($value, self::JSON);
    }

    /** Reads a value: a map is an object, so that an empty map is no list. Throws for what is no JSON. */
    public static function fromJson(string $json): mixed
    {
        return json_decode($json, false, 512, self::JSON);
    }

    /** Writes an envelope. $stamp is epoch and position; $ttl is fresh and stale, in seconds. */
    public static function encode(
        string $key, string $payload, string $version, int $started, int $took, array $ttl,
        array $tags, array $stamp, int $schema,
    ): string {
        $spans = [$took + $ttl[0] * 1000, max(0, $ttl[1] - $ttl[0]) * 1000, 0, $took, 0, 0];
        $rest = pack('J7', $started, ...$spans)
            . pack('N3J', $schema, strlen($key), count($tags), strlen($payload))
            . hex2bin($stamp[0]) . pack('J', $stamp[1])
            . implode('', array_map(fn ($tag) => pack('N', strlen($tag)) . $tag, $tags))
            . $key . $payload;
        return "ts\x03\x00$version" . self::hash("ts\x03\x00$rest") . $rest;
    }

    /**
     * Reads an envelope. Returns null if it is damaged, or of another key or schema. Throws a
     * `DomainException` for a value that only Rust processes read: this client must not replace it.
     */
    public static function decode(string $key, string $bytes, int $schema): ?array
    {
        $sum = self::hash(substr($bytes, 0, 4) . substr($bytes, 28));
        $isOurs = str_starts_with($bytes, "ts\x03") && substr($bytes, 20, 8) === $sum;
        if (strlen($bytes) < self::HEAD || !$isOurs) {
            return null;
        }
        $head = unpack('Jborn/Jfresh/Jstale/Jerror/Jtook/Jage/Jkept/Nschema/Nkey/Ntags/Jpayload', $bytes, 28);
        if ($head['schema'] !== $schema) {
            // Rust computes numbers from 2**31 on. Those below are schemas of all sides.
            return $head['schema'] >> 31 ? throw new DomainException("number {$head['schema']} of a Rust type") : null;
        }
        if (ord($bytes[3]) > 1) {
            throw new DomainException('flags ' . ord($bytes[3]));
        }
        $epoch = bin2hex(substr($bytes, 104, 8));
        [$at, $tags] = [self::HEAD, []];
        for ($left = $head['tags']; $left > 0 && $at + 4 <= strlen($bytes); $left--) {
            $length = unpack('N', $bytes, $at)[1];
            $tags[] = substr($bytes, $at + 4, $length);
            $at += 4 + $length;
        }
        $isWhole = $at + $head['key'] + $head['payload'] === strlen($bytes);
        if (!$isWhole || substr($bytes, $at, $head['key']) !== $key) {
            return null;
        }
        return [
            // Only says that each caller computes for itself.
            'isMarker' => $bytes[3] === "\x01",
            'stamp' => $epoch === str_repeat('0', 16) ? null : [$epoch, unpack('J', $bytes, 112)[1]],
            'born' => $head['born'] - $head['age'],
            'fresh' => $head['fresh'],
            'stale' => $head['fresh'] + $head['stale'],
            'tags' => $tags,
            'payload' => substr($bytes, $at + $head['key']),
        ];
    }

    /** Returns the first eight bytes of BLAKE3. */
    public static function hash(string $bytes): string
    {
        return pack('V2', ...array_slice(self::tree($bytes, 0, 8), 0, 2));
    }

    private static function tree(string $bytes, int $chunk, int $root): array
    {
        if (strlen($bytes) > 1024) {
            $left = 1024;
            while ($left * 2 < strlen($bytes)) {
                $left *= 2;
            }
            $words = [
                ...self::tree(substr($bytes, 0, $left), $chunk, 0),
                ...self::tree(substr($bytes, $left), $chunk + intdiv($left, 1024), 0),
            ];
            return self::compress(self::IV, $words, 0, 64, 4 | $root);
        }
        $blocks = str_split($bytes, 64) ?: [''];
        $chain = self::IV;
        foreach ($blocks as $i => $block) {
            $flags = ($i === 0 ? 1 : 0) | ($i === count($blocks) - 1 ? 2 | $root : 0);
            $words = array_values(unpack('V16', str_pad($block, 64, "\0")));
            $chain = self::compress($chain, $words, $chunk, strlen($block), $flags);
        }
        return $chain;
    }

    private static function compress(array $chain, array $m, int $counter, int $length, int $flags): array
    {
        $v = [...$chain, ...array_slice(self::IV, 0, 4), $counter & 0xFFFFFFFF, $counter >> 32, $length, $flags];
        for ($round = 0; $round < 7; $round++) {
            $quarters = [
                [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
                [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
            ];
            foreach ($quarters as $i => [$a, $b, $c, $d]) {
                foreach ([[16, 12, $m[2 * $i]], [8, 7, $m[2 * $i + 1]]] as [$first, $second, $word]) {
                    $v[$a] = ($v[$a] + $v[$b] + $word) & 0xFFFFFFFF;
                    $x = $v[$d] ^ $v[$a];
                    $v[$d] = ($x >> $first | $x << 32 - $first) & 0xFFFFFFFF;
                    $v[$c] = ($v[$c] + $v[$d]) & 0xFFFFFFFF;
                    $x = $v[$b] ^ $v[$c];
                    $v[$b] = ($x >> $second | $x << 32 - $second) & 0xFFFFFFFF;
                }
            }
            $order = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
            $m = array_map(fn ($at) => $m[$at], $order);
        }
        return array_map(fn ($i) => $v[$i] ^ $v[$i + 8], range(0, 7));
    }
}
