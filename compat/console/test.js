// Tests the console in a real browser with a cluster of three nodes. It must show a healthy cluster, a new table, the
// problems after a node with the only copy of a log was killed, the drop of that log, a degraded cluster, recovery after its restart, and that the page is stale while the node that
// serves it is down. The browser must log no errors, in particular no violation of the content security policy.
//
//   node test.js BINARY BROWSER DIRECTORY-FOR-SCREENSHOTS

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [binary, browserPath, out] = process.argv.slice(2);
const NODES = [1, 2, 3];
// Timeouts for the cluster to become ready and for the page to show a change, on a busy machine.
const READY_MS = 40_000;
const SEEN_MS = 20_000;

const scratch = mkdtempSync(join(tmpdir(), "loggos-console-"));
const data = join(scratch, "data");
const offset = await freeOffset();
const url = (node) => `http://127.0.0.1:${8080 + offset + node}/`;
const began = Date.now();

function step(what) {
  console.log(`${((Date.now() - began) / 1000).toFixed(1).padStart(5)} s  ${what}`);
}

function loggos(...args) {
  return execFileSync(binary, args, { encoding: "utf8", timeout: 60_000 });
}

function columns(...args) {
  return loggos("columns", "--port-offset", String(offset), ...args);
}

function logs(...args) {
  return loggos("log", "--port-offset", String(offset), ...args);
}

/** Creates a log with its only copy on this node. */
function createLogOn(node) {
  for (let number = 1; number <= 6; number += 1) {
    logs("create", `log-${number}`, "--copies", "1");
    const known = JSON.parse(logs("info", `log-${number}`, "--json"));
    if (known.extents[0].chains[0][0].node === node) return `log-${number}`;
    logs("drop", `log-${number}`);
  }
  throw new Error(`no log was placed on node ${node}`);
}

