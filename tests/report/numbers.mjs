// Runs within the page: is every number of results.json shown, and every number
// that is shown in results.json? Returns complaints.
export function inspectNumbers (results) {
  const complaints = []
  const at = path => path.split('/').reduce((value, key) => value?.[key], results)

  // What text says, and how large its last digit is.
  function read (text) {
    const match = /^[−-]?[\d,]+(\.\d+)?(e([−-]?\d+))?/.exec(text.trim())
    if (!match) return null
    const plain = match[0].replaceAll(',', '').replaceAll('−', '-')
    const decimals = match[1] ? match[1].length - 1 : 0
    const digits = plain.split('e')[0].replace('-', '').replace('.', '').replace(/^0+/, '').length
    return { value: Number(plain), last: 10 ** (Number((match[3] ?? '0').replace('−', '-')) - decimals), digits, rest: text.trim().slice(match[0].length).trim() }
  }

  const seen = new Set()
  for (const element of document.querySelectorAll('[data-at]')) {
    const under = element.closest('[data-under]')?.dataset.under
    const text = element.textContent
    for (const own of element.dataset.at.split(' ')) {
      const path = `${under}/${own}`
      const expected = at(path)
      if (typeof expected !== 'number') { complaints.push(`number at ${path} is not in results.json`); continue }
      if (Number(element.dataset.value) !== expected) complaints.push(`number at ${path} is ${element.dataset.value}, not ${expected}`)
      const shown = read(text)
      if (shown === null) { complaints.push(`text at ${path} is no number: ${text}`); continue }
      const exact = shown.value === expected
      const rounded = shown.digits >= 3 && Math.abs(shown.value - expected) <= shown.last * 0.5000001
      if (!exact && !rounded) complaints.push(`text at ${path} is ${text}, not ${expected}`)
      const unit = element.dataset.unit
      const stated = unit === undefined || [unit, unit || '×', unit.replace(/s$/, ''), unit.replace(/sses$/, 'ss')].includes(shown.rest)
      if (!stated) complaints.push(`unit at ${path} is ${shown.rest}, not ${unit}`)
      seen.add(path)
    }
  }

  const walk = (value, path) => {
    if (typeof value === 'number' && !seen.has(path)) complaints.push(`number at ${path} is not on the page: ${value}`)
    if (value !== null && typeof value === 'object') {
      for (const [key, inner] of Object.entries(value)) walk(inner, path ? `${path}/${key}` : key)
    }
  }
  walk(results, '')

  // A number in a table that says nothing of where it is from is made up.
  for (const cell of document.querySelectorAll('td.number')) {
    if (cell.dataset.at === undefined && /\d/.test(cell.textContent) && !cell.querySelector('[data-at]') && !isText(cell)) {
      complaints.push(`number from nowhere: ${cell.textContent}`)
    }
  }
  function isText (cell) {
    const under = cell.closest('[data-under]')?.dataset.under
    const row = cell.parentElement
    const found = at(`${under}/rows/${[...row.parentElement.children].indexOf(row)}/${[...row.children].indexOf(cell)}`)
    return typeof found === 'string' && found === cell.textContent
  }

  // Whether a goal is met is decided here once more.
  for (const row of document.querySelectorAll('[data-under]')) {
    const figure = at(row.dataset.under)
    const judged = row.querySelector('.judged')
    if (!figure?.says || !judged) continue
    const { value, bound } = figure
    const met = bound === null || ((bound.at_least ?? -Infinity) <= value && value <= (bound.at_most ?? Infinity))
    const said = bound === null ? 'no bound' : met ? 'met' : 'missed'
    if (!judged.textContent.includes(said)) complaints.push(`verdict on ${figure.id} is ${judged.textContent}, not ${said}`)
  }
  return complaints
}
