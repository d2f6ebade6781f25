// The console's page: polls the status of the cluster from the node that serves it, once a second, and shows it.
//
// Data from the response is inserted as text (textContent) or as numbers, never as markup. Rows are updated in place,
// so that the layout is stable, selections survive, and screen readers do not repeat unchanged text.

const POLL_MS = 1000;
// Timeout of a status request.
const RESPONSE_MS = 3000;
// Samples retained by a node and plotted for the whole cluster: three minutes.
const SAMPLES_MAX = 180;
// Samples of a cohort retained by the page: two minutes.
const COHORT_SAMPLES_MAX = 120;
// Characters shown of a key, which may have thousands.
const KEY_SHOWN_MAX = 32;

const at = (id) => document.getElementById(id);
const numbers = [0, 1].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Time and content of the last response. */
let seen = null;
/** Rates of each cohort since the page was opened, by cohort number. */
const histories = new Map();
/** Whether each node that responded since the page was opened has a ZooKeeper endpoint. */
const hasZooKeeper = new Map();

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function mark(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}

function rate(value) {
  if (typeof value !== "number") return "–";
  return numbers[value < 10 ? 1 : 0].format(value);
}

function bytes(value) {
  return typeof value === "number" ? `${numbers[0].format(value / (1 << 20))} MiB` : "–";
}

function clockError(clock) {
  if (!clock) return "–";
  if (clock.outlier) return "outlier";
  if (clock.uncertainty_ns === null) return "no bound";
  const microseconds = Math.ceil(clock.uncertainty_ns / 1000);
  return microseconds < 1000 ? `±${microseconds} µs` : `±${numbers[1].format(microseconds / 1000)} ms`;
}

function plural(count, one, many) {
  return `${numbers[0].format(count)} ${count === 1 ? one : many}`;
}

/** Plots samples as a line over an area, the newest at the right, in a box with a fixed number of samples. */
function draw(svg, samples, room) {
  const most = Math.max(1, ...samples);
  const first = room - samples.length;
  const points = samples.map((sample, place) => `${first + place},${(40 - (38 * sample) / most).toFixed(1)}`);
  if (!svg.firstChild) {
    svg.setAttribute("preserveAspectRatio", "none");
    for (const shape of ["polygon", "polyline"]) {
      svg.append(document.createElementNS("http://www.w3.org/2000/svg", shape));
    }
  }
  svg.setAttribute("viewBox", `0 0 ${room - 1} 40`);
  const [area, line] = svg.children;
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", points.length ? `${first},40 ${points.join(" ")} ${room - 1},40` : "");
}

function showThroughput(name, samples, sampleMs) {
  const list = Array.isArray(samples) ? samples : [];
  say(at(name), list.length ? rate(list.at(-1)) : "–");
  draw(at(`${name}-line`), list, SAMPLES_MAX);
  const seconds = Math.round((SAMPLES_MAX * (sampleMs ?? 1000)) / 1000);
  say(at(`${name}-span`), `last ${numbers[1].format(seconds / 60)} min`);
  say(at(`${name}-most`), list.length ? `peak ${rate(Math.max(...list))}` : "\u00a0");
}

