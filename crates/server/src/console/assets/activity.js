// The console's second page: what runs. It asks the node that serves it every two seconds. Data is inserted as text, never
// as markup.

const POLL_MS = 2000;
const RESPONSE_MS = 3000;

const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

function size(bytes) {
  if (bytes < 1 << 20) return `${whole.format(bytes / 1024)} KiB`;
  return `${whole.format(bytes / (1 << 20))} MiB`;
}

/** The time since a moment, such as "3 min". */
function since(ms) {
  if (typeof ms !== "number") return "–";
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  if (seconds < 120) return `${whole.format(seconds)} s`;
  return seconds < 7200 ? `${whole.format(seconds / 60)} min` : `${whole.format(seconds / 3600)} h`;
}

/** Shows these rows, each a list of texts, or a row that there are none. */
function fill(id, list) {
  const table = at(id);
  const headings = [...table.tHead.rows[0].cells];
  const rows = list.length ? list : [["none", ...headings.slice(1).map(() => "")]];
  const body = document.createElement("tbody");
  for (const texts of rows) {
    const row = document.createElement("tr");
    texts.forEach((text, place) => {
      const cell = document.createElement(place === 0 ? "th" : "td");
      if (place === 0) cell.scope = "row";
      else cell.dataset.label = headings[place].textContent;
      cell.className = headings[place].className;
      cell.textContent = text;
      row.append(cell);
    });
    body.append(row);
  }
  // Unchanged tables stay, so that selections survive.
  if (table.tBodies[0].textContent !== body.textContent) table.tBodies[0].replaceWith(body);
}

function showSql(answer) {
  fill("sessions", (answer.sessions ?? []).map((session) => [
    String(session.process), session.database, session.user, session.client ?? "–", session.application, session.state,
    since(session.since_ms), since(session.transaction_since_ms), session.statement,
  ]));
  fill("databases", (answer.databases ?? []).flatMap((database) => [
    [database.database, "(all)", size(database.bytes)],
    ...database.tables.map((table) => [database.database, table.table, size(table.bytes)]),
  ]));
}

function showStatus(answer) {
  at("served").textContent = `Reported by node ${answer.node} at ${clock.format(new Date())}`;
  fill("transactions", answer.nodes.filter((node) => node.transactions).map((node) => {
    const { committed, aborted, prepared, lock_waits: waits } = node.transactions;
    return [`Node ${node.node}`, ...[committed, aborted, prepared, waits].map((count) => whole.format(count))];
  }));
  fill("configurations", answer.cohorts.filter((cohort) => cohort.configuration).map((cohort) => {
    const { version, primary, members, candidates, stranded } = cohort.configuration;
    const state = stranded ? "stopped: see loggos admin declare-loss" : cohort.led ? "serves" : "no primary";
    return [cohort.table, String(cohort.cohort), String(version), `node ${primary}`, members.join(", "), candidates.join(", "), state];
  }));
  fill("disks", (answer.attachments ?? []).map((attachment) => [
    attachment.disk, attachment.holder || "shared", attachment.client, `node ${attachment.node}`, since(attachment.since_ms),
  ]));
}

async function ask(path) {
  try {
    const response = await fetch(path, { signal: AbortSignal.timeout(RESPONSE_MS), cache: "no-store" });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

async function poll() {
  const [status, sql] = await Promise.all([ask("/api/status"), ask("/api/sql")]);
  setTimeout(poll, POLL_MS);
  if (status) showStatus(status);
  else at("served").textContent = "This node is not responding";
  if (sql) showSql(sql);
}

poll();
