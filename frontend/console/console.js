// The console: a chat and a view of the server, in one page without dependencies. Everything a model or a server said is put in as text,
// never as markup. Uncaught errors are counted in data-errors of the document, which the test reads.
'use strict';

const $ = (id) => document.getElementById(id);
const state = {history: [], tools: [], controller: null, model: '', key: '', tokens: [], rates: [], admin: true, generation: 0, restarts: null, pinned: true};
try { state.key = sessionStorage.getItem('holdfast-key') || ''; } catch (e) { /* storage may be off: the key is asked for again */ }

function countError(what) {
  const root = document.documentElement;
  root.dataset.errors = String(Number(root.dataset.errors || 0) + 1);
  root.dataset.lastError = String(what).slice(0, 300);
}
window.addEventListener('error', (e) => countError(e.message));
window.addEventListener('unhandledrejection', (e) => countError(e.reason));
document.documentElement.dataset.errors = '0';

function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- talking to the server ----------------------------------------------------------------------------------------
function headers(extra) {
  const all = Object.assign({}, extra);
  if (state.key) all.Authorization = 'Bearer ' + state.key;
  return all;
}

// fetch, with the key. A refusal of a key that was replaced in the meantime is old news.
async function fetchWithKey(path, options) {
  const key = state.key;
  const reply = await fetch(path, options);
  if (reply.status === 401 && key === state.key) askForKey();
  return reply;
}

function get(path) {
  return fetchWithKey(path, {headers: headers({Accept: 'application/json'}), cache: 'no-store'});
}

let keyAsked = false;
function askForKey() {
  if (keyAsked) return;
  keyAsked = true;
  $('key-dialog').showModal();
}
$('key-form').addEventListener('submit', () => {
  state.key = $('key').value.trim();
  try { sessionStorage.setItem('holdfast-key', state.key); } catch (e) { /* kept for this page only */ }
  keyAsked = false;
  refresh();
});

// ---- the demo's tools: results are made up from the arguments, as demo_tools.h says -----------------------------------
function hash(text) {
  let h = 2166136261;
  for (const byte of new TextEncoder().encode(text)) {
    h ^= byte;
    h = Math.imul(h, 16777619) >>> 0;
  }
  return h;
}

function stubResult(tool, args) {
  const seed = tool.function.name + JSON.stringify(args);
  const result = {};
  for (const [name, rule] of Object.entries(tool.stub)) {
    const h = hash(seed + '/' + name);
    if (rule.value !== undefined) result[name] = rule.value;
    else if (rule.choice) result[name] = rule.choice[h % rule.choice.length];
    else result[name] = rule.range[0] + (h % (rule.range[1] - rule.range[0] + 1));
  }
  return result;
}

function answerCall(call) {
  const tool = state.tools.find((t) => t.function.name === call.function.name);
  if (!tool) return {error: 'there is no tool ' + call.function.name};
  let args;
  try { args = JSON.parse(call.function.arguments); } catch (e) { args = null; }
  if (args === null || typeof args !== 'object' || Array.isArray(args)) return {error: 'the arguments are no JSON object'};
  return stubResult(tool, args);
}

// ---- the chat ------------------------------------------------------------------------------------------------------
function addTurn(who, text) {
  const turn = el('div', 'turn ' + who);
  turn.append(el('div', 'who', who));
  const body = el('div', 'text', text || '');
  turn.append(body);
  $('log').append(turn);
  scroll();
  return {turn, body};
}

// The log follows what comes, unless its reader scrolled back.
function scroll() {
  if (state.pinned) $('log').scrollTop = $('log').scrollHeight;
}
$('log').addEventListener('scroll', () => {
  const log = $('log');
  state.pinned = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
});

// Text is put into the page once a frame: a fast model sends more pieces than a page can be laid out for.
const unwritten = new Map();
function write(node, text) {
  if (!unwritten.size) requestAnimationFrame(writeAll);
  unwritten.set(node, (unwritten.get(node) || '') + text);
}
function writeAll() {
  for (const [node, text] of unwritten) node.append(text);
  unwritten.clear();
  scroll();
}

async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    pending += value;
    for (let end = pending.indexOf('\n\n'); end >= 0; end = pending.indexOf('\n\n')) {
      const lines = pending.slice(0, end).split('\n').filter((l) => l.startsWith('data:')).map((l) => l.slice(5).trimStart());
      pending = pending.slice(end + 2);
      if (lines.length) yield lines.join('\n');
    }
  }
}