/** The rows of a table body for these keys, in order: existing rows are reused, missing ones created. */
function rows(table, keys, make) {
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const wanted = keys.map((key) => {
    const row = known.get(String(key)) ?? make();
    row.dataset.key = key;
    known.delete(String(key));
    return row;
  });
  for (const row of known.values()) row.remove();
  wanted.forEach((row, place) => {
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  return wanted;
}

/** A row with a cell for each heading of the table; the first cell is the row's heading. */
function newRow(table, classes) {
  const row = document.createElement("tr");
  [...table.tHead.rows[0].cells].forEach((heading, place) => {
    const cell = document.createElement(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    else cell.dataset.label = heading.textContent;
    if (heading.className) cell.className = heading.className;
    if (classes[place]) cell.classList.add(...classes[place].split(" "));
    row.append(cell);
  });
  return row;
}

function child(parent, tag, className) {
  if (!parent.firstElementChild) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    parent.append(made);
  }
  return parent.firstElementChild;
}

function showNodes(answer) {
  const table = at("nodes");
  const wanted = answer.nodes.map((node) => node.node);
  const all = rows(table, wanted, () => newRow(table, []));
  answer.nodes.forEach((node, place) => {
    const [name, state, grpc, http, leads, requests, memory, boot, clock] = all[place].cells;
    say(name, node.node === answer.node ? `Node ${node.node} (this one)` : `Node ${node.node}`);
    showState(state, node, node.leaving ? ", leaving" : "");
    say(grpc, node.grpc || "–");
    showConsole(http, node.http);
    const led = answer.cohorts.filter((cohort) => cohort.leader === node.node).length;
    say(leads, node.answers ? numbers[0].format(led) : "–");
    say(requests, rate(node.requests_per_second));
    say(memory, bytes(node.resident_bytes));
    say(boot, node.boot === undefined ? "–" : String(node.boot));
    say(clock, clockError(node.clock));
    clock.title = node.clock?.refusal ? `No transactions: ${node.clock.refusal}` : "";
  });
}

function showState(cell, node, note) {
  const lamp = child(cell, "span", "state");
  mark(lamp, "state", node.answers ? "up" : node.alive ? "silent" : "down");
  say(lamp, `${node.answers ? "up" : node.alive ? "not responding" : "down"}${note}`);
}

/** The ZooKeeper endpoints, if there are any. A node that does not respond is shown unless it had none. */
function showZooKeeper(answer) {
  const table = at("zookeeper");
  for (const node of answer.nodes) {
    if (node.answers) hasZooKeeper.set(node.node, Boolean(node.zookeeper));
  }
  const list = answer.nodes.filter((node) => hasZooKeeper.get(node.node) ?? !node.answers);
  at("zookeeper-section").hidden = !list.some((node) => hasZooKeeper.get(node.node));
  const all = rows(table, list.map((node) => node.node), () => newRow(table, []));
  list.forEach((node, place) => {
    const endpoint = node.zookeeper;
    const [name, state, mode, ...figures] = all[place].cells;
    const [connections, sessions, znodes, watches, outstanding, latency, lag] = figures;
    say(name, `Node ${node.node}`);
    showState(state, node, "");
    say(mode, endpoint?.mode ?? "–");
    if (!endpoint) {
      figures.forEach((figure) => say(figure, "–"));
      return;
    }
    say(connections, numbers[0].format(endpoint.connections));
    say(sessions, numbers[0].format(endpoint.sessions));
    say(znodes, numbers[0].format(endpoint.znodes));
    say(watches, numbers[0].format(endpoint.watches));
    say(outstanding, numbers[0].format(endpoint.outstanding_requests));
    say(latency, `${numbers[1].format(endpoint.mean_latency_ms)} ms`);
    say(lag, lagOf(endpoint));
  });
}

function lagOf(endpoint) {
  if (endpoint.playback_lag === 0) return "none";
  const positions = plural(endpoint.playback_lag, "position", "positions");
  return `${positions}, ${numbers[1].format(endpoint.playback_lag_seconds)} s`;
}

/** A link to a node's own console, if its address is an IP address and a port. */
function showConsole(cell, address) {
  if (!/^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:]+\]):\d{1,5}$/i.test(address ?? "")) {
    if (!cell.firstElementChild) say(cell, "–");
    return;
  }
  if (!cell.firstElementChild) cell.textContent = "";
  const link = child(cell, "a");
  if (link.textContent !== address) {
    link.textContent = address;
    link.href = `http://${address}/`;
  }
}

function showCohorts(answer) {
  for (const known of histories.keys()) {
    if (!answer.cohorts.some((cohort) => cohort.cohort === known)) histories.delete(known);
  }
  showCohortTable(answer, at("cohorts"), answer.cohorts.filter((cohort) => cohort.table));
  showCohortTable(answer, at("system"), answer.cohorts.filter((cohort) => !cohort.table));
}

