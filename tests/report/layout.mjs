// Runs within the page: does it fit, can it be read, do its links lead
// somewhere? Returns complaints.
export function inspectLayout (scheme) {
  const complaints = []
  const LEAST_CONTRAST = 4.5
  const LEAST_SIZE = 11

  const { scrollWidth, clientWidth } = document.documentElement
  if (scrollWidth > clientWidth) complaints.push(`page is ${scrollWidth} px wide in a window of ${clientWidth} px`)

  const brief = element => `${element.tagName} ${element.getAttribute('class') ?? ''} "${element.textContent.trim().slice(0, 40)}"`

  const texts = [...document.body.querySelectorAll('*')].filter(element => {
    if (element.closest('defs, style, title, use')) return false
    const has = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.textContent.trim() !== '')
    return has && element.checkVisibility()
  })

  // Beyond the page, unless it is in a box that can be moved.
  for (const element of texts) {
    const box = element.getBoundingClientRect()
    if (!element.closest('.box') && box.right > clientWidth + 0.5) complaints.push(`text leaves the page: ${brief(element)}`)
    if (parseFloat(getComputedStyle(element).fontSize) < LEAST_SIZE) complaints.push(`text is small: ${brief(element)}`)
    const matrix = element.getScreenCTM?.()
    if (matrix && (Math.abs(matrix.a - 1) > 0.01 || Math.abs(matrix.d - 1) > 0.01)) complaints.push(`text is scaled: ${brief(element)}`)
  }

  for (const drawing of document.querySelectorAll('.plot, .track')) {
    const labels = [...drawing.querySelectorAll('text')].filter(text => text.checkVisibility())
    const boxes = labels.map(text => text.getBoundingClientRect())
    boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b, m) => {
      const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 1 || b.bottom <= a.top + 1
      if (!apart) complaints.push(`labels cover each other: ${labels[n].textContent} and ${labels[n + 1 + m].textContent}`)
    }))
  }

  const parse = colour => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number)
    return { rgb: [r, g, b], a }
  }
  const over = (top, below) => top.rgb.map((value, n) => value * top.a + below[n] * (1 - top.a))
  function background (element) {
    const layers = []
    for (let around = element; around; around = around.parentElement) layers.push(parse(getComputedStyle(around).backgroundColor))
    const canvas = scheme === 'dark' ? [18, 18, 18] : [255, 255, 255]
    return layers.reduceRight((below, layer) => over(layer, below), canvas)
  }
  const luminance = rgb => {
    const [r, g, b] = rgb.map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b)
    return (high + 0.05) / (low + 0.05)
  }
  for (const element of texts) {
    const style = getComputedStyle(element)
    const below = background(element)
    const colour = parse(element instanceof SVGElement ? style.fill : style.color)
    const found = contrast(over(colour, below), below)
    if (!(found >= LEAST_CONTRAST)) complaints.push(`contrast is ${found.toFixed(2)}: ${brief(element)}`)
  }
  const paper = luminance(background(document.body))
  if ((paper < 0.2) !== (scheme === 'dark')) complaints.push('page does not follow the colour scheme')

  const known = new Set()
  for (const { id } of document.querySelectorAll('[id]')) {
    if (known.has(id)) complaints.push(`two elements are called ${id}`)
    known.add(id)
  }
  for (const link of document.querySelectorAll('[href]')) {
    const target = decodeURIComponent(link.getAttribute('href'))
    if (!target.startsWith('#') || !known.has(target.slice(1))) complaints.push(`link leads nowhere: ${target}`)
  }
  if (document.querySelector('script')) complaints.push('page has a script')
  return complaints
}