// One request: streams an assistant message into the log and returns it.
async function complete(view) {
  const body = {messages: state.history, stream: true, stream_options: {include_usage: true}, temperature: Number($('temperature').value) || 0,
    max_tokens: Math.max(1, Number($('max-tokens').value) || 256)};
  if (state.model) body.model = state.model;
  const offered = $('use-tools').checked ? state.tools.filter((t) => t.offered) : [];
  if (offered.length) body.tools = offered.map(({type, function: f}) => ({type, function: f}));
  const reply = await fetchWithKey('v1/chat/completions', {method: 'POST', headers: headers({'Content-Type': 'application/json'}), body: JSON.stringify(body),
    signal: state.controller.signal});
  if (!reply.ok) {
    const text = await reply.text();
    let message = text;
    try { message = JSON.parse(text).error.message; } catch (e) { /* no JSON: the text itself */ }
    throw new Error(reply.status + ': ' + message);
  }
  const message = {role: 'assistant', content: ''};
  const calls = [];
  let thought = null, finish = null;
  for await (const data of events(reply)) {
    if (data === '[DONE]') break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message || 'the stream broke off');
    const choice = chunk.choices && chunk.choices[0];
    if (!choice) continue;
    const delta = choice.delta || {};
    if (delta.reasoning_content || delta.content || delta.tool_calls || choice.finish_reason) view.turn.classList.remove('waiting');
    if (delta.reasoning_content) {
      if (!thought) view.turn.insertBefore(thought = el('div', 'thought'), view.body);
      write(thought, delta.reasoning_content);
    }
    if (delta.content) {
      message.content += delta.content;
      write(view.body, delta.content);
    }
    for (const part of delta.tool_calls || []) {
      let call = calls[part.index];
      if (!call) {
        call = calls[part.index] = {id: part.id || '', type: 'function', function: {name: '', arguments: ''}};
        call.view = el('div', 'call');
        call.view.append(el('b'), ' ', el('span'));
        view.turn.append(call.view);
      }
      if (part.id) call.id = part.id;
      if (part.function && part.function.name) {
        call.function.name += part.function.name;
        write(call.view.children[0], part.function.name);
      }
      if (part.function && part.function.arguments) {
        call.function.arguments += part.function.arguments;
        write(call.view.children[1], part.function.arguments);
      }
    }
    if (choice.finish_reason) finish = choice.finish_reason;
  }
  writeAll();
  if (finish === null) throw new Error('the stream ended without a finish');
  if (finish === 'length') view.turn.append(el('div', 'note', 'cut off at max tokens'));
  return {message, calls: finish === 'tool_calls' ? calls.filter(Boolean) : []};
}

const MOST_ROUNDS = 8;

async function ask(text) {
  const before = state.history.length;
  state.history.push({role: 'user', content: text});
  state.pinned = true;
  addTurn('user', text);
  const controller = state.controller = new AbortController();
  setBusy(true);
  let view = null;
  try {
    for (let rounds = 0; ; rounds++) {
      if (rounds === MOST_ROUNDS) throw new Error(MOST_ROUNDS + ' answers were calls: that is enough, and no answer');
      view = state.view = addTurn('assistant');
      view.turn.classList.add('waiting');
      const {message, calls} = await complete(view);
      if (calls.length) message.tool_calls = calls.map(({id, type, function: f}) => ({id, type, function: f}));
      state.history.push(message);
      if (!calls.length) break;
      for (const call of calls) {
        const result = JSON.stringify(answerCall(call));
        call.view.append(el('span', 'result', '→ ' + result));
        state.history.push({role: 'tool', tool_call_id: call.id, content: result});
      }
      scroll();
    }
  } catch (error) {
    const stopped = error.name === 'AbortError';
    if (view) {
      view.turn.classList.remove('waiting');
      view.turn.append(el('div', stopped ? 'note' : 'error', stopped ? 'stopped' : error.message));
    }
    writeAll();
    // What was not answered is no part of the conversation. (A reset has begun another one.)
    if (state.controller === controller) state.history.length = before;
    if (!stopped && !$('prompt').value) $('prompt').value = text;
  } finally {
    if (state.controller === controller) {
      state.controller = state.view = null;
      setBusy(false);
    }
  }
}