function isFree(port) {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

/** Returns an offset with unused ports, all below 32,768, the first ephemeral port. */
async function freeOffset() {
  for (let tries = 0; tries < 100; tries += 1) {
    const candidate = 1_050 + 200 * Math.floor(118 * Math.random());
    const ports = NODES.flatMap((node) => [7_100 + node, 7_200 + node, 8_080 + node]);
    const free = await Promise.all(ports.map((port) => isFree(port + candidate)));
    if (free.every(Boolean)) return candidate;
  }
  throw new Error("no free ports");
}

async function until(what, patience, look) {
  const end = Date.now() + patience;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`${what}: not within ${patience} ms`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

function pid(node) {
  return Number(readFileSync(join(data, `node-${node}`, "pid"), "utf8"));
}

/** Waits until a condition holds on the page. The error contains the text of the page. */
async function waitUntil(page, what, look, argument) {
  try {
    await page.waitForFunction(look, argument, { timeout: SEEN_MS, polling: 100 });
  } catch (error) {
    throw new Error(`not seen: ${what}. The page says:\n${await page.innerText("body")}`, { cause: error });
  }
  step(what);
}

// Conditions evaluated in the page.
const says = (word) => document.getElementById("word").textContent === word;
const states = (expected) =>
  [...document.querySelectorAll("#nodes tbody tr")].map((row) => row.cells[1].textContent).join() === expected.join();
const tables = (expected) => {
  const names = (table) => [...document.querySelectorAll(`${table} tbody tr`)].map((row) => row.cells[0].textContent);
  return names("#system").includes("catalog") && expected.join() === [...new Set(names("#cohorts"))].join();
};
const zookeeper = (expected) =>
  [...document.querySelectorAll("#zookeeper tbody tr")].map((row) => row.cells[1].textContent).join() === expected.join();
const problems = (expected) => {
  const said = [...document.querySelectorAll("#problems li")].map((item) => item.textContent);
  return expected.every((problem) => said.some((text) => text.includes(problem)));
};
const progress = (expected) =>
  [...document.querySelectorAll("#progress tbody tr")].some((row) => row.textContent.includes(expected));

async function screenshot(page, name) {
  await page.screenshot({ path: join(out, `${name}.png`), fullPage: true });
}

/** Checks that the page is not wider than the window, so that it needs no horizontal scrolling. */
async function checkWidth(page, what) {
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(overflow, 0, `${what}: ${overflow} pixels too wide`);
}

/** Checks that the layout is stable while only numbers change. */
async function checkStill(page) {
  const places = () => page.evaluate(() =>
    [...document.querySelectorAll("section, .tile, tbody tr")].map((part) => {
      const { x, y, width, height } = part.getBoundingClientRect();
      return [x, y, width, height].map(Math.round).join();
    }),
  );
  const before = await places();
  columns("put", "airports", "JFK", "city", "New York");
  columns("get", "airports", "JFK");
  await page.waitForTimeout(2_500);
  assert.deepEqual(await places(), before, "the layout changed");
  step("the layout is stable while numbers change");
}

/** Checks that exactly the links receive the keyboard focus, in order. */
async function checkKeyboard(page) {
  const links = await page.locator("a").count();
  const reached = [];
  for (let press = 0; press < links; press += 1) {
    await page.keyboard.press("Tab");
    reached.push(await page.evaluate(() => document.activeElement.tagName));
  }
  assert.deepEqual(reached, Array(links).fill("A"));
  step(`${links} links are reached with the keyboard`);
}

async function check(browser) {
  const complaints = [];
  const open = async (options) => {
    const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
    page.on("console", (message) => complaints.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
    page.on("requestfailed", (request) => complaints.push(`failed: ${request.url()}`));
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective}`));
    });
    return page;
  };

  const page = await open();
  await page.goto(url(1));
  await waitUntil(page, "three nodes are up", states, ["up", "up", "up"]);
  await waitUntil(page, "the catalog is shown", tables, []);
  await waitUntil(page, "the cluster is healthy", says, "Healthy");

  columns("create", "airports");
  await waitUntil(page, "a new table appears", tables, ["airports"]);
  await waitUntil(page, "the cluster is healthy with it", says, "Healthy");
  await checkWidth(page, "wide");
  await checkStill(page);
  await checkKeyboard(page);
  await screenshot(page, "healthy");

  const lost = createLogOn(2);
  process.kill(pid(2), "SIGKILL");
  await waitUntil(page, "the killed node is shown as down", states, ["up", "down", "up"]);
  await waitUntil(page, "a lost log makes the cluster unavailable", says, "Unavailable");
  await waitUntil(page, "all problems are listed", problems, [`Log ${lost} is unavailable`, "Node 2 is down"]);
  assert.throws(() => logs("drop", lost, "--timeout", "3s"), /--force/);
  await waitUntil(page, "the drop is shown to wait for the node", progress, `log ${lost}`);
  await screenshot(page, "unavailable");
  logs("drop", lost, "--force");
  await waitUntil(page, "the cluster is shown as degraded", says, "Degraded");
  await waitUntil(page, "its ZooKeeper endpoint is shown as down", zookeeper, ["up", "down", "up"]);
  await screenshot(page, "degraded");

  loggos("dev", "restart", "2", "--data", data);
  await waitUntil(page, "the node is back", states, ["up", "up", "up"]);
  await waitUntil(page, "the cluster is healthy again", says, "Healthy");

  for (const [name, options] of [
    ["dark", { colorScheme: "dark" }],
    ["phone", { viewport: { width: 360, height: 800 } }],
  ]) {
    const other = await open(options);
    await other.goto(url(2));
    await waitUntil(other, `the same from node 2, ${name}`, says, "Healthy");
    await checkWidth(other, name);
    await screenshot(other, name);
    await other.close();
  }
  assert.deepEqual(complaints, [], "errors on the browser's console");
  step("the browser logged no errors");

  // From here on the browser logs errors, because the page's requests fail.
  process.kill(pid(1), "SIGKILL");
  await waitUntil(page, "the page shows that it is stale", () =>
    document.getElementById("word").textContent.startsWith("Stale since "));
  await screenshot(page, "stale");
  loggos("dev", "restart", "1", "--data", data);
  await waitUntil(page, "the page recovers when its node is back", says, "Healthy");
  await page.close();
}

const said = join(scratch, "dev.out");
const log = openSync(said, "w");
const dev = spawn(binary, ["dev", "--data", data, "--port-offset", String(offset)], { stdio: ["ignore", log, log] });
const ended = new Promise((resolve) => dev.once("exit", resolve));
let browser;
try {
  const ready = () => readFileSync(said, "utf8").split("\n").includes("ready");
  await until("dev says ready", READY_MS, () => {
    assert.equal(dev.exitCode, null, "dev ended");
    return ready();
  });
  step("a cluster of three nodes is ready");
  // CI runs as root, where the browser's sandbox is unavailable. The browser loads only our own page.
  browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
  step("a browser is open");
  await check(browser);
} catch (error) {
  console.error(error);
  console.error(`--- dev said:\n${readFileSync(said, "utf8")}`);
  process.exitCode = 1;
} finally {
  await browser?.close();
  dev.kill("SIGINT");
  await ended;
  rmSync(scratch, { recursive: true, force: true });
}
