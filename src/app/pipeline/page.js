const short = name => name.replace(/-controller$/, '');
const kindOf = i => i.kind + (i.metadataOnly ? ' (metadata)' : '');
const sum = (list, of) => list.reduce((all, one) => all + of(one), 0);
const total = w => w.create + w.update + w.patch + w.delete + w.events;
const rate = n => n < 10 ? (Math.round(n * 10) / 10) + '/s' : count(Math.round(n)) + '/s';
const plural = (n, one) => count(n) + ' ' + one + (n === 1 ? '' : 's');

function view(data, before) {
  const passed = before ? data.uptimeSeconds - before.uptimeSeconds : 0;
  const per = (now, then) => passed > 0 && then !== undefined ? Math.max(0, now - then) / passed : 0;
  const {informers, controllers} = data, queues = controllers.flatMap(c => c.queues);
  const old = {
    informers: new Map((before?.informers ?? []).map(i => [i.scope, i])),
    controllers: new Map((before?.controllers ?? []).map(c => [c.name, c])),
  };
  const all = before ? {
    received: sum(before.informers, i => i.received),
    syncs: sum(before.controllers.flatMap(c => c.queues), q => q.syncs),
    writes: sum(accounts(before), total),
  } : {};
  const received = per(sum(informers, i => i.received), all.received);
  const syncs = per(sum(queues, q => q.syncs), all.syncs);
  const writes = sum(accounts(data), total), failed = sum(accounts(data), w => w.failed);
  const watching = informers.filter(i => i.phase === 'watching').length;
  const step = (name, value, ...notes) =>
    el('li', '', el('small', '', name), el('b', '', value), ...notes.map(n => n && el('small', '', n)));
  const path = el('ol', 'path',
    step('watches', count(watching), rate(received) + ' objects', watching < informers.length
      && plural(informers.length - watching, 'informer') + ' not watching'),
    step('DeltaFifo', count(sum(informers, i => i.queued)), 'keys wait'),
    step('caches', count(sum(informers, i => i.objects)), bytes(sum(informers, i => i.bytes)) + ' held'),
    step('handlers', count(sum(informers.flatMap(i => i.handlers), h => h.backlog)), 'events wait'),
    step('queues', count(sum(queues, q => q.depth)), count(sum(queues, q => q.delayed)) + ' delayed'),
    step('syncs', count(sum(queues, q => q.inProgress)), rate(syncs)),
    step('writes', count(writes), rate(per(writes, all.writes)), failed > 0 && count(failed) + ' failed'));
  const only = document.getElementById('busy')?.checked;
  const idle = row => row.classList.contains('idle');
  const rows = controllers.map(c => controller(c, informers, old.controllers.get(c.name), per))
    .filter(row => !only || !idle(row)).sort((a, b) => idle(a) - idle(b));
  const toggle = el('input');
  toggle.type = 'checkbox';
  toggle.id = 'busy';
  toggle.onchange = () => morphNow();
  return [
    el('p', 'state', [data.leading ? 'leading' : 'standing by: no controller runs here',
      'up ' + seconds(data.uptimeSeconds), bytes(data.residentBytes) + ' resident',
      passed > 0 && (100 * per(data.cpuSeconds, before.cpuSeconds)).toFixed(0) + ' % of a CPU']
      .filter(Boolean).join(' · ')),
    el('div', 'card', path),
    el('div', 'tools', el('h2', '', 'Informers → queues → syncs → writes'),
      el('label', '', toggle, ' busy ones only')),
    el('div', 'card list', ...rows),
    el('h2', '', 'Informers'),
    el('div', 'card list', table(informers, old.informers, per)),
    el('p', 'note', data.bytesCount + ' Writes are counted by service account; controllers that '
      + 'share one show the same numbers. A sync’s time includes its requests.'),
  ];
}
function morphNow() {
  if (!last) return;
  const next = el('main', '', ...view(last, null));
  morph(document.querySelector('main'), next);
}
// The writes of each service account once.
function accounts(data) {
  return [...new Map(data.controllers.map(c => [c.account, c.writes])).values()];
}
function controller(c, informers, old, per) {
  const sources = informers.flatMap(i => i.handlers.filter(h => h.name === c.name)
    .map(h => ({name: kindOf(i), backlog: h.backlog})));
  const merged = [...new Map(sources.map(s => [s.name, s])).values()];
  // Those with a backlog come first; a controller of every kind has dozens.
  merged.sort((a, b) => b.backlog - a.backlog);
  const more = merged.length > 8 ? merged.splice(6).length : 0;
  const chips = merged.map(s => el('span', s.backlog ? 'chip warn' : 'chip',
    s.name + (s.backlog ? ' ' + count(s.backlog) : '')));
  const syncs = sum(c.queues, q => q.syncs), depth = sum(c.queues, q => q.depth);
  const working = sum(c.queues, q => q.inProgress), spent = sum(c.queues, q => q.seconds);
  const oldSyncs = old && sum(old.queues, q => q.syncs), oldSpent = old && sum(old.queues, q => q.seconds);
  const recent = old && syncs > oldSyncs ? (spent - oldSpent) / (syncs - oldSyncs) : null;
  const wrote = per(total(c.writes), old && total(old.writes));
  const delayed = sum(c.queues, q => q.delayed), timers = sum(c.queues, q => q.timers);
  const errors = c.queues.filter(q => q.lastError).sort((a, b) => a.lastError.secondsAgo - b.lastError.secondsAgo);
  const oldest = pick(c.queues, 'oldest'), longest = pick(c.queues, 'longest');
  const busy = depth + working > 0 || recent !== null || (errors[0]?.lastError.secondsAgo < 60);
  const bar = depth > 0 && el('span', 'bar', el('i'));
  if (bar) bar.firstChild.setAttribute('style', 'width:' + Math.min(100, 8 + 20 * Math.log10(depth)) + '%');
  const verbs = ['create', 'update', 'patch', 'delete', 'events'].filter(v => c.writes[v])
    .map(v => v + ' ' + count(c.writes[v])).join(', ');
  const slots = c.queues.length === 1 && c.workers <= 10
    ? '●'.repeat(Math.min(working, c.workers)) + '○'.repeat(Math.max(0, c.workers - working))
    : working + ' in flight';
  return el('div', busy ? 'flow' : 'flow idle',
    el('div', 'name', short(c.name), !c.running && el('span', 'warn', '  waits for its caches')),
    el('div', '', ...(chips.length ? chips : [el('span', 'dim', 'no handler')]),
      more > 0 && el('span', 'label', 'and ' + more + ' more')),
    c.queues.length ? el('div', '', plural(depth, 'key') + (delayed ? ', ' + count(delayed) + ' delayed' : '')
      + (timers ? ', ' + plural(timers, 'timer') : ''), bar,
    oldest && el('span', 'label wrap', oldest.key + ' waits ' + seconds(oldest.seconds)))
      : el('div', 'dim', 'no queue'),
    el('div', '', c.queues.length ? el('span', working ? 'slots' : 'slots off', slots)
      : el('span', 'dim', 'no queue'),
      recent !== null && ' ' + rate(per(syncs, oldSyncs)),
      syncs > 0 && el('span', 'label', plural(syncs, 'sync') + ', '
        + seconds(recent ?? spent / syncs) + (recent !== null ? ' now' : ' on average')),
      longest && longest.seconds > 1 && el('span', 'label warn wrap', longest.key + ' runs for ' + seconds(longest.seconds))),
    el('div', '', verbs || el('span', 'dim', 'none'), wrote > 0 && ' · ' + rate(wrote),
      c.writes.failed > 0 && el('span', 'label warn', count(c.writes.failed) + ' failed')),
    ...errors.slice(0, 1).map(({lastError: e}) => el('div', e.secondsAgo < 60 ? 'error bad wrap' : 'error dim wrap',
      seconds(e.secondsAgo) + ' ago, ' + e.key + ': ' + e.error)));
}
function pick(queues, field) {
  const found = queues.map(q => q[field]).filter(Boolean);
  return found.sort((a, b) => b.seconds - a.seconds)[0];
}
function table(informers, old, per) {
  const cell = (label, style, ...content) => {
    const made = el('td', style, ...content);
    made.dataset.l = label;
    return made;
  };
  const rows = [...informers].sort((a, b) => b.objects - a.objects || a.scope.localeCompare(b.scope)).map(i => {
    const watching = i.phase === 'watching', backlog = sum(i.handlers, h => h.backlog);
    const name = el('td', 'wrap', i.scope);
    return el('tr', '', name,
      cell('objects', 'num', count(i.objects)),
      cell('held', 'num', bytes(i.bytes)),
      cell('received', 'num', rate(per(i.received, old.get(i.scope)?.received))),
      cell('', watching ? 'good' : 'warn', i.phase + ' ' + seconds(i.phaseSeconds)),
      cell('lists', 'num', i.lists), cell('watches', 'num', i.watches),
      cell('version', 'num', i.resourceVersion),
      cell('queued', 'num', count(i.queued)),
      cell('handlers', backlog ? 'num warn' : 'num', i.handlers.length + (backlog ? ', ' + count(backlog) + ' wait' : '')));
  });
  const heads = ['resource', 'objects', 'held', 'received', 'phase', 'lists', 'watches', 'version', 'queued', 'handlers'];
  return el('table', 'inf',
    el('thead', '', el('tr', '', ...heads.map((h, at) => el('th', at && at !== 4 ? 'num' : '', h)))),
    el('tbody', '', ...rows));
}