/** The ranges of tables, or the cohorts of the system, which have no range. */
function showCohortTable(answer, table, list) {
  const hasRange = table.id === "cohorts";
  const classes = ["name", , ...(hasRange ? [,] : []), , , "all", , , "rest"];
  const all = rows(table, list.map((cohort) => cohort.cohort), () => newRow(table, classes));
  const down = new Set(answer.nodes.filter((node) => !node.answers).map((node) => node.node));
  list.forEach((cohort, place) => {
    const [name, number, ...others] = all[place].cells;
    if (hasRange) say(others.shift(), rangeOf(cohort));
    const [leader, epoch, replicas, writes, reads, line] = others;
    const [durability, text, title] = durabilityOf(cohort);
    const [owner, meaning] = ownerOf(cohort);
    say(name, `${owner}${text}`);
    name.classList.toggle("own", !cohort.table);
    name.title = `${meaning}${title}`;
    mark(name, "durability", durability);
    say(number, String(cohort.cohort));
    say(leader, cohort.led ? `node ${cohort.leader}` : "no leader");
    say(epoch, numbers[0].format(cohort.epoch));
    const configuration = cohort.configuration;
    epoch.title = configuration ? `Version ${configuration.version} of the configuration: members ${configuration.members.join(", ")}` : "";
    showReplicas(replicas, cohort, down);
    say(writes, rate(cohort.writes_per_second));
    say(reads, rate(cohort.reads_per_second));
    const svg = line.firstElementChild ?? newLine(line);
    draw(svg, remember(cohort), COHORT_SAMPLES_MAX);
  });
}

function newLine(cell) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "line writes");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "Writes and reads per second since this page was opened");
  cell.append(svg);
  return svg;
}

function remember(cohort) {
  const history = histories.get(cohort.cohort) ?? [];
  history.push((cohort.writes_per_second ?? 0) + (cohort.reads_per_second ?? 0));
  if (history.length > COHORT_SAMPLES_MAX) history.shift();
  histories.set(cohort.cohort, history);
  return history;
}

/** The owner of a cohort, and its kind. */
function ownerOf(cohort) {
  if (cohort.kind === "log unit") {
    const which = cohort.log ? `log ${cohort.log}` : "log unit";
    return [which, cohort.log ? `Unit of the shared log ${cohort.log}` : "Unit of a shared log"];
  }
  if (cohort.table) return [cohort.table, cohort.table];
  return ["catalog", "Metadata of tables, logs and nodes"];
}

/** A note after a table's name if it is stored in main memory. */
function durabilityOf(cohort) {
  if (cohort.durability !== "memory") return ["forced", "", ""];
  if (cohort.losses > 0) {
    const times = plural(cohort.losses, "loss", "losses");
    return ["lost", ` · in memory, ${times} declared`, ": acknowledged writes may be lost, because a majority of replicas failed together"];
  }
  return ["memory", " · in memory", ": acknowledged writes can be lost if a majority of a range's replicas fail together"];
}

/** The keys of a range, start inclusive and end exclusive; keys that are not text come in base64. */
function rangeOf(cohort) {
  const [from, to] = cohort.range ?? cohort.range_base64;
  const shown = (key) => {
    const short = key.length > KEY_SHOWN_MAX ? `${key.slice(0, KEY_SHOWN_MAX)}…` : key;
    return cohort.range ? short : `base64 ${short}`;
  };
  if (from === "" && to === null) return "all keys";
  if (from === "") return `before ${shown(to)}`;
  return to === null ? `from ${shown(from)}` : `from ${shown(from)} to ${shown(to)} (exclusive)`;
}

function showReplicas(cell, cohort, down) {
  const list = child(cell, "ul", "replicas");
  while (list.children.length > cohort.replicas.length) list.lastElementChild.remove();
  while (list.children.length < cohort.replicas.length) list.append(document.createElement("li"));
  cohort.replicas.forEach((replica, place) => {
    const item = list.children[place];
    const [state, text] = replicaState(replica, cohort, down);
    mark(item, "state", state);
    say(item, `${replica.node} · ${text}`);
    const entries = replica.last_lsn === null ? "not reported" : `last entry ${replica.last_lsn}, committed ${replica.committed_lsn}`;
    item.title = `Node ${replica.node}: ${entries}`;
  });
}

