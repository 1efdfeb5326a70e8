function lines(item) {
  return item.changes.map(change => el('div', 'wrap', el('code', '', change.path + ': '
    + brief(change.old) + ' → ' + brief(change.new))));
}
function brief(value) {
  const text = value === null ? '–' : JSON.stringify(value);
  return text.length > 120 ? text.slice(0, 120) + '…' : text;
}
function place(item) {
  const resource = item.resource + (item.subresource ? '/' + item.subresource : '');
  return resource + ' ' + [item.namespace, item.name].filter(Boolean).join('/');
}
function rows(title, style, items, cells) {
  if (!items.length) return [];
  return [el('h2', style, title + ' (' + count(items.length) + ')'),
    el('div', 'card scroll', el('table', '', ...items.map(item =>
      el('tr', '', ...cells(item).map(cell => el('td', '', cell))))))];
}
const wish = item => [item.controller, item.verb + ' ' + place(item),
  item.wantedForSeconds + ' s', lines(item)];
const write = item => [item.verb + ' ' + place(item), '× ' + count(item.times),
  el('code', '', item.fields.slice(0, 12).join(', '))];
function view(report) {
  const states = ['expected', 'met', 'dropped', 'pending', 'outstanding', 'contradicted'];
  const clean = !report.outstanding.length && !report.contradicted.length
    && !report.unexpectedWrites;
  const bad = state => state === 'outstanding' || state === 'contradicted';
  return [
    el('p', '', el('b', clean ? 'good' : 'bad', clean ? 'Clean so far' : 'Not clean'),
      ' after ' + seconds(report.seconds) + ', grace period ' + seconds(report.graceSeconds)
      + '. Writes of the manager in charge: ' + count(report.expectedWrites) + ' expected, '
      + count(report.unexpectedWrites) + ' unexpected, ' + count(report.undecidedWrites)
      + ' undecided.'),
    ...rows('Outstanding', 'bad', report.outstanding, wish),
    ...rows('Contradicted', 'bad', report.contradicted, wish),
    ...rows('Unexpected', 'bad', report.unexpected, write),
    el('h2', '', 'By controller'),
    el('div', 'card scroll', el('table', '',
      el('tr', '', el('th', '', 'controller'), ...states.map(state => el('th', 'num', state))),
      ...report.controllers.map(row => el('tr', '', el('td', '', row.controller),
        ...states.map(state =>
          el('td', row[state] && bad(state) ? 'num bad' : 'num', count(row[state]))))))),
    ...rows('Refused to the manager in charge', '', report.refused, wish),
    ...rows('Pending', '', report.pending, wish),
    ...rows('Met lately', '', report.met, wish),
  ];
}
