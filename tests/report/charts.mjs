// Runs within the page: does each drawing lie where the numbers of results.json
// and its own scales put it? Measured in the pixels of the screen.
export function inspectCharts (results) {
  const complaints = []
  const at = path => path.split('/').reduce((value, key) => value?.[key], results)
  const CLOSE = 0.75

  const transforms = {
    linear: value => value,
    log: value => Math.log10(value),
    percentile: value => -Math.log10(1 - value / 100)
  }

  // The share of an axis that lies before a value, null for none.
  function ruler (element) {
    const { scale, from, to, nothing } = element.dataset
    const low = Number(from)
    const length = Number(to) - low
    return value => {
      if (scale === 'log' && value === 0) return 0
      if (scale === 'log' && value < 0) return null
      if (scale === 'percentile' && value === 100) return 1
      if (scale === 'percentile' && (value < 0 || value > 100)) return null
      const share = (transforms[scale](value) - low) / length
      return Number(nothing) + (1 - Number(nothing)) * share
    }
  }

  const numberOf = text => {
    if (text === 'max') return 100
    const match = /^([−-]?[\d,.]+(?:e[−-]?\d+)?)([kMGT]?)$/.exec(text.trim())
    const size = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }
    return match ? Number(match[1].replaceAll(',', '').replaceAll('−', '-')) * (size[match[2]] ?? 1) : NaN
  }

  const near = (found, expected, what) => {
    if (!(Math.abs(found - expected) <= CLOSE)) complaints.push(`${what} is at ${found.toFixed(2)} px, not at ${expected.toFixed(2)} px`)
  }
  const middle = box => [(box.left + box.right) / 2, (box.top + box.bottom) / 2]

  function checkAxis (axis, ticks, pixel, path) {
    const place = ruler(axis)
    if (ticks.length < 2) complaints.push(`axis of ${path} has fewer than two marks`)
    for (const { text, line, along } of ticks) {
      const value = Number(text.dataset.value)
      const said = numberOf(text.textContent)
      if (!(Math.abs(said - value) <= Math.abs(value) * 0.005)) complaints.push(`mark of ${path} says ${text.textContent}, not ${value}`)
      near(middle(line.getBoundingClientRect())[along], pixel(place(value)), `mark ${value} of ${path}`)
    }
    const places = ticks.map(tick => place(Number(tick.text.dataset.value)))
    if (places.some((place, n) => n > 0 && place <= places[n - 1])) complaints.push(`marks of ${path} are not in order`)
    if (places.some(place => place < -0.001 || place > 1.001)) complaints.push(`marks of ${path} are outside of it`)
  }

  function checkLines (svg, path, content) {
    const [up, across] = [svg.querySelector('.axis.up'), svg.querySelector('.axis.across')]
    if (up.dataset.scale !== content.y.scale || across.dataset.scale !== content.x.scale) complaints.push(`scale of ${path} is not as declared`)
    const base = across.querySelector('.base').getBoundingClientRect()
    const plane = svg.querySelector('.plane')
    const matrix = plane.getScreenCTM()
    const height = plane.viewBox.baseVal.height * matrix.d
    const x = share => base.left + share * base.width
    const y = share => matrix.f + (1 - share) * height
    const pairs = (axis, line, along) => [...axis.querySelectorAll('text')].map((text, n) => ({ text, line: axis.querySelectorAll(line)[n], along }))
    checkAxis(across, pairs(across, '.stub', 0), x, `${path}/x`)
    checkAxis(up, pairs(up, '.grid', 1), y, `${path}/y`)
    const [placeX, placeY] = [ruler(across), ruler(up)]
    content.series.forEach((series, n) => {
      const name = `${path}/series/${n}`
      const placed = series.points.filter(point => placeX(point[0]) !== null && placeY(point[1]) !== null)
      const line = svg.querySelector(`.line[data-series="${n}"]`)
      if (line === null) { if (placed.length > 0) complaints.push(`line ${name} is missing`); return }
      const found = corners(line.getAttribute('d')).map(([a, b]) => [matrix.e + a * matrix.a, matrix.f + b * matrix.d])
      const expected = course(placed, series.steps).map(([a, b]) => [x(placeX(a)), y(placeY(b))])
      if (found.length !== expected.length) { complaints.push(`line ${name} has ${found.length} corners, not ${expected.length}`); return }
      found.forEach((corner, c) => {
        near(corner[0], expected[c][0], `corner ${c} of line ${name}`)
        near(corner[1], expected[c][1], `corner ${c} of line ${name}`)
      })
      const inside = expected.every(([a, b]) => a >= base.left - 1 && a <= base.right + 1 && b >= y(1) - 1 && b <= y(0) + 1)
      if (!inside) complaints.push(`line ${name} leaves its plane`)
      checkLegend(svg, n, line, series, name)
    })
    for (const mark of svg.querySelectorAll('[data-point]')) {
      const point = at(`${path}/${mark.dataset.point}`)
      near(svg.getBoundingClientRect().left + mark.x.baseVal.value, x(placeX(point[0])), `mark ${mark.dataset.point} of ${path}`)
      near(svg.getBoundingClientRect().top + mark.y.baseVal.value, y(placeY(point[1])), `mark ${mark.dataset.point} of ${path}`)
    }
  }

  // The corners of a line that is made of M, L, H and V.
  function corners (d) {
    const found = []
    for (const [, letter, numbers] of d.matchAll(/([MLHV])([^MLHV]*)/g)) {
      const [a, b] = numbers.trim().split(/\s+/).map(Number)
      const last = found.at(-1)
      found.push(letter === 'H' ? [a, last[1]] : letter === 'V' ? [last[0], a] : [a, b])
    }
    return found
  }

  // In steps, a value holds to the next, and the last as long as the one before.
  function course (points, steps) {
    if (!steps) return points
    const found = points.flatMap(([a, b], n) => n === 0 ? [[a, b]] : [[a, points[n - 1][1]], [a, b]])
    if (points.length > 1) found.push([2 * points.at(-1)[0] - points.at(-2)[0], points.at(-1)[1]])
    return found
  }

  function checkLegend (svg, n, line, series, name) {
    const swatch = svg.parentElement.querySelector(`.swatch[data-of="${n}"]`)
    const look = element => ['stroke', 'strokeDasharray', 'strokeWidth'].map(key => getComputedStyle(element)[key]).join()
    if (look(swatch.querySelector('path')) !== look(line)) complaints.push(`legend of ${name} does not look as its line`)
    if (swatch.parentElement.textContent.trim() !== series.name.trim()) complaints.push(`legend of ${name} has another name`)
    const twin = [...svg.querySelectorAll('.line[data-series]')].find(other => other !== line && look(other) === look(line))
    const marks = [...svg.parentElement.querySelectorAll('.swatch use')].map(use => use.getAttribute('href') + look(use) + getComputedStyle(use).color)
    if (twin && new Set(marks).size !== marks.length) complaints.push(`line ${name} looks as another one`)
  }

  function checkBars (chart, path, content) {
    if (chart.dataset.scale !== content.value.scale) complaints.push(`scale of ${path} is not as declared`)
    const below = chart.querySelector('.below')
    const base = below.querySelector('.base').getBoundingClientRect()
    const place = ruler(chart)
    const x = share => base.left + share * base.width
    const ticks = [...below.querySelectorAll('text')].map((text, n) => ({ text, line: below.querySelectorAll('.stub')[n], along: 0 }))
    checkAxis(chart, ticks, x, path)
    const start = place(0) ?? 0
    content.series.forEach((series, n) => series.values.forEach((value, category) => {
      const own = `series/${n}/values/${category}`
      const bar = chart.querySelector(`[data-bar="${own}"]`)
      if (value === null) { if (bar) complaints.push(`bar ${path}/${own} was not measured`); return }
      if (bar === null) { complaints.push(`bar ${path}/${own} is missing`); return }
      const box = bar.getBoundingClientRect()
      if (series.role === 'bound') { near(middle(box)[0], x(place(value)), `bound ${path}/${own}`); return }
      const length = Math.abs(place(value) - (Number.isFinite(start) ? start : 0)) * base.width
      near(box.width, length, `end of bar ${path}/${own}`)
      near(box.left, x(Math.min(place(value), Number.isFinite(start) ? start : 0)), `beginning of bar ${path}/${own}`)
      const said = bar.parentElement.querySelector('text').textContent
      const number = numberOf(said.split(' ')[0])
      if (!(Math.abs(number - value) <= Math.abs(value) * 0.005)) complaints.push(`bar ${path}/${own} says ${said}, not ${value}`)
      const name = bar.closest('.bar').querySelector('.name').textContent
      const alone = content.series.filter(other => other.role !== 'bound').length === 1
      const expected = alone ? content.categories[category] : series.name
      if (name !== expected) complaints.push(`bar ${path}/${own} is called ${name}, not ${expected}`)
    }))
  }

  for (const box of document.querySelectorAll('figure > [data-under]')) {
    const path = box.dataset.under
    const content = at(path)
    const [plot, bars] = [box.querySelector('.plot'), box.querySelector('.bars')]
    if (content.kind === 'lines') plot ? checkLines(plot, path, content) : complaints.push(`chart of ${path} is missing`)
    if (content.kind === 'bars') bars ? checkBars(bars, path, content) : complaints.push(`chart of ${path} is missing`)
    const figure = box.parentElement
    if (!figure.querySelector('h3')?.textContent || !figure.querySelector('.caption')?.textContent) complaints.push(`${path} has no title or no caption`)
  }
  const shown = new Set([...document.querySelectorAll('section figure > [data-under]')].map(box => box.dataset.under))
  for (const [name, part] of Object.entries(results)) {
    part.exhibits.forEach((_, n) => {
      if (!shown.has(`${name}/exhibits/${n}/content`)) complaints.push(`exhibit ${name}/exhibits/${n} is not on the page`)
    })
  }
  return complaints
}