function replicaState(replica, cohort, down) {
  if (down.has(replica.node)) return ["down", "down"];
  if (replica.state === "missing") return ["behind", "missing"];
  if (replica.doubtful) return ["doubtful", "in doubt"];
  if (replica.lag > 10000) return ["behind", `−${numbers[0].format(replica.lag)}`];
  const configuration = cohort.configuration;
  if (configuration?.stranded) return ["doubtful", "stranded"];
  if (replica.node === cohort.leader) return ["leader", configuration ? "primary" : "leader"];
  if (configuration && !configuration.members.includes(replica.node)) return ["behind", "candidate"];
  return ["following", replica.lag === 0 ? "in sync" : `−${numbers[0].format(replica.lag)}`];
}

function showHealth(answer) {
  const words = { healthy: "Healthy", degraded: "Degraded", unknown: "Unknown", unavailable: "Unavailable" };
  const meanings = {
    healthy: "All nodes respond, and all tables and logs have all their copies.",
    degraded: "All tables and logs are available, but tolerate fewer failures.",
    unknown: "Not all tables and logs could be checked.",
    unavailable: "Some tables or logs are unavailable.",
  };
  const health = Object.hasOwn(words, answer.health) ? answer.health : "unavailable";
  mark(at("health"), "health", health === "unknown" ? "unchecked" : health);
  say(at("word"), words[health]);
  say(at("sentence"), meanings[health]);
  const list = at("problems");
  while (list.children.length > answer.problems.length) list.lastElementChild.remove();
  while (list.children.length < answer.problems.length) list.append(document.createElement("li"));
  answer.problems.forEach((problem, place) => say(list.children[place], `${sentence(problem)}.`));
  document.title = `${words[health]} – Loggos`;
}

/** Drops, moves and departures of nodes that continue in the background. */
function showProgress(answer) {
  const list = answer.in_progress ?? [];
  const table = at("progress");
  at("progress-section").hidden = list.length === 0;
  const keys = list.map((operation) => `${operation.operation} ${operation.what}`);
  const all = rows(table, keys, () => newRow(table, []));
  list.forEach((operation, place) => {
    const [what, kind, waits] = all[place].cells;
    say(what, operation.what);
    say(kind, operation.operation);
    const lamp = child(waits, "span", "waits");
    mark(lamp, "blocked", String(operation.blocked));
    say(lamp, operation.waits_for);
  });
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function show(answer) {
  seen = { when: new Date(), answer };
  showHealth(answer);
  showProgress(answer);
  say(at("served"), `Reported by node ${answer.node} at ${clock.format(seen.when)}`);
  showThroughput("writes", answer.writes_per_second, answer.sample_ms);
  showThroughput("reads", answer.reads_per_second, answer.sample_ms);
  const answering = answer.nodes.filter((node) => node.answers).length;
  say(at("alive"), `${answering} of ${answer.nodes.length}`);
  say(at("count"), numbers[0].format(new Set(answer.cohorts.map((cohort) => cohort.table).filter(Boolean)).size));
  showNodes(answer);
  showZooKeeper(answer);
  showCohorts(answer);
}

/** The node that serves this page is down or does not respond: marks the shown data as stale. */
function showStale() {
  mark(at("health"), "health", "stale");
  const since = seen ? `Stale since ${clock.format(seen.when)}` : "No data";
  const node = seen ? `Node ${seen.answer.node}, which serves this page,` : "The node that serves this page";
  const others = seen?.answer.nodes.some((other) => other.http && other.node !== seen.answer.node);
  const elsewhere = others ? " Other nodes also serve the console: see the addresses below." : "";
  say(at("word"), since);
  say(at("sentence"), `${node} is not responding. Retrying every second.${elsewhere}`);
  at("problems").replaceChildren();
  document.title = "Stale – Loggos";
}

/** The node's response, or null. */
async function ask() {
  try {
    const response = await fetch("/api/status", { signal: AbortSignal.timeout(RESPONSE_MS), cache: "no-store" });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

async function poll() {
  const began = performance.now();
  const answer = await ask();
  setTimeout(poll, Math.max(0, POLL_MS - (performance.now() - began)));
  if (answer) show(answer);
  else showStale();
}

poll();
