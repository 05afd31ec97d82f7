// What can be wrong with a report, and the complaint that has to follow.
const once = (pattern, change) => html => html.replace(pattern, change)
const addition = text => once('</main>', `${text}</main>`)
// Another number of the same length.
const other = digits => digits.replace(/[1-9]/, digit => digit === '9' ? '8' : String(Number(digit) + 1))

export const damages = [
  {
    name: 'a figure has another exact number',
    damage: once(/(data-at="value" data-value=")([^"]+)/, (_, before, number) => before + other(number)),
    found: /number at .* is .*, not/
  },
  {
    name: 'a figure reads as another number',
    damage: once(/(<td class="number" data-at="value"[^>]*>)([^<]+)/, (_, before, text) => before + other(text)),
    found: /text at .* is .*, not/
  },
  {
    name: 'a point reads as another number',
    damage: once(/(data-at="series\/0\/points\/1\/1"[^>]*>)([^<]+)/, (_, before, text) => `${before}7${text}`),
    found: /text at .*points.* is .*, not/
  },
  {
    name: 'a cell is from elsewhere',
    damage: once(/data-at="series\/0\/values\/0"/, 'data-at="series/0/values/9999"'),
    found: /is not in results\.json/
  },
  {
    name: 'a point is missing in both of its tables',
    damage: html => html.replaceAll(/<td class="number" data-at="series\/0\/points\/2\/1"[^>]*>[^<]*<\/td>/g, '<td></td>'),
    found: /is not on the page/
  },
  {
    name: 'a number is from nowhere',
    damage: once('</tbody>', '<tr><td class="number">42</td></tr></tbody>'),
    found: /number from nowhere/
  },
  {
    name: 'a figure has another unit',
    damage: once(/(<td class="number" data-at="value" [^>]*data-unit="(?!")[^>]*>[\d.,]+ )[^<]+/, '$1parsecs'),
    found: /unit at .* is parsecs/
  },
  {
    name: 'a goal that is missed is called met',
    damage: html => html.replaceAll('✗ missed', '✓ met'),
    found: /verdict on/
  },
  {
    name: 'a corner of a line is elsewhere',
    damage: once(/(class="line [^"]*" d="M[\d.]+ )([\d.]+)([^"]*" data-series)/, (_, before, y, after) => before + (Number(y) - 9) + after),
    found: /corner 0 of line/
  },
  {
    name: 'a line has a corner less',
    damage: once(/(class="line [^"]*" d="M[^"]*)[LHV][^LHV"]*(" data-series)/, '$1$2'),
    found: /corners, not/
  },
  {
    name: 'a line is missing',
    damage: html => html.replaceAll(/<path class="line [^"]*" d="[^"]*" data-series="0"><\/path>/g, ''),
    found: /line .* is missing/
  },
  {
    name: 'a bar is longer',
    damage: once(/(class="fill [^"]*" [^>]*width=")([\d.]+)%/, (_, before, width) => `${before}${Number(width) + 5}%`),
    found: /end of bar/
  },
  {
    name: 'a bar says another number',
    damage: once(/(<text class="value"[^>]*>)/, '$17'),
    found: /bar .* says/
  },
  {
    name: 'a bound across bars is elsewhere',
    damage: once(/(<line class="limit" x1=")[\d.]+%(" x2=")[\d.]+%("[^>]*data-bar)/, '$13%$23%$3'),
    found: /bound .* is at/
  },
  {
    name: 'an axis says another number',
    damage: once(/(<text class="tick[^>]*>)([\d.,]*[1-9][\d.,]*)/, (_, before, text) => before + other(text)),
    found: /mark of .* says/
  },
  {
    name: 'an axis has another scale',
    damage: html => html.replaceAll('data-scale="log"', 'data-scale="linear"'),
    found: /scale of .* is not as declared/
  },
  {
    name: 'an axis has other ends',
    damage: once(/(class="axis up" [^>]*data-to=")([^"]+)/, (_, before, to) => before + Number(to) * 1.1),
    found: /is at .* px, not at/
  },
  {
    name: 'a legend has another colour',
    damage: once(/(class="swatch"[^>]*><path class="line )[^ "]+/, '$1other-5'),
    found: /legend of .* does not look/
  },
  {
    name: 'an exhibit is missing',
    damage: once(/(<section[^]*)<figure id=[^]*?<\/figure>/, '$1'),
    found: /is not on the page/
  },
  { name: 'a picture from elsewhere', damage: addition('<img src="http://127.0.0.1:9/x.png" alt="">'), found: /asks for http/ },
  { name: 'a script', damage: addition('<script>console.log("here")</script>'), found: /console: here/ },
  { name: 'a script that fails', damage: addition('<script>nothing.there()</script>'), found: /error: nothing is not defined/ },
  { name: 'something wide', damage: addition('<div style="width:400px">wide</div>'), found: /^360 px.*page is \d+ px wide/ },
  { name: 'pale text', damage: once('--soft: #58606b', '--soft: #a0a8b0'), found: /light: contrast is/ },
  { name: 'pale text on dark', damage: once('--soft: #a2aab6', '--soft: #4a525e'), found: /dark: contrast is/ },
  { name: 'no dark colours', damage: once('prefers-color-scheme: dark', 'prefers-color-scheme: none'), found: /does not follow/ },
  { name: 'small text', damage: once('.tick { font-size: 12px', '.tick { font-size: 7px'), found: /text is small/ },
  { name: 'large labels', damage: once('.tick { font-size: 12px', '.tick { font-size: 40px'), found: /labels cover each other/ },
  { name: 'a link to nowhere', damage: once(/href="#part-[^"]*"/, 'href="#part-nowhere"'), found: /link leads nowhere/ },
  { name: 'a name twice', damage: addition('<p id="top"></p>'), found: /two elements are called top/ }
]
