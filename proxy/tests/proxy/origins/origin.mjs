// An origin in Node: answers with the page that it has for a target, in each way of reading it.
import http from 'node:http';
import path from 'node:path';
import url from 'node:url';

const base = 'http://shop.test';
const withoutQuery = (target) => target.split('?')[0];

const readings = {
    'new URL': (target) => new URL(target, base).pathname,
    'new URL, decoded': (target) => decodeURIComponent(new URL(target, base).pathname),
    'new URL of the decoded target': (target) => new URL(decodeURIComponent(target), base).pathname,
    'url.parse': (target) => url.parse(target).pathname,
    'url.parse with hosts': (target) => url.parse(target, false, true).pathname ?? '/',
    'as sent': withoutQuery,
    // Its router takes letters of both cases, and paths with and without the last slash.
    'express': (target) => {
        const path = withoutQuery(target).toLowerCase().replace(/\/$/, '') || '/';
        return page(path) === 'none' ? `${path}/` : path;
    },
    // Its router ends a path at the first semicolon.
    'fastify': (target) => decodeURI(target.split(/[?;#]/)[0]),
    'path.normalize': (target) => path.posix.normalize(decodeURIComponent(withoutQuery(target))),
    'path.normalize of the target': (target) => withoutQuery(path.posix.normalize(target)),
    'path.win32': (target) =>
        path.win32.normalize(decodeURIComponent(withoutQuery(target))).replaceAll('\\', '/'),
    'trim': (target) => decodeURIComponent(withoutQuery(target)).trim(),
    'toLowerCase': (target) => {
        const path = decodeURIComponent(withoutQuery(target)).toLowerCase();
        return page(path) === 'account' || page(path) === 'user' ? path : withoutQuery(target);
    },
    // Streams of files on Windows.
    'NTFS': (target) => decodeURIComponent(withoutQuery(target)).replace(/:[^/]*\$[^/]*/g, ''),
    'decoded twice': (target) =>
        path.posix.normalize(decodeURIComponent(decodeURIComponent(withoutQuery(target)))),
};

function page(path) {
    if (path === '/') return 'home';
    if (path === '/account' || path.startsWith('/account/')) return 'account';
    if (path === '/user') return 'user';
    if (path.endsWith('.css')) return 'styles';
    return `${path}/`.startsWith('/static/') ? 'static' : 'none';
}

const server = http.createServer((request, response) => {
    const pages = Object.entries(readings).map(([name, read]) => {
        try {
            return `${name}: ${page(read(request.url))}`;
        } catch {
            return `${name}: error`;
        }
    });
    response.end(pages.join('\n'));
});
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
