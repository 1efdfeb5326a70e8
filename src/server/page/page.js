'use strict';
// el('td', 'num', 3): an element with a class and children. Text is never read as HTML.
function el(tag, style, ...children) {
  const made = document.createElement(tag);
  if (style) made.className = style;
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) made.append(child);
  }
  return made;
}
// Makes `old` equal to `next` and keeps the nodes that both have, so that selections, scrolling and
// open <details> survive a refresh.
function morph(old, next) {
  for (const {name} of [...old.attributes]) {
    if (name !== 'open' && !next.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const {name, value} of next.attributes) {
    if (name !== 'open' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const fresh = [...next.childNodes];
  while (old.childNodes.length > fresh.length) old.lastChild.remove();
  fresh.forEach((node, at) => {
    const known = old.childNodes[at];
    if (!known) old.append(node);
    else if (known.nodeName !== node.nodeName) known.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) {
      if (known.data !== node.data) known.data = node.data;
    } else morph(known, node);
  });
}
const count = n => n.toLocaleString('en');
const bytes = n => n < 1000 ? n + ' B' : n < 1e6 ? (n / 1e3).toFixed(1) + ' kB'
  : (n / 1e6).toFixed(1) + ' MB';
const seconds = s => s < 1e-3 ? Math.round(s * 1e6) + ' µs' : s < 1 ? (s * 1e3).toPrecision(2) * 1 + ' ms'
  : s < 120 ? s.toFixed(1) + ' s' : s < 7200 ? Math.round(s / 60) + ' min' : Math.round(s / 3600) + ' h';
// A page defines view(data, before): the new children of <main>. Nothing is asked while it is hidden.
let last = null, answered = Date.now();
async function refresh() {
  if (!document.hidden) {
    const state = document.getElementById('state'), main = document.querySelector('main');
    try {
      const answer = await fetch(location.href, {headers: {accept: 'application/json'}});
      if (!answer.ok) throw Error('HTTP ' + answer.status);
      const data = await answer.json(), next = el('main');
      next.append(...[view(data, last)].flat().filter(Boolean));
      morph(main, next);
      last = data;
      answered = Date.now();
      state.className = '';
      state.textContent = new Date().toLocaleTimeString('en-GB') + ', refreshed every second';
    } catch (error) {
      state.className = 'bad';
      state.textContent = 'no answer for ' + seconds((Date.now() - answered) / 1e3) + ': '
        + error.message;
    }
  }
  setTimeout(refresh, 1000);
}
document.addEventListener('DOMContentLoaded', refresh);