function setBusy(busy) {
  $('send').disabled = busy;
  $('stop').disabled = !busy;
  if (!busy) $('prompt').focus();
}

$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('prompt').value.trim();
  if (!text || state.controller) return;
  $('prompt').value = '';
  ask(text);
});
$('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $('ask').requestSubmit();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && state.controller) state.controller.abort();
});
$('stop').addEventListener('click', () => state.controller && state.controller.abort());
$('reset').addEventListener('click', () => {
  if (state.controller) state.controller.abort();
  state.controller = state.view = null;
  state.history = [];
  $('log').replaceChildren();
  setBusy(false);
});

// ---- the server ----------------------------------------------------------------------------------------------------
function showHealth(lamp, text) {
  document.querySelector('.lamp').className = 'lamp ' + lamp;
  if ($('health-text').textContent !== text) $('health-text').textContent = text;
}

async function refreshHealth() {
  const away = (yes) => document.querySelector('aside').classList.toggle('away', yes);
  try {
    const reply = await get('health');
    away(false);
    const body = await reply.json();
    const generation = body.generation ? ', generation ' + body.generation : '';
    if (reply.ok) showHealth('good', 'serving' + generation);
    else if (body.permanent) showHealth('bad', (body.error && body.error.message) || 'not serving');
    else showHealth('wait', (body.state || 'not ready') + generation + (body.error ? ': ' + body.error.message : ''));
    if (body.restarts !== undefined) noteRestarts(body.restarts, body.generation);
    if (body.running !== undefined) $('running').textContent = body.running;
    if (body.waiting !== undefined) $('queued').textContent = body.waiting;
  } catch (e) {
    showHealth('bad', 'the server does not answer');
    away(true);
    $('tps').textContent = '–';
  }
}

// An answer that is under way goes on behind a lost engine: worth a line where it happens.
function noteRestarts(restarts, generation) {
  $('restarts').textContent = restarts;
  if (state.restarts !== null && restarts > state.restarts) {
    round = 0;  // look at the incidents now
    if (state.view) state.view.turn.append(el('div', 'note', 'the engine was lost meanwhile; generation ' + generation + ' takes this answer on'));
  }
  state.restarts = restarts;
}

async function refreshModel() {
  const reply = await get('v1/models');
  if (!reply.ok) return;
  const body = await reply.json();
  if (!body.data || !body.data.length) return;
  state.model = body.data[0].id;
  const can = body.data[0].capabilities || [];
  $('use-tools').checked = can.includes('tools');
  $('no-tools').hidden = can.includes('tools');
  $('model').textContent = state.model;
}

function sum(text, name) {
  let total = 0, found = false;
  for (const line of text.split('\n')) {
    if (!line.startsWith(name) || (line[name.length] !== ' ' && line[name.length] !== '{')) continue;
    total += Number(line.slice(line.lastIndexOf(' ') + 1)) || 0;
    found = true;
  }
  return found ? total : null;
}

function showPool(pool) {
  const box = el('div', 'pool');
  const name = el('div', 'name');
  name.append(el('span', '', pool.window ? 'window of ' + pool.window + ' tokens' : pool.name + ' attention'), el('span', 'quiet', pool.held + ' held, ' + pool.evictable + ' cached of ' + pool.capacity));
  const bar = el('div', 'bar');
  bar.setAttribute('role', 'img');
  bar.setAttribute('aria-label', pool.name + ': ' + ['held', 'evictable', 'retiring', 'quarantined', 'free'].map((k) => k + ' ' + pool[k]).join(', ') + ' of ' + pool.capacity + ' pages');
  for (const kind of ['held', 'evictable', 'retiring', 'quarantined']) {
    const part = el('i', kind);
    part.style.width = (pool.capacity ? 100 * pool[kind] / pool.capacity : 0) + '%';
    bar.append(part);
  }
  box.append(name, bar);
  return box;
}

async function refreshServer() {
  if (!state.admin) return;
  const [status, metrics, requests] = await Promise.all([get('v1/cache/status'), get('metrics'), get('v1/requests')]);
  state.admin = status.status !== 404;
  $('admin-note').hidden = state.admin;
  if (!state.admin) return;
  if (status.ok) {
    const body = await status.json();
    $('pools').replaceChildren(...body.pools.map(showPool));
    $('hits').textContent = (100 * body.cache.hit_rate).toFixed(1) + ' %';
    $('findings').textContent = body.findings.reduce((n, f) => n + Number(f.count), 0);
    $('queued').textContent = Math.max(body.waiting, body.queue_depth);
  }
  if (metrics.ok) {
    const total = sum(await metrics.text(), 'holdfast_generated_tokens_total');
    const now = performance.now();
    if (total !== null) {
      state.tokens.push([now, total]);
      if (state.tokens.length > 4) state.tokens.shift();
      const [then, before] = state.tokens[0];
      // A counter that fell belongs to a new process.
      if (total < before) state.tokens = [[now, total]];
      else if (now > then) state.rates.push(1000 * (total - before) / (now - then));
      if (state.rates.length > 120) state.rates.shift();
      drawRates();
    }
  }
  if (requests.ok) {
    const body = await requests.json();
    $('requests').replaceChildren(...body.data.slice(0, 20).map((r) => {
      const item = el('li');
      item.append(el('b', '', r.state), el('span', '', ' ' + r.generated_tokens + ' tokens, prompt of ' + r.prompt_tokens + ' (' + r.cached_tokens + ' cached), ' + (r.age_ms / 1000).toFixed(1) + ' s'));
      return item;
    }));
  }
}

function drawRates() {
  const rates = state.rates;
  if (!rates.length) return;
  $('tps').textContent = rates[rates.length - 1].toFixed(0);
  const most = Math.max(...rates), top = Math.max(1, most);
  $('spark-top').textContent = most >= 0.5 ? 'up to ' + most.toFixed(0) + ' tokens/s in the last two minutes' : 'no tokens in the last two minutes';
  const points = rates.map((r, i) => (240 - 2 * (rates.length - 1 - i)) + ',' + (39 - 37 * r / top).toFixed(1));
  document.querySelector('#spark polyline').setAttribute('points', points.join(' '));
}

async function refreshIncidents() {
  if (!state.admin) return;
  const reply = await get('v1/incidents');
  if (!reply.ok) return;
  const body = await reply.json();
  $('incidents').replaceChildren(...body.data.slice(0, 20).map((i) => {
    const item = el('li');
    item.append(el('b', '', i.detail && i.detail.startsWith(i.cause) && i.detail.length < 20 ? i.detail : i.cause), el('span', '', ' ' + new Date(i.unix_ms).toLocaleTimeString() + ', rank ' + i.rank + ', generation ' + i.generation + ', while ' + i.phase));
    item.title = i.detail + '\n' + i.path;
    return item;
  }));
}

async function refreshTools() {
  const reply = await get('console-tools.json');
  if (!reply.ok) return;
  state.tools = await reply.json();
  $('tool-list').replaceChildren(...state.tools.map((tool) => {
    const item = el('li'), label = el('label'), box = el('input');
    box.type = 'checkbox';
    box.checked = tool.offered;
    box.addEventListener('change', () => { tool.offered = box.checked; showExamples(); });
    label.append(box, el('b', '', tool.function.name), el('span', 'quiet', ' ' + tool.function.description));
    item.append(label);
    return item;
  }));
  showExamples();
}

// Something to begin with: a question for each tool that is offered.
function showExamples() {
  const asks = $('use-tools').checked ? state.tools.filter((t) => t.offered).map((t) => t.examples[0]) : ['Explain photosynthesis in one sentence.'];
  $('examples').replaceChildren(...asks.map((text) => {
    const button = el('button', 'example', text);
    button.type = 'button';
    button.addEventListener('click', () => { if (!state.controller) ask(text); });
    return button;
  }));
}
$('use-tools').addEventListener('change', showExamples);

// A server that is away makes fetch fail: the lamp says so, and the next round tries again.
async function quietly(work) {
  try { await work(); } catch (e) { if (!(e instanceof TypeError)) throw e; }
}

let round = 0;
async function refresh() {
  if (document.hidden) return;
  await refreshHealth();
  if (!state.model) await quietly(refreshModel);
  if (!state.tools.length) await quietly(refreshTools);
  await quietly(refreshServer);
  if (round++ % 5 === 0) await quietly(refreshIncidents);
}
async function loop() {
  await refresh();
  document.documentElement.dataset.rounds = String(round);
  setTimeout(loop, 1000);
}
loop();
$('prompt').focus();
